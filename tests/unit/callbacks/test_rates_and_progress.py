"""Learning rate, throughput and progress: what they say, and how often."""

import io
import logging
import sys

import pytest
from rich.console import Console
from tiny_training import make_trainer

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context, ContextValues
from sonde.callbacks.learning_rate import LearningRateCallback
from sonde.callbacks.progress import ProgressCallback
from sonde.callbacks.throughput import ThroughputCallback
from sonde.errors import SettingError
from sonde.train.stopping import StopWhen


class Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def close(self) -> None:
        self.scalars.append(("closed", 0.0, -1))


def train(callback: Callback, updates: int = 7) -> None:
    make_trainer()[0].train(stop=StopWhen(max_updates=updates), callbacks=[callback])


def test_the_learning_rate_goes_to_the_writer_or_to_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(LearningRateCallback(3, writer := Writer()))
    assert writer.scalars == [
        ("param/lr", 0.01, 1),
        ("param/lr", 0.01, 3),
        ("param/lr", 0.01, 6),
        ("closed", 0.0, -1),
    ]
    with caplog.at_level(logging.INFO):
        train(LearningRateCallback(7))
    assert "step 7: learning rate 0.01" in caplog.text


def test_throughput_counts_steps_and_tokens_since_it_last_wrote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(ThroughputCallback(3, writer := Writer()))
    by_step = {(tag, step): value for tag, value, step in writer.scalars}
    for step in (3, 6):
        tokens = by_step["throughput/tokens_per_second", step]
        steps = by_step["throughput/steps_per_second", step]
        assert tokens / steps == pytest.approx(3.0)  # 2, 3 and 4 rows
    with caplog.at_level(logging.INFO):
        train(ThroughputCallback(7))
    assert "steps/s" in caplog.text


def test_without_a_terminal_progress_is_one_plain_line_per_interval() -> None:
    out = io.StringIO()
    train(ProgressCallback(7, interval=3, console=Console(file=out, highlight=False)))
    lines = [line for line in out.getvalue().splitlines() if not line.startswith("evaluation")]
    assert [line.split("  ")[0] for line in lines] == [
        "step 1/7",
        "step 3/7",
        "step 6/7",
        "step 7/7",
    ]
    assert "loss" in lines[-1]
    assert "tokens/s" in lines[-1]


def test_the_rate_is_that_of_recent_updates_and_knows_nothing_of_the_time_between_them() -> None:
    callback = ProgressCallback(interval=1000)
    shown = ContextValues(weight=50)
    out = io.StringIO()
    callback._console = Console(file=out)
    for seconds in [1.0] * 5 + [0.1] * 1000:
        shown.step += 1
        shown.step_seconds = seconds
        callback.on_step_end(Context(shown))
    assert out.getvalue().splitlines()[-1].endswith("500 tokens/s")


def test_an_evaluation_is_told_in_a_line_of_its_own_above_the_bar() -> None:
    for is_terminal in (False, True):
        out = io.StringIO()
        console = Console(file=out, force_terminal=is_terminal, width=100)
        callback = ProgressCallback(7, console=console)
        shown = ContextValues()
        context = Context(shown)
        callback.on_run_start(context)
        shown.step = 3
        shown.metrics = {"loss": 1.25, "weight": 40.0, "bleu[0]": 21.437}
        callback.on_evaluation_end(context)
        callback.on_run_end(context)
        assert "evaluation after step 3: loss 1.25, bleu[0] 21.44" in out.getvalue()
        assert "weight" not in out.getvalue()


def test_on_a_terminal_it_is_a_bar() -> None:
    out = io.StringIO()
    train(ProgressCallback(7, console=Console(file=out, force_terminal=True, width=100)))
    assert "\x1b[" in out.getvalue()
    assert "step 7/7" in out.getvalue()
    assert "tokens/s" in out.getvalue()
    assert "0:00:00" in out.getvalue()  # the time left


def test_the_text_of_the_bar_is_not_made_anew_at_every_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callback = ProgressCallback(console=Console(file=io.StringIO(), force_terminal=True))
    shown = ContextValues()
    context = Context(shown)
    callback.on_run_start(context)
    texts: list[int] = []

    def text(context: Context) -> str:
        texts.append(context.step)
        return ""

    monkeypatch.setattr(callback, "_text", text)
    for _ in range(500):
        shown.step += 1
        callback.on_step_end(context)
    callback.on_run_end(context)
    assert texts[-1] == 500
    assert len(texts) < 250


@pytest.mark.parametrize(
    "make", [lambda: ProgressCallback(0), lambda: ProgressCallback(interval=0)]
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(SettingError):
        make()  # type: ignore[operator]  # one of several callables


def test_the_bar_is_drawn_on_standard_error_itself_whatever_stands_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command line puts a stream there that makes control codes visible; rich alone would look
    through one of two.
    """

    class Proxy:
        def __init__(self, stream: object) -> None:
            self.rich_proxied_file = stream

    true = io.StringIO()
    monkeypatch.setattr(sys, "stderr", Proxy(Proxy(true)))
    progress = ProgressCallback(3, interval=1)
    monkeypatch.undo()
    train(progress, updates=2)
    assert "step 2/3" in true.getvalue()
