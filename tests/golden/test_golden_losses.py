"""The losses of a tiny run, update by update, bit for bit: a refactor of the step, the loop, the
model or the data proves itself here.

What may change them, and then the file is made anew with `PYTHONPATH=tests python
tests/golden/test_golden_losses.py` and the commit says why:
- another definition of the model's first weights, of dropout's seeds, of the order of batches or of
  the loss;
- another order of floating-point operations in forward, backward, clipping or the optimizer;
- another version of torch, or a processor with other vector instructions: the file says what it was
  made with. There the losses are only compared to four digits, which still catches a changed
  meaning.
Nothing else may: not logging, metrics, callbacks, checkpoints, evaluation, nor the number of data
workers.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import TINY, prepare_corpus

from sonde.run import Run
from sonde.train.recipe import build
from sonde.train.settings import RecipeSettings

GOLDEN = Path(__file__).parent / "data" / "losses"
CASES: dict[str, dict[str, Any]] = {
    "translation": {"languages": ("en", "de")},
    "translation-ordered": {"languages": ("en", "de"), "ordered": True, "update_freq": 2},
    "language-model": {
        "languages": ("en",),
        "block_size": 12,
        "positions": "rotary",
        "norm": "post",
    },
}


def made_with() -> dict[str, str]:
    return {
        "torch": torch.__version__.partition("+")[0],
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def losses(folder: Path, case: dict[str, Any]) -> list[str]:
    """The training losses of twelve updates, as hexadecimal floats."""
    others = dict(case)
    data = prepare_corpus(folder, languages=others.pop("languages"))
    settings = RecipeSettings(
        data=str(data),
        max_updates=12,
        max_tokens=96,
        log_interval=1,
        warmup=4,
        lr=1e-2,
        **TINY,
        **others,
    )
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pieces = build(settings)
        with Run(folder / "run") as run:
            pieces.trainer(run).train(stop=pieces.settings)
    finally:
        torch.set_num_threads(num_threads)
    lines = (folder / "run" / "records" / "log.rank0.jsonl").read_text().splitlines()
    data_of_records = [json.loads(line).get("data", {}) for line in lines]
    return [data["train.loss"].hex() for data in data_of_records if "train.loss" in data]


@pytest.mark.parametrize("name", CASES)
def test_the_losses_of_a_tiny_run_are_those_in_the_repository(name: str, tmp_path: Path) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    found = losses(tmp_path, CASES[name])
    if golden["made_with"] == made_with():
        assert found == golden["losses"]
    else:
        known = [float.fromhex(loss) for loss in golden["losses"]]
        assert [float.fromhex(loss) for loss in found] == pytest.approx(known, rel=1e-4)


def main() -> None:
    """Write the files anew."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            document = {"made_with": made_with(), "losses": losses(Path(folder), case)}
        (GOLDEN / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
