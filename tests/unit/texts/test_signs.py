"""Signs of a text: each kind is named, ordinary text is left alone, and what is normal in a corpus
is no sign there.
"""

import quopri
import zlib

import pytest
from odd_texts import ODD, sentences

from sonde.demo.corpus import read_docstrings
from sonde.texts import signs
from sonde.texts.profile import CorpusProfile, profile_of
from sonde.texts.signs import CLEAR, find_signs, find_signs_of_all


@pytest.fixture(scope="module")
def profile() -> CorpusProfile:
    return profile_of(sentences(1, 400))


@pytest.mark.parametrize("kind", signs.KINDS)
def test_a_text_of_another_kind_is_named_as_what_it_is(profile: CorpusProfile, kind: str) -> None:
    found = find_signs(ODD[kind], profile)
    assert found, kind
    assert found[0].kind == kind
    assert found[0].strength >= CLEAR
    assert found[0].evidence


def test_text_like_the_corpus_has_no_sign(profile: CorpusProfile) -> None:
    assert [found for found in find_signs_of_all(sentences(2, 300), profile) if found] == []


def test_markup_is_no_sign_in_a_corpus_of_markup() -> None:
    pages = [
        f"<li><b>{text}</b> <i>{number}</i></li>" for number, text in enumerate(sentences(3, 200))
    ]
    assert not [
        found
        for found in find_signs_of_all(pages, profile_of(pages))
        if found and found[0].strength >= CLEAR
    ]


def test_the_language_of_the_corpus_is_never_foreign_to_it() -> None:
    captions = [
        "Un homme en chemise bleue répare une bicyclette dans la rue.",
        "Deux enfants jouent au ballon devant une vieille maison.",
        "Une femme âgée vend des légumes au marché du village.",
        "Un chien noir court sur la plage avec un bâton.",
        "Des ouvriers réparent le toit d'un grand bâtiment gris.",
        "Une petite fille regarde les bateaux depuis le port.",
    ]
    unseen = [
        "Trois musiciens jouent du tambour près d'une fontaine.",
        "Un cuisinier prépare des crêpes pour les touristes.",
        "Plusieurs cyclistes grimpent une pente raide sous la pluie.",
    ]
    profile = profile_of(captions * 30)
    assert not [
        sign
        for found in find_signs_of_all(unseen, profile)
        for sign in found
        if sign.strength >= CLEAR
    ]


def test_punctuation_of_other_scripts_is_not_garbled_text(profile: CorpusProfile) -> None:
    assert not find_signs(
        "« The old man » looks at the green river — in the morning… and says nothing。", profile
    )


def test_a_dump_in_hexadecimal_is_garbled_and_no_language(profile: CorpusProfile) -> None:
    for text in (
        "3fa91c2e 77b0d1e4 9ac01f33 e4d2aa10 5b6c7d8e f0e1d2c3",
        "0a1b2c3d4e5f 99aabbccddee 1234567890ab c0ffee00c0de",
    ):
        assert find_signs(text, profile)[0].kind == signs.GARBLED_TEXT


def test_one_tag_that_is_half_of_a_short_text_makes_it_markup(profile: CorpusProfile) -> None:
    assert find_signs('<div class="river-window"><a href="/win', profile)[0].kind == signs.MARKUP


def test_a_phrase_longer_than_sixteen_tokens_is_found_repeating(profile: CorpusProfile) -> None:
    phrase = list(range(40))
    found = find_signs("The old man walks along the green river.", profile, tokens=phrase * 4)
    assert [sign.kind for sign in found] == [signs.REPETITION]


def test_texts_of_one_batch_are_read_as_each_is_alone(profile: CorpusProfile) -> None:
    together = find_signs_of_all([*ODD.values(), "", *sentences(8, 5)], profile)
    alone = [find_signs(text, profile) for text in [*ODD.values(), "", *sentences(8, 5)]]
    assert together == alone


def test_an_empty_corpus_and_hostile_characters_raise_nothing(profile: CorpusProfile) -> None:
    assert find_signs("\ud800\U0010ffff\x00", profile)[0].kind == signs.GARBLED_TEXT
    assert find_signs_of_all([], profile) == []
    assert find_signs("anything at all", profile_of([])) is not None
    assert find_signs("", profile_of([""])) is not None


