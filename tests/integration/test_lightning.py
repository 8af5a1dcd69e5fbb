"""The whole road with Lightning: noticed, read, replayed in a new process, diagnosed, rolled back,
resumed without it.
"""

import shutil
from pathlib import Path

import pytest
from example_road import EXAMPLES, go_the_road


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_garbled_record_is_found_and_left_out_with_accumulation_workers_and_a_resume(
    tmp_path: Path,
) -> None:
    way_on = go_the_road(
        "lightning_module.py", tmp_path / "run", "--accumulate", 2, "--rows", 4, "--workers", 2
    )
    assert way_on.startswith(f'trainer.fit(…, ckpt_path="{tmp_path}/run-out/step=')


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_go_the_same_road(tmp_path: Path) -> None:
    way_on = go_the_road(
        "lightning_module.py", tmp_path / "run", "--rows", 4, "--devices", 2, num_ranks=2
    )
    assert way_on.startswith(f'trainer.fit(…, ckpt_path="{tmp_path}/run-out/step=')


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pytorch_lightning_is_the_same_host_by_its_other_name(tmp_path: Path) -> None:
    script = (EXAMPLES / "lightning_module.py").read_text()
    (tmp_path / "module.py").write_text(script.replace("lightning.pytorch", "pytorch_lightning"))
    shutil.copy(EXAMPLES / "corpus.py", tmp_path)
    way_on = go_the_road(str(tmp_path / "module.py"), tmp_path / "run")
    assert way_on.startswith(f'trainer.fit(…, ckpt_path="{tmp_path}/run-out/step=')
