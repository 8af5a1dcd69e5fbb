"""Ranks talking to one another."""

import math
from typing import Any

import pytest
from rank_group import run_ranks

from sonde.errors import SondeError
from sonde.ranks import any_rank, check_agreement, gather


def test_one_process_answers_for_itself() -> None:
    assert gather({"a": 1}) == [{"a": 1}]
    assert [any_rank(True), any_rank(False)] == [True, False]
    check_agreement({"seed": 1})


@pytest.mark.slow
def test_plain_data_of_any_length_reaches_every_rank() -> None:
    def work(rank: int) -> Any:
        values = gather({"rank": rank, "text": "é" * rank * 1000, "number": 2**80})
        return [[value["rank"], len(value["text"]), value["number"] == 2**80] for value in values]

    assert run_ranks(3, work) == [[[0, 0, True], [1, 1000, True], [2, 2000, True]]] * 3


@pytest.mark.slow
def test_one_rank_is_enough() -> None:
    assert run_ranks(2, lambda rank: [any_rank(rank == 1), any_rank(False)]) == [[True, False]] * 2


@pytest.mark.slow
def test_ranks_that_disagree_are_all_told_what_differs() -> None:
    def work(rank: int) -> str:
        check_agreement({"settings": {"lr": 0.1}, "nan": math.inf})
        with pytest.raises(SondeError, match="differ in data") as caught:
            check_agreement({"data": f"digest{rank}", "settings": 1})
        return caught.value.cause or ""

    for cause in run_ranks(2, work):
        assert cause == "data is 'digest0' on rank 0, 'digest1' on rank 1"
