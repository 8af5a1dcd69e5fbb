"""Search settings that cannot work are refused when they are made."""

from typing import Any

import pytest

from sonde.errors import SettingError
from sonde.generate.settings import SearchSettings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam is 0"),
        ({"beam": 2.0}, r"beam is 2\.0"),
        ({"n_best": 6}, "n_best is 6, more than beam 5"),
        ({"max_len": -1}, "max_len is -1"),
        ({"max_len_ratio": -0.5}, r"max_len_ratio is -0\.5"),
        ({"min_len_ratio": float("nan")}, "min_len_ratio is nan"),
        ({"length_penalty": float("inf")}, "length_penalty is inf"),
        ({"temperature": 0.0}, r"temperature is 0\.0"),
        ({"stop": "early"}, "stop is 'early'"),
        ({"diverse_groups": 2}, "does not fall into 2 equal groups"),
        ({"pad": 2}, "pad and eos are both 2"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram is -1"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_its_value(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        SearchSettings(**options)


def test_lengths_grow_with_the_source_and_the_smallest_never_passes_the_largest() -> None:
    settings = SearchSettings(max_len=3, max_len_ratio=1.5, min_len=1, min_len_ratio=2.0)
    assert (settings.longest(4), settings.shortest(1)) == (9, 3)
    assert settings.shortest(100) == settings.longest(100)


def test_the_start_token_is_the_end_token_unless_given() -> None:
    assert SearchSettings().start_token == 2
    assert SearchSettings(start=0).start_token == 0
