"""What can be read in a corpus anyway is held against samples of a like length."""

from sonde.forensics.readings import UsualSigns


def test_a_sign_that_short_samples_have_is_usual_there_and_rare_elsewhere() -> None:
    lengths = [5] * 100 + [40] * 1900
    signs = UsualSigns(lengths, [("shouting", 1.0)] * 30 + [None] * 1970)
    assert signs.share(5, 0.8, "shouting") > 0.25
    assert 0.01 < signs.share(40, 0.8, "shouting") < 0.02
    assert signs.share(40, 0.8, "markup") < 0.001


def test_of_weaker_signs_and_of_any_kind_there_are_more() -> None:
    signs = UsualSigns([20] * 1000, [("code", 0.4)] * 10 + [("table", 0.9)] * 20 + [None] * 970)
    assert signs.share(20, 0.3, "code") > 9 * signs.share(20, 0.5, "code")
    assert signs.share(20, 0.8) > 0.019
