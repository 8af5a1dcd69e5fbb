"""What can be read in a corpus anyway is held against samples of a like length."""

from collections.abc import Sequence

from odd_texts import sentences

from sonde.forensics.readings import Readings, UsualSigns
from sonde.forensics.seams import Row, RunTexts
from sonde.texts.signs import CLEAR


class _Letters(RunTexts):
    """A corpus whose tokens are characters."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the characters."""
        return "".join(map(chr, tokens))

    def some(self, num: int) -> list[Row]:
        """Return ordinary sentences."""
        return [
            Row(("train", number), _codes(text))
            for number, text in enumerate(sentences(1, 400)[:num])
        ]


def _codes(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def _row(length: int, source: int | None = None) -> Row:
    return Row(("train", 0), (1,) * length, None if source is None else (1,) * source)


def test_a_sign_that_short_samples_have_is_usual_there_and_rare_elsewhere() -> None:
    lengths = [5] * 100 + [40] * 1900
    signs = UsualSigns(
        [_row(length) for length in lengths], [("shouting", 1.0)] * 30 + [None] * 1970
    )
    assert signs.share(_row(5), 0.8, "shouting") > 0.25
    assert 0.01 < signs.share(_row(40), 0.8, "shouting") < 0.02
    assert signs.share(_row(40), 0.8, "markup") < 0.001


def test_of_weaker_signs_and_of_any_kind_there_are_more() -> None:
    signs = UsualSigns(
        [_row(20)] * 1000, [("code", 0.4)] * 10 + [("table", 0.9)] * 20 + [None] * 970
    )
    assert signs.share(_row(20), 0.3, "code") > 9 * signs.share(_row(20), 0.5, "code")
    assert signs.share(_row(20), 0.8) > 0.019


def test_a_sign_that_pairs_with_long_sources_have_is_usual_in_a_batch_of_long_sources() -> None:
    rows = [_row(10, source=50)] * 100 + [_row(10, source=9)] * 1900
    signs = UsualSigns(rows, [("truncated", 1.0)] * 30 + [None] * 1970)
    assert signs.share(_row(10, source=48), 0.8, "truncated") > 0.25
    assert signs.share(_row(10, source=9), 0.8, "truncated") < 0.02


def test_short_rows_far_out_are_read_as_one_text() -> None:
    pieces = ["le chien", "maison", "beau", "des amis", "vieux", "le matin", "jardin", "pomme"]
    rows = [Row(("own", number), _codes(text)) for number, text in enumerate(pieces)]
    readings = Readings(_Letters())
    losses = [None] * len(rows)
    assert readings.read_together(rows, losses, far=()) == [[]] * len(rows)
    together = readings.read_together(rows, losses, far=range(len(rows)))
    assert {found[0].kind for found in together} == {"foreign_language"}
    assert all(found[0].strength >= CLEAR for found in together)


class _Pairs(RunTexts):
    """Pairs whose sources have a tokenizer of their own: it numbers characters from 1000 on."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the characters of a target."""
        return "".join(map(chr, tokens))

    def decode_source(self, tokens: Sequence[int]) -> str:
        """Return the characters of a source."""
        return "".join(chr(token - 1000) for token in tokens)

    def some(self, num: int) -> list[Row]:
        """Return ordinary sentences with others as their sources."""
        sides = zip(sentences(1, 400), sentences(2, 400), strict=True)
        return [_pair(number, source, target) for number, (source, target) in enumerate(sides)][
            :num
        ]


def _pair(number: int, source: str, target: str) -> Row:
    return Row(("train", number), _codes(target), tuple(1000 + ord(letter) for letter in source))


def test_a_source_is_read_with_its_own_tokenizer() -> None:
    text = sentences(3, 1)[0]
    signs = Readings(_Pairs()).read([_pair(1000, text, text)], [None])[0]
    assert [sign.kind for sign in signs] == ["copied"]


def test_a_few_per_cent_of_damaged_texts_do_not_make_damage_usual() -> None:
    rows = [_row(20)] * 1000
    few = UsualSigns(rows, [("mis_decoded", 1.0)] * 30 + [None] * 970)
    many = UsualSigns(rows, [("mis_decoded", 1.0)] * 60 + [None] * 940)
    assert few.share(_row(20), 0.8, "mis_decoded") < 0.005
    assert many.share(_row(20), 0.8, "mis_decoded") > 0.05
    assert few.are_damaged(40) == [True] * 30 + [False] * 10


def test_a_few_per_cent_of_capitals_are_a_habit() -> None:
    habit = UsualSigns([_row(20)] * 1000, [("shouting", 1.0)] * 30 + [None] * 970)
    assert habit.share(_row(20), 0.8, "shouting") > 0.025
    assert not any(habit.are_damaged(40))
