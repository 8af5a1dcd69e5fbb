"""Replay: any update of a run again, bit for bit, or with one thing changed; and what it may not
touch stays.
"""

import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from replayed_runs import NUM_UPDATES, SAVED, recorded_loss, train_small
from small_corpus import prepare_corpus

from sonde.data.loader import TokenLoader
from sonde.errors import SettingError
from sonde.forensics.replay import Replay
from sonde.forensics.seams import ModuleWatch
from sonde.forensics.trainer_batches import LoaderBatches
from sonde.records.append import RecordFile
from sonde.records.journal import read_steps
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest, write_manifest
from sonde.records.replay_order import ReplayOptions


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_small(pairs, tmp_path_factory.mktemp("runs") / "translation")


@pytest.fixture(scope="module")
def shared(run: Path) -> Replay:
    return Replay(run)


@pytest.fixture
def replay(shared: Replay) -> Replay:
    """At the beginning, whatever a test before did with it."""
    shared.go_to(1)
    return shared


def weights(replay: Replay) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in replay.model.parameters()])


def loader(replay: Replay) -> TokenLoader:
    batches = replay.seams.batches
    assert isinstance(batches, LoaderBatches)
    assert isinstance(batches.data, TokenLoader)
    return batches.data


def provenance(batches: list[Any]) -> list[list[tuple[str, int]]]:
    return [batch.provenance for batch in batches]


def test_every_step_gives_the_recorded_loss_and_norm_bit_for_bit(run: Path, replay: Replay) -> None:
    recorded = read_steps(run).by_number
    assert list(recorded) == list(range(1, NUM_UPDATES + 1))
    for step in (13, 2, 9, 5, 1, 12, 6):
        assert replay.go_to(step) == max(saved for saved in (0, *SAVED) if saved < step)
        result = replay.update()
        assert (result.loss, result.grad_norm) == (recorded[step].loss, recorded[step].grad_norm)
    assert replay.deviations == []
    # The code may change while a test runs: someone works on it.
    assert [
        difference for difference in replay.differences() if "the code's" not in difference
    ] == []


def test_a_state_that_is_on_the_way_is_used_instead_of_the_checkpoint(replay: Replay) -> None:
    replay.go_to(6)
    model = replay.model
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    replay.go_to(8)
    handle.remove()
    # an update of two micro-batches, and the last of an epoch, which has one
    assert len(calls) == 3
    assert replay.update().loss == recorded_loss(replay, 8)


