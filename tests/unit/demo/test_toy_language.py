"""The made-up language keeps its own rules."""

from sonde.demo.corpus import make_pairs


def test_the_same_seed_makes_the_same_sentences() -> None:
    assert make_pairs(50, seed=3) == make_pairs(50, seed=3)
    assert make_pairs(50, seed=3) != make_pairs(50, seed=4)


def test_no_sentence_comes_twice_and_no_two_have_one_translation() -> None:
    pairs = make_pairs(3000, seed=1)
    assert len({english for english, _ in pairs}) == 3000
    assert len({velan for _, velan in pairs}) == 3000


def test_adjectives_agree_with_their_noun_in_number() -> None:
    for english, velan in make_pairs(500, seed=2):
        num_plurals = sum(word.endswith("s") for word in english.split())
        assert sum(word.endswith("on") for word in velan.split()) == 2 * num_plurals, english


def test_a_place_is_said_first_the_verb_last_and_adjectives_follow_their_noun() -> None:
    english, velan = make_pairs(6, seed=1)[-1]
    assert english == "the dark king cleaned the new rivers beyond the strong cats"
    assert velan == "cekon sklumbon diyumg pomb gelp lofilon miwon criemig"
