"""The second demo: a weight goes wrong in memory in the middle of a training, and the run mends itself.

Nothing below is told what was done: the loss calls, `sonde diagnose` names the cause in a process beside, the run goes back and on. What it cost, and
that the weights are those of a training that nothing happened to, is compared at the end.

Costs about a minute on two cores.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import nn
from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.checkpoint.store import CheckpointStore
from sonde.demo.folder import DemoFolder
from sonde.demo.narrator import Narrator
from sonde.demo.scenario import Scenario
from sonde.demo.training import final_loss, out_of_sight, prepare_data
from sonde.heal.decision import Heal
from sonde.heal.history import read_history, told
from sonde.heal.supervisor import train_healing
from sonde.models.transformer import Transformer
from sonde.records.manifest import checkpoint_place
from sonde.train.session import train_run

_NUM_UPDATES: Final = 160
_STRUCK: Final = 113
_NUM_THREADS: Final = 1


def play_healing(make_scenario: Callable[[], Scenario], folder: DemoFolder, narrator: Narrator) -> bool:
    """All acts; was the run mended, and is it the one that nothing happened to?"""
    torch.set_num_threads(_NUM_THREADS)
    narrator.act("The corpus")
    scenario = make_scenario()
    planted, prepared = prepare_data(scenario, folder)
    narrator.tell(f"{prepared.sidecars[0].num_samples:,} {scenario.documents}.")
    recipe = replace(scenario.recipe, seed=planted.seed, max_updates=_NUM_UPDATES)
    narrator.act(f"Training, {_NUM_UPDATES} updates, with --heal 3")
    narrator.tell(f"At update {_STRUCK} a column of one weight is overwritten in memory. The run is not told.")
    with out_of_sight(folder.log):
        train_healing(recipe, folder.run, Heal(max_times=3), callbacks=[Strike(_STRUCK)])
    narrator.act("What the run tells of it")
    for sentence in (one for chapter in told(folder.run) for one in chapter):
        narrator.tell(f"· {sentence}")
    narrator.act("The same training, and nothing happens to it")
    with out_of_sight(folder.log):
        train_run(recipe, folder.untouched)
    same = _weights(folder.run) == _weights(folder.untouched)
    narrator.tell(
        f"Loss on held-out text: {final_loss(folder.untouched):.3f}; the one that was mended has {final_loss(folder.run):.3f}. "
        f"Their weights are {'the same, bit for bit' if same else 'not the same'}."
    )
    return same and len(read_history(folder.run).acts) > 0


def _weights(run: Path) -> dict[str, Any]:
    store = CheckpointStore(checkpoint_place(run))
    return {name: value.tolist() for name, value in store.load(store.folder.steps()[-1])["model"].items()}


@final
class Strike(Callback):
    """Overwrites a column of a weight once, in the memory of this process, before an update."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._is_now = False
        self._hook = nn.modules.module.register_module_forward_pre_hook(self._before_forward)

    @override
    def on_step_start(self, context: Context) -> None:
        """Is it time?"""
        self._is_now = context.step == self._step - 1

    def _before_forward(self, module: nn.Module, _: object) -> None:
        if self._is_now and isinstance(module, Transformer):
            self._hook.remove()
            with torch.no_grad():
                next(one for one in module.parameters() if one.ndim == 2)[:, 0] = 30.0