@pytest.mark.slow
def test_without_checkpoints_or_with_damaged_ones_it_begins_earlier(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    newest = RunLayout(copy).checkpoints / "step-000000000012" / "tensors.safetensors"
    payload = bytearray(newest.read_bytes())
    payload[-1] ^= 1
    newest.write_bytes(payload)
    replay = Replay(copy)
    assert replay.checkpoints() == [0, 4, 8, 13]
    assert replay.go_to(13) == 8
    assert replay.update().loss == recorded_loss(replay, 13)
    shutil.rmtree(RunLayout(copy).checkpoints)
    replay = Replay(copy)
    assert replay.go_to(6) == 0
    assert replay.update().loss == recorded_loss(replay, 6)


def test_there_is_no_step_before_the_first(replay: Replay) -> None:
    with pytest.raises(SettingError, match="cannot be replayed"):
        replay.go_to(0)


def test_batches_of_any_step_are_those_that_the_update_takes(replay: Replay) -> None:
    taken = {step: provenance(replay.seams.batches.at(step)) for step in range(1, NUM_UPDATES + 1)}
    replay.go_to(1)
    replay.go_to(6)
    for step in (13, 1, 7, 3, 12):
        assert provenance(replay.batches(step)) == taken[step]
    assert replay.update().loss == recorded_loss(replay, 6)
    with pytest.raises(SettingError, match="step 0"):
        replay.batches(0)


def test_the_loss_alone_is_that_of_the_update_and_moves_nothing(replay: Replay) -> None:
    replay.go_to(7)
    before = weights(replay)
    generator = torch.get_rng_state()
    losses = replay.loss()
    assert losses.loss == recorded_loss(replay, 7)
    assert torch.equal(weights(replay), before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [sample.sample_id for sample in losses.samples] == [
        name for batch in replay.batches(7) for name in batch.provenance
    ]
    for sample in losses.samples:
        assert len(sample.token_losses or ()) == sample.num_tokens
        assert sum(sample.token_losses or ()) / (sample.num_tokens or 1) == pytest.approx(
            sample.loss, rel=1e-5
        )
    # it is there
    assert sum(sample.num_tokens or 0 for sample in losses.samples) == replay.recorded(7).weight  # type: ignore[union-attr]
    assert replay.update().loss == losses.loss


def test_a_snapshot_stays_good_for_more_than_one_return(replay: Replay) -> None:
    replay.go_to(6)
    snapshot = replay.snapshot()
    for _ in range(2):
        losses = [replay.update().loss for _ in range(3)]
        assert losses == [recorded_loss(replay, step) for step in (6, 7, 8)]
        replay.restore(snapshot)
        assert replay.num_updates == 5


def test_a_dropped_sample_is_as_if_it_stood_on_a_skip_list(replay: Replay) -> None:
    replay.go_to(5)
    dropped = replay.batches(5)[0].provenance[0]
    without = replay.loss(drop=[dropped])
    assert dropped not in [sample.sample_id for sample in without.samples]
    data = loader(replay)
    before = data.sampler.left_out
    data.sampler.left_out = data.dataset.indices_of(dropped[0], torch.tensor([dropped[1]]).numpy())
    assert replay.loss().loss == without.loss
    data.sampler.left_out = before
    assert replay.loss().loss != without.loss
    assert math.isnan(
        replay.loss(drop=[name for batch in replay.batches(5) for name in batch.provenance]).loss
    )


def test_other_batches_weights_and_rates_change_the_update_and_the_next_visit_is_exact_again(
    replay: Replay,
) -> None:
    recorded = replay.recorded(7)
    assert recorded is not None
    replay.go_to(7)
    first = weights(replay)
    plain = replay.snapshot()
    assert replay.update(batches=replay.batches(3)).loss != recorded.loss
    replay.restore(plain)
    replay.load_weights(8)
    assert not torch.equal(weights(replay), first)
    assert replay.loss().loss != recorded.loss
    replay.load_weights(0)
    assert replay.update().loss > recorded.loss
    replay.restore(plain)
    assert replay.update(lr=0.0).loss == recorded.loss
    assert torch.equal(weights(replay), first)
    assert replay.go_to(7) == 4
    assert replay.update().loss == recorded.loss
    with pytest.raises(SettingError, match="no valid checkpoint after 7"):
        replay.load_weights(7)


def test_a_watched_update_is_the_same_and_its_gradients_add_up_to_the_norm(replay: Replay) -> None:
    replay.go_to(7)
    watch = ModuleWatch()
    result = replay.update(watch=watch)
    assert result.loss == recorded_loss(replay, 7)
    assert replay.update().loss == recorded_loss(replay, 8)
    names = [name for name, _ in replay.model.named_parameters()]
    modules = watch.modules()
    gradients = [
        module.norm for module in modules if module.kind == "gradient" and module.module in names
    ]
    assert len(gradients) == len(names)
    assert math.hypot(*gradients) == pytest.approx(result.grad_norm, rel=1e-5)
    order = [module.module for module in modules if module.kind == "activation"]
    assert order[0] == "embed"
    assert order[-1] == "model"
    assert order.index("encoder.0") < order.index("decoder.0.cross") < order.index("output")
    assert {module.module for module in modules if module.kind == "parameter"} == set(names)
    assert all(
        module.num_nonfinite == 0 and 0 <= module.max_abs <= module.norm + 1e-6
        for module in modules
    )


def test_the_first_module_after_a_broken_weight_is_named(replay: Replay) -> None:
    replay.go_to(7)
    model = replay.model
    with torch.no_grad():
        model.get_parameter("decoder.0.feed_forward.outer.weight")[0, 0] = math.nan
    watch = ModuleWatch()
    result = replay.update(watch=watch)
    assert result.skipped is not None
    bad = [module for module in watch.modules() if module.num_nonfinite]
    assert bad[0].module == "decoder.0.feed_forward.outer"
    assert [finding.module for finding in bad if finding.kind == "parameter"] == [
        "decoder.0.feed_forward.outer.weight"
    ]


def test_what_is_not_as_it_was_is_told(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    manifest = read_manifest(copy)
    manifest.versions["torch"] = "1.0"
    manifest.data["tokenizer"] = "other"
    manifest.host["name"] = "elsewhere"
    write_manifest(copy, manifest)
    made = read_steps(copy).by_number[6]
    with RecordFile(RunLayout(copy).record_file("steps", 0)) as file:
        file.append({"type": "STEP", **asdict(made), "loss": math.nextafter(made.loss, 0)})
    replay = Replay(copy)
    replay.go_to(8)
    assert replay.deviations == [6]
    told = "\n".join(replay.differences())
    for part in (
        "version of torch was '1.0'",
        "data of tokenizer",
        "machine's name",
        "another from step 6 on",
    ):
        assert part in told


def test_a_run_of_two_ranks_is_not_quietly_replayed_on_one(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    write_manifest(copy, replace(read_manifest(copy), world_size=2))
    with pytest.raises(SettingError, match="to have 2 ranks, and there are 1"):
        Replay(copy)
    replay = Replay(copy, options=ReplayOptions(world_size=1))
    assert len(replay.batches(1)) > 2  # those of both ranks
    assert "there were 2 ranks, then 1" in replay.differences()


@pytest.mark.slow
def test_the_batches_after_a_checkpoint_are_those_of_its_position_whatever_was_read_before(
    pairs: Path, tmp_path: Path
) -> None:
    run = train_small(pairs, tmp_path / "run", max_updates=8, update_freq=1)
    train_small(pairs, run, max_updates=12, update_freq=2)
    replay = Replay(run, settings_of=12)
    wanted = provenance(replay.batches(9))
    # made with other batching, so what follows it is not what followed it in the run
    replay.batches(8)
    assert provenance(replay.batches(9)) == wanted
    replay.go_to(12)
    assert replay.deviations == []