def test_bytes_of_anything_shown_as_letters_are_garbled_and_not_mis_decoded() -> None:
    profile = profile_of(
        [
            f"The {noun} of the file is read when it is opened again."
            for noun in ("name", "size", "line", "end")
        ]
        * 20
    )
    noise = zlib.compress(" ".join(str(number * number) for number in range(200)).encode()).decode(
        "latin-1"
    )
    assert find_signs(noise, profile)[0].kind != "mis_decoded"
    wrong = "Das Mädchen hört über die Straße müde zu, während der Bär gähnt.".encode().decode(
        "cp1252"
    )
    assert "mis_decoded" in [sign.kind for sign in find_signs(wrong, profile)]


def test_noise_in_latin_letters_is_noise_in_a_corpus_of_another_script_too() -> None:
    captions = [
        "Старый рыбак чинит сети на берегу реки.",
        "Двое детей играют в мяч перед домом.",
        "Пожилая женщина продаёт овощи на рынке.",
        "Чёрная собака бежит по пляжу с палкой.",
    ]
    profile = profile_of(captions * 40)
    noise = "qzxv jkpwq xvbnq wqzpt kjhgf zxqvw bvcxz qpwkz mnbvx"
    assert find_signs(noise, profile)[0].kind == signs.GARBLED_TEXT
    assert (
        find_signs("An old man repairs his nets beside the river.", profile)[0].kind
        == signs.OTHER_SCRIPT
    )


@pytest.fixture(scope="module")
def docs() -> CorpusProfile:
    """A corpus of many words."""
    return profile_of([text[:300] for text in read_docstrings(seed=7)[:600]])


_KNOWN = "return the value of the name if it is in the list and raise an error if not"
_INVENTED = "eturnray ethay aluevay ofway ethay amenay ifway itway isway inway ethay istlay"


def test_few_known_words_are_a_sign_by_themselves(docs: CorpusProfile) -> None:
    found = find_signs(_INVENTED, docs)
    assert found[0].kind in (signs.FOREIGN_LANGUAGE, signs.GARBLED_TEXT)
    assert found[0].strength >= CLEAR
    list_of_words = "thistle bassoon gondola harpoon iguana juniper kumquat lagoon mandolin nutmeg"
    [sign] = find_signs(f"{list_of_words} obelisk papyrus rhubarb", docs)
    assert sign.kind == signs.FOREIGN_LANGUAGE
    assert sign.strength >= CLEAR


def test_a_few_unknown_words_among_known_ones_are_no_sign(docs: CorpusProfile) -> None:
    assert not find_signs(f"{_KNOWN} thistle bassoon gondola harpoon iguana", docs)


def test_a_few_unknown_words_alone_are_no_sign(docs: CorpusProfile) -> None:
    assert not find_signs("thistle bassoon gondola harpoon", docs)


def test_a_corpus_of_few_words_does_not_know_those_of_its_language(profile: CorpusProfile) -> None:
    text = "return each value of that name if it was in our list and then raise some error"
    assert signs.FOREIGN_LANGUAGE not in [sign.kind for sign in find_signs(text, profile)]


@pytest.mark.parametrize("character", ["\u200b", "\u00ad", "\u2060", "\u202e", "\u200d"])
def test_invisible_characters_are_control_characters(docs: CorpusProfile, character: str) -> None:
    found = find_signs(character.join(_KNOWN), docs, tokens=list(range(40)) * 4)
    assert [sign.kind for sign in found] == [signs.CONTROL_CHARACTERS]
    assert found[0].strength >= CLEAR


def test_one_soft_hyphen_is_not_worth_showing(docs: CorpusProfile) -> None:
    found = find_signs(f"{_KNOWN} and return the excep\u00adtion", docs)
    assert all(sign.strength < CLEAR for sign in found)


def test_joiners_that_a_script_asks_for_are_no_sign(docs: CorpusProfile) -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert not find_signs(f"{_KNOWN} {family}", docs)


def test_invisible_characters_are_no_sign_in_a_corpus_that_has_them() -> None:
    texts = ["\u00ad".join(text) for text in sentences(1, 400)]
    assert not find_signs(texts[3], profile_of(texts))


def test_quoted_printable_is_no_log(docs: CorpusProfile) -> None:
    text = quopri.encodestring("Die Größe der Übertragung wäre größer für Bücher".encode())
    found = find_signs(text.decode(), docs)
    assert found[0].kind == signs.MIS_DECODED
    assert found[0].strength >= CLEAR


def test_settings_with_numbers_are_not_quoted_printable(docs: CorpusProfile) -> None:
    found = find_signs("width=80 height=24 depth=16 retry=10 size=40 of the window", docs)
    assert signs.MIS_DECODED not in [sign.kind for sign in found]
