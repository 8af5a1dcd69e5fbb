"""The marks in the document of a state, as they are in files on disk."""

import torch

from sonde.checkpoint.state import join_state


def test_the_marks_of_files_on_disk_stand_for_tensors_parts_of_tensors_and_tuples() -> None:
    weights = torch.arange(3.0)
    rows = torch.ones(2, 2)
    document = {
        "model": {"weight": {"@tensor": "model/weight"}, "rows": {"@sharded": "model/rows"}},
        "betas": {"@tuple": [0.9, 0.95]},
        "step": 7,
    }
    state = join_state(document, {"model/weight": weights}, {"model/rows": rows})
    assert state["model"]["weight"] is weights
    assert state["model"]["rows"] is rows
    assert state["betas"] == (0.9, 0.95)
    assert state["step"] == 7
