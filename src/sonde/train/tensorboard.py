"""The trainer's TensorBoard writer, as NeMo's users expect one: `Trainer(…, create_tb_writer=True).tb_writer`.

It is torch's own `SummaryWriter` in `RUN/tensorboard`, on rank 0; it is closed after the last moment of every callback.
"""

from typing import Any

from sonde import ranks
from sonde.errors import MissingDependency, SettingError
from sonde.run import Run


def make_tb_writer(run: Run | None) -> Any:
    """A `SummaryWriter` into the run; None on other ranks than 0."""
    if run is None:
        raise SettingError("create_tb_writer needs a run to write to", hint="Trainer(…, run=Run('runs/a'))")
    if ranks.rank() != 0:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingDependency("tensorboard", needed_for="create_tb_writer", extra="tensorboard") from None
    return SummaryWriter(str(run.layout.root / "tensorboard"))
