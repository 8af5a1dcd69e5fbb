"""How the demo's narrator puts a sample on the screen."""

from sonde.cli.demo import odd_part
from sonde.spikes.decoding import DecodedSample
from sonde.spikes.spike_log import RankedSample


def sample(losses: list[float], texts: list[str]) -> DecodedSample:
    ranked = RankedSample(
        rank=0,
        dataset="train",
        sample=3,
        loss=1.0,
        num_tokens=len(losses),
        share=1.0,
        token_losses=tuple(losses),
    )
    return DecodedSample(ranked=ranked, text="".join(texts), token_texts=tuple(texts))


def test_text_is_shown_from_shortly_before_it_becomes_odd() -> None:
    shown = odd_part(sample([1.0] * 50 + [9.0] * 50, ["a "] * 50 + ["Ã"] * 50), calm_loss=2.0)
    assert shown.plain.startswith("…a a")
    assert shown.plain.count("a") <= 24
    assert shown.plain.count("Ã") == 50


def test_tokens_are_coloured_by_how_far_they_are_above_calm() -> None:
    shown = odd_part(sample([1.0, 4.5, 9.0], ["a", "b", "c"]), calm_loss=2.0)
    assert [
        (shown.plain[span.start : span.end], span.style) for span in shown.spans if span.style
    ] == [
        ("b", "black on yellow"),
        ("c", "bold white on red"),
    ]


def test_a_loss_that_is_no_number_is_as_odd_as_can_be() -> None:
    shown = odd_part(sample([float("nan"), float("inf")], ["a", "b"]), calm_loss=2.0)
    assert {span.style for span in shown.spans} == {"bold white on red"}


def test_only_a_few_lines_are_shown_and_control_characters_never() -> None:
    shown = odd_part(sample([9.0] * 1000, ["\x1b["] * 1000), calm_loss=2.0)
    assert len(shown) < 310
    assert "\x1b" not in shown.plain


def test_without_the_losses_of_tokens_the_text_is_shown_as_it_is() -> None:
    assert odd_part(sample([], ["plain"]), calm_loss=2.0).plain == "plain"
    assert odd_part(sample([1.0], ["plain"]), calm_loss=None).plain == "plain"
