"""Every dtype, layout and device of PyTorch tensors."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sonde.probe import torch_tensors
from sonde.probe.torch_tensors import describe, read, write
from sonde.probe.walk import Later, Leaf

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def leaf_of(tensor: torch.Tensor, hashing: str = "") -> Leaf:
    laters: list[Later] = []
    leaf = describe(tensor, hashing, laters)
    for later in laters:
        later()
    return leaf


def four(leaf: Leaf) -> tuple[Any, ...]:
    return tuple(leaf[name] for name in ("Max", "Min", "Mean", "Norm"))


@pytest.mark.parametrize("dtype", [*FLOATS, *FP8, *INTEGERS])
def test_every_real_dtype_has_all_four_statistics(dtype: torch.dtype) -> None:
    leaf = leaf_of(torch.tensor([[1, 0], [3, 2]]).to(dtype))
    assert four(leaf) == (3, 0, 1.5, pytest.approx(math.sqrt(14)))
    assert (leaf["dtype"], leaf["shape"], leaf["num_zero"]) == (str(dtype), [2, 2], 1)
    assert isinstance(leaf["Max"], int if dtype in INTEGERS else float)


@pytest.mark.parametrize("dtype", FLOATS)
def test_statistics_are_those_of_float64(dtype: torch.dtype) -> None:
    tensor = torch.randn(10_007, generator=torch.Generator().manual_seed(3)).to(dtype)
    wide = tensor.to(torch.float64)
    leaf = leaf_of(tensor)
    assert (leaf["Max"], leaf["Min"]) == (wide.max().item(), wide.min().item())
    assert leaf["Mean"] == pytest.approx(math.fsum(wide.tolist()) / wide.numel(), rel=1e-6)
    assert leaf["Norm"] == pytest.approx(
        math.sqrt(math.fsum(x * x for x in wide.tolist())), rel=1e-7
    )


def test_bool_is_any_and_all() -> None:
    assert four(leaf_of(torch.tensor([True, False]))) == (True, False, None, None)


def test_complex_is_measured_by_magnitude() -> None:
    assert four(leaf_of(torch.tensor([3 + 4j, 0j]))) == (5.0, 0.0, 2.5, 5.0)


@pytest.mark.parametrize("tensor", [torch.empty(0, 4), torch.ones(2, 2, device="meta")])
def test_what_has_no_values_has_no_statistics(tensor: torch.Tensor) -> None:
    assert four(leaf_of(tensor, "md5")) == (None, None, None, None)


def test_a_scalar_is_an_array_of_one_and_its_norm_is_not_negative() -> None:
    assert four(leaf_of(torch.tensor(-3.5))) == (-3.5, -3.5, -3.5, 3.5)


def test_integers_beyond_float64_are_exact() -> None:
    assert leaf_of(torch.tensor([2**63 - 1, -(2**63)]))["Max"] == 2**63 - 1
    assert leaf_of(torch.tensor([2**63 - 1, -(2**63)]))["Min"] == -(2**63)


def test_views_are_measured_in_the_order_of_their_values() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    for view in (
        base.t(),
        base[:, 1::2],
        base.flip(0),
        base[1:2].expand(5, 4),
        base.permute(1, 0)[2],
    ):
        leaf = leaf_of(view, "md5")
        copy = leaf_of(view.clone(memory_format=torch.contiguous_format), "md5")
        assert (four(leaf), leaf["md5"]) == (four(copy), copy["md5"])


def test_a_large_view_is_taken_in_pieces() -> None:
    base = torch.arange(600_000.0).reshape(600, 1000).t()
    leaf = leaf_of(base, "md5")
    assert four(leaf) == (599_999.0, 0.0, 299_999.5, pytest.approx(base.double().norm().item()))
    assert leaf["md5"] == f"{zlib.crc32(base.contiguous().numpy().data):08x}"
    assert leaf_of(torch.ones(1).expand(3000, 1000))["Norm"] == pytest.approx(math.sqrt(3e6))


def test_lazy_conjugates_and_negatives_are_resolved() -> None:
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert four(leaf_of(value.conj().imag)) == (4.0, -2.0, 1.0, pytest.approx(math.sqrt(20)))
    assert leaf_of(value.conj(), "md5")["md5"] == leaf_of(value.conj().resolve_conj(), "md5")["md5"]


@pytest.mark.filterwarnings("ignore:Sparse .* support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_layouts_count_the_zeros_they_do_not_store(layout: torch.layout) -> None:
    dense = torch.tensor([[0.0, 2.0, 0.0], [-3.0, 0.0, 0.0]])
    leaf = leaf_of(dense.to_sparse(layout=layout), "md5")
    assert four(leaf) == four(leaf_of(dense))
    assert leaf["num_zero"] == 4
    moved = torch.tensor([[2.0, 0.0, 0.0], [-3.0, 0.0, 0.0]]).to_sparse(layout=layout)
    assert leaf["md5"] != leaf_of(moved, "md5")["md5"]


@pytest.mark.filterwarnings("ignore:.*quantize.*")
def test_quantised_tensors_are_measured_by_value() -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([0.5, -1.0]), 0.5, 0, torch.qint8)
    assert four(leaf_of(tensor, "md5"))[:3] == (0.5, -1.0, -0.25)


def test_subclasses_are_named_and_measured() -> None:
    class Marked(torch.Tensor):
        pass

    leaf = leaf_of(torch.ones(2).as_subclass(Marked))
    assert leaf["type"].endswith("Marked")
    assert leaf["Max"] == 1.0
    assert leaf_of(torch.nn.Parameter(torch.ones(2)))["type"] == "torch.Tensor"
    assert leaf_of(torch.nn.Parameter(torch.ones(2)))["requires_grad"] is True


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.complex64, torch.bool])
def test_the_way_for_other_devices_gives_the_same_numbers(dtype: torch.dtype) -> None:
    tensor = (torch.randn(1000) * 3).to(dtype)
    expected = leaf_of(tensor)
    leaf = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    torch_tensors._measure_on_device(leaf, tensor, 0)()
    for name in ("Max", "Min", "Mean", "Norm"):
        is_number = expected[name] is not None
        assert leaf[name] == (
            pytest.approx(expected[name], rel=1e-6, abs=1e-7) if is_number else None
        )
    assert type(leaf["Max"]) is type(expected["Max"])


def test_the_way_for_other_devices_counts_what_is_not_finite() -> None:
    leaf: Leaf = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    torch_tensors._measure_on_device(leaf, torch.tensor([1.0, math.nan, math.inf, 0.0]), 2)()
    assert (leaf["num_nan"], leaf["num_inf"], leaf["num_zero"]) == (1, 1, 3)
    assert leaf["finite"]["Max"] == 1.0


def test_the_hash_is_msprobes_crc_of_the_raw_bytes() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.float8_e5m2, torch.complex64):
        tensor = torch.tensor([[1, 0], [3, 2]]).to(dtype)
        raw = tensor.view(torch.uint8).numpy().tobytes()
        assert leaf_of(tensor, "md5")["md5"] == f"{zlib.crc32(raw):08x}"


def test_the_quick_hash_is_xxh3_of_the_raw_bytes() -> None:
    xxhash = pytest.importorskip("xxhash")
    tensor = torch.randn(1000)
    assert leaf_of(tensor, "xxh3")["xxh3"] == xxhash.xxh3_128(tensor.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("num", [3, 1 << 18])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64]
)
def test_files_are_loaded_by_torch_and_hold_nothing_else(
    tmp_path: Path, num: int, dtype: torch.dtype
) -> None:
    whole = torch.randn(num * 2).to(dtype)
    tensor = whole[:num]
    path = tmp_path / "x.pt"
    assert write(torch.nn.Parameter(tensor) if dtype is torch.float32 else tensor, path)
    loaded = torch.load(path, weights_only=True)
    assert loaded.dtype is dtype
    assert torch.equal(loaded.view(torch.uint8), tensor.view(torch.uint8))
    assert not loaded.requires_grad
    assert path.stat().st_size < tensor.nbytes + 4096
    assert read(path).shape == (num,)
    assert zipfile.is_zipfile(path)


def test_what_has_no_values_has_no_file(tmp_path: Path) -> None:
    assert not write(torch.empty(0), tmp_path / "x.pt")
    assert not write(torch.ones(2, device="meta"), tmp_path / "x.pt")


def test_a_sparse_tensor_can_be_read_back(tmp_path: Path) -> None:
    assert write(torch.tensor([[0.0, 2.0]]).to_sparse(), tmp_path / "x.pt")
    assert np.array_equal(read(tmp_path / "x.pt"), [[0.0, 2.0]])


def test_a_file_that_is_no_tensor_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"not a tensor")
    with pytest.raises(OSError, match=r"x\.pt is no tensor file"):
        read(tmp_path / "x.pt")
