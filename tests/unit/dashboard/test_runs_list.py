"""The list of runs: filtered, sorted both ways, in groups, with columns of one's own."""

import re
from pathlib import Path

import pytest

from sonde.dashboard.folder import RunFolder
from sonde.dashboard.outliers import num_standing_out, tail_limit
from sonde.dashboard.run_filter import matches
from sonde.dashboard.runs_page import ListQuery, runs_page
from sonde.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Four runs: `a/one` to `a/three` with a setting each, and `alone`, whose log is damaged."""
    root = tmp_path_factory.mktemp("list")
    for number, name in enumerate(("a/one", "a/two", "a/three", "alone")):
        settings = {"lr": 10.0**-number, "opt": {"name": "adam" if number % 2 else "sgd"}}
        with Run(root / name, config=settings) as run:
            for step in range(1, 11):
                values = {"train/loss": number + 1 / step, "acc": abs(step - 5) / 10}
                run.logger.log(step, values)
            run.logger.log(10, {"eval/bleu": 20.0 + number})
    path = root / "alone" / "records" / "log.rank0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"garbage\n", *lines[5:]]))
    return RunFolder(root)


def names(page: str) -> list[str]:
    return re.findall(r'name="run" value="([^"]*)"', page)


def found(folder: RunFolder, query: str) -> set[str]:
    return {row.name for row in folder.rows() if matches(row, query)}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("lr=0.1", {"a/two"}),
        ("lr=1e-1", {"a/two"}),
        ("lr<0.5 opt.name=sgd", {"a/three"}),
        ("lr>=0.1", {"a/one", "a/two"}),
        ("opt.name!=adam", {"a/one", "a/three"}),
        ("opt.name=ad*", {"a/two", "alone"}),
        ("status=finished name=al*", {"alone"}),
        ("loss<1.5", {"a/one", "a/two"}),
        ("nosuch=1", set()),
        ("two", {"a/two"}),
        ("a/t adam", {"a/two"}),
    ],
)
def test_words_and_conditions_find_runs(folder: RunFolder, query: str, expected: set[str]) -> None:
    assert found(folder, query) == expected


def test_the_loss_is_shown_although_the_last_record_is_an_evaluation(folder: RunFolder) -> None:
    assert [row.loss for row in folder.rows()] == [0.1, 2.1, 1.1, 3.1]  # one, three, two, alone


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("loss", ["a/one", "a/two", "a/three", "alone"]),
        ("-loss", ["alone", "a/three", "a/two", "a/one"]),
        ("name", ["a/one", "a/three", "a/two", "alone"]),
        ("set:lr", ["alone", "a/three", "a/two", "a/one"]),
        ("-last:eval/bleu", ["alone", "a/three", "a/two", "a/one"]),
        ("low:loss", ["a/one", "a/two", "a/three", "alone"]),
    ],
)
def test_every_column_sorts_both_ways(folder: RunFolder, sort: str, expected: list[str]) -> None:
    assert names(runs_page(folder, ListQuery(sort=sort, group="none"))) == expected


def test_a_title_leads_to_the_other_direction(folder: RunFolder) -> None:
    page = runs_page(folder, ListQuery(sort="loss"))
    assert '<th class="n" aria-sort="ascending"><a href="/?sort=-loss"' in page
    page = runs_page(folder, ListQuery(sort="-loss"))
    assert '<th class="n" aria-sort="descending"><a href="/?sort=loss"' in page


def test_columns_are_chosen_and_kept_in_every_link(folder: RunFolder) -> None:
    columns = ("set:lr", "low:acc", "high:acc", "last:eval/bleu")
    page = runs_page(folder, ListQuery(columns=columns, search="two"))
    row = page[page.index('data-key="a/two"') :]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    assert cells == ["0.1", "0", "0.5", "21"]
    assert "col=set%3Alr&amp;col=low%3Aacc" in page
    assert "lowest acc" in page


def test_folders_fold_and_groups_follow_a_setting(folder: RunFolder) -> None:
    page = runs_page(folder, ListQuery())
    assert "▾ a</a>" in page
    assert names(page)[0:1] == ["alone"]
    assert 'href="/?fold=a"' in page
    page = runs_page(folder, ListQuery(folded=("a",)))
    assert names(page) == ["alone"]
    assert "▸ a</a>" in page
    assert "3 runs" in page
    page = runs_page(folder, ListQuery(group="opt.name"))
    assert "opt.name = adam" in page
    assert "opt.name = sgd" in page


def test_a_page_has_a_hundred_rows_and_folded_groups_take_none(tmp_path: Path) -> None:
    for number in range(130):
        (tmp_path / f"b/run-{number:03d}").mkdir(parents=True)
        (tmp_path / f"b/run-{number:03d}" / "run.json").write_text("{}")
    with Run(tmp_path / "zzz"):
        pass
    many = RunFolder(tmp_path)
    page = runs_page(many, ListQuery(sort="name"))
    assert '<span class="note">130 runs</span>' in page
    first = names(page)
    second = names(runs_page(many, ListQuery(sort="name", page=2)))
    assert (len(first), len(second)) == (100, 31)
    assert not set(first) & set(second)
    assert names(runs_page(many, ListQuery(sort="name", folded=("b",)))) == ["zzz"]


def test_details_count_events_and_damage(folder: RunFolder) -> None:
    details = folder.details("alone")
    assert (details.num_events, details.cause, details.num_damaged) == (0, "", 1)
    assert folder.details("a/one").num_damaged == 0
    assert folder.extremes("a/one", "acc") == (0.0, 0.5)
    assert folder.extremes("a/one", "loss") == (0.1, 1.0)
    assert folder.extremes("a/one", "nothing") is None


def test_only_what_stands_out_of_a_tail_is_offered() -> None:
    usual = [2.5, 2.4, 2.3, 2.2, 2.1, 2.0, 2.0, 1.9, 1.9, 1.8, 1.8, 1.7, 1.7, 1.6, 1.5, 1.4]
    assert num_standing_out(usual) == 0
    assert num_standing_out([17.0, 16.0, *usual]) == 2
    heavy = [5.1, 4.9, 4.9, 4.8, 4.6, 4.2, 4.2, 4.1, 4.1, 4.0, 4.0, 3.8, 3.7, 3.6]
    assert num_standing_out(heavy) == 0
    assert num_standing_out([12.0, 0.5, 0.2, 0.1, -0.3]) == 1
    assert num_standing_out([2.9, 0.5]) == 0
    assert num_standing_out([]) == 0
    assert tail_limit([1.0] * 9) == float("-inf")
