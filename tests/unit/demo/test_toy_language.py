"""The made-up language keeps its own rules."""

from sonde.demo.corpus import make_pairs


def test_the_same_seed_makes_the_same_sentences() -> None:
    assert make_pairs(50, seed=3) == make_pairs(50, seed=3)
    assert make_pairs(50, seed=3) != make_pairs(50, seed=4)


def test_no_sentence_comes_twice_and_no_two_have_one_translation() -> None:
    pairs = make_pairs(3000, seed=1)
    assert len({english for english, _ in pairs}) == 3000
    assert len({velan for _, velan in pairs}) == 3000


def test_the_verb_comes_last_and_agrees_with_its_subject() -> None:
    for english, velan in make_pairs(500, seed=2):
        is_plural = english.split()[0] == "some"
        if english.split()[0] in ("a", "an", "some"):
            assert velan.split()[-1].endswith(("aren", "iten") if is_plural else ("ar", "it")), english


def test_a_place_is_said_first_and_adjectives_follow_their_noun() -> None:
    english, velan = make_pairs(3, seed=1)[-1]
    assert english == "the king loves some new tables beyond a happy child"
    assert velan == "belgu mentu nesp le desku nilgon letdon savtar"
