"""The comparison of a resume with digests, without torch: every finding, on both sides."""

from pathlib import Path
from typing import Any

import pytest

from sonde.checkpoint.digest_log import (
    DigestLog,
    GeneratorDigest,
    Mode,
    MomentDigest,
    NextUpdate,
    SamplesSeen,
    StateDigest,
    TensorDigest,
    as_record,
    read_digests,
    read_digests_of_rank,
)
from sonde.checkpoint.resume_comparison import compare, find_claim
from sonde.checkpoint.resume_course import Now
from sonde.checkpoint.resume_report import (
    EVENT,
    Finding,
    ResumeReport,
    merged,
    read_reports,
)
from sonde.records.append import RecordFile
from sonde.records.journal import append_event
from sonde.records.layout import DIGESTS, RunLayout

STEP = 200


def tensor(content: str, *, norm: float = 1.0, **other: Any) -> TensorDigest:
    found = TensorDigest(content, norm, "float32", [4, 2], True)
    return found._replace(**other)


def state(step: int, **other: Any) -> StateDigest:
    """A state whose content depends on its step."""
    name = f"{step:08x}"
    given: dict[str, Any] = {
        "step": step,
        "time": float(step),
        "optimizer": "AdamW",
        "tensors": {"a": tensor(f"a{name}"), "b": tensor(f"b{name}")},
        "moments": {"exp_avg": {"a": MomentDigest(f"m{name}", 0.5)}} if step else {},
        "counts": (float(step), float(step)) if step else None,
        "rates": [0.1],
        "objects": {"scheduler": {"last_epoch": step, "base_lrs": [0.1]}},
        "generators": {"torch": GeneratorDigest(f"g{name}", 7, f"h{name}")},
        **other,
    }
    return StateDigest(**given)


def samples(first: int, *, dataset: str = "train", num: int = 4) -> SamplesSeen:
    names = [(dataset, first + place) for place in range(num)]
    return SamplesSeen(names, num, f"{dataset}{first}")


def following(step: int, **other: Any) -> NextUpdate:
    given: dict[str, Any] = {
        "step": step,
        "time": step + 0.5,
        "samples": samples(step * 4),
        "rates": [0.1],
        "generators": {"torch": GeneratorDigest(f"g{step:08x}", 7)},
        "draws": ["torch"],
        "mode": Mode(True),
        **other,
    }
    return NextUpdate(**given)


LOG = DigestLog(
    [state(0), state(100), state(STEP)], [following(0), following(100), following(STEP)]
)
RATES = dict.fromkeys(range(1, STEP + 2), 0.1)


def report(
    now: StateDigest | None = None,
    update: NextUpdate | None = None,
    *,
    log: DigestLog = LOG,
    rates: dict[int, float] | None = None,
) -> ResumeReport:
    own = now or state(STEP)
    claim = find_claim(log, own, num_updates=STEP)
    assert claim is not None
    return compare(claim, log, rates or RATES, Now(own, update or following(STEP)))


def status(found: ResumeReport, what: str) -> str:
    finding = found.finding(what)
    assert finding is not None, what
    return finding.status


def test_an_exact_resume_is_one_line() -> None:
    found = report()
    assert {finding.status for finding in found.findings} == {"same"}
    assert len(found.lines()) == 1


def test_every_part_is_compared() -> None:
    scaler = {"scale": 8.0, "_growth_tracker": 3, "growth_interval": 9}
    objects = {"scheduler": {"last_epoch": STEP}, "scaler": scaler}
    before = state(STEP, objects=objects)
    log = DigestLog([state(0), before], LOG.following)
    assert len(report(before, log=log).findings) == 10


@pytest.mark.parametrize(
    ("tensors", "expected", "words"),
    [
        (state(0).tensors, "lost", "not loaded"),
        (state(100).tensors, "lost", "of step 100"),
        ({**state(STEP).tensors, "b": state(0).tensors["b"]}, "lost", "1 of 2"),
        ({"a": tensor("?"), "b": tensor("?")}, "lost", "2 of 2"),
        ({**state(STEP).tensors, "c": tensor("new")}, "changed", "new"),
        ({"a": state(STEP).tensors["a"]}, "changed", "gone"),
        (
            {name: tensor("?", dtype="bfloat16") for name in ("a", "b")},
            "changed",
            "bfloat16",
        ),
    ],
)
def test_weights(tensors: dict[str, TensorDigest], expected: str, words: str) -> None:
    finding = report(state(STEP, tensors=tensors)).finding("weights")
    assert finding is not None
    assert finding.status == expected
    assert words in finding.text


def test_weights_with_the_norms_of_the_beginning_look_fresh() -> None:
    fresh = {name: tensor(f"other {name}", norm=1.01) for name in ("a", "b")}
    trained = {name: tensor(f"trained {name}", norm=9.0) for name in ("a", "b")}
    log = DigestLog([state(0), state(STEP, tensors=trained)], LOG.following)
    finding = report(state(STEP, tensors=fresh), log=log).finding("weights")
    assert finding is not None
    assert "freshly initialised" in finding.text


@pytest.mark.parametrize(
    ("moments", "counts", "expected", "words"),
    [
        ({}, None, "lost", "EMPTY"),
        ({"exp_avg": {"a": MomentDigest("0", 0.0)}}, (200.0, 200.0), "lost", "step count is 200"),
        ({"exp_avg": {"a": MomentDigest("m00000064", 0.5)}}, (100.0, 100.0), "lost", "step 100"),
        ({"exp_avg": {"a": MomentDigest("?", 0.7)}}, (200.0, 200.0), "lost", "0.7, was 0.5"),
    ],
)
def test_moments(moments: Any, counts: Any, expected: str, words: str) -> None:
    finding = report(state(STEP, moments=moments, counts=counts)).finding("moments")
    assert finding is not None
    assert finding.status == expected
    assert words in finding.text


def test_another_optimizer_is_a_fact() -> None:
    found = report(state(STEP, optimizer="SGD", moments={}, counts=None))
    assert status(found, "moments") == "changed"
    assert found.finding("step count") is None


def test_moments_of_a_frozen_tensor_are_not_missed() -> None:
    frozen = {"a": state(STEP).tensors["a"]._replace(is_trainable=False)}
    tensors = {**state(STEP).tensors, **frozen}
    found = report(state(STEP, tensors=tensors, moments={}))
    assert found.finding("moments") is None
    assert status(found, "trainable") == "changed"


def test_a_step_count_of_another_step_is_lost() -> None:
    assert status(report(state(STEP, counts=(150.0, 150.0))), "step count") == "lost"


def test_another_rate_is_a_fact() -> None:
    assert status(report(update=following(STEP, rates=[0.05])), "rate") == "changed"


def test_the_rate_of_the_beginning_is_a_schedule_that_began_again() -> None:
    rates = {step: 0.001 * step for step in range(1, STEP + 2)}
    before = state(STEP, objects={}, rates=[0.2])
    log = DigestLog([state(0), before], [following(0), following(STEP, rates=[0.201])])
    now = state(STEP, objects={})
    again = report(now, following(STEP, rates=[0.001]), log=log, rates=rates).finding("rate")
    assert again is not None
    assert again.status == "lost"
    off = report(now, following(STEP, rates=[0.2]), log=log, rates=rates).finding("rate")
    assert off is not None
    assert "step 200" in off.text


def test_a_rate_that_the_loop_sets_before_each_step_may_move_as_it_did() -> None:
    rates = {step: 1.0 - 0.001 * step for step in range(1, STEP + 1)}
    before = state(STEP, objects={}, rates=[rates[STEP]])
    log = DigestLog([state(0), before], [following(0)])
    now = state(STEP, objects={})
    next_rate = following(STEP, rates=[1.0 - 0.001 * (STEP + 1)])
    assert status(report(now, next_rate, log=log, rates=rates), "rate") == "same"
    far = following(STEP, rates=[0.5])
    assert status(report(now, far, log=log, rates=rates), "rate") == "changed"


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ({"last_epoch": 0, "base_lrs": [0.1]}, "lost"),
        ({"last_epoch": 190, "base_lrs": [0.1]}, "lost"),
        ({"last_epoch": STEP, "base_lrs": [0.3]}, "changed"),
        ({"last_epoch": STEP, "base_lrs": [0.1], "_step_count": 1}, "same"),
    ],
)
def test_schedule(scheduler: dict[str, Any], expected: str) -> None:
    found = report(state(STEP, objects={"scheduler": scheduler}))
    assert status(found, "schedule") == expected


@pytest.mark.parametrize(
    ("scaler", "expected"),
    [
        ({"scale": 64.0, "_growth_tracker": 0}, "lost"),
        ({"scale": 128.0, "_growth_tracker": 5}, "changed"),
        ({"scale": 8.0, "_growth_tracker": 3}, "same"),
    ],
)
def test_scaler(scaler: dict[str, Any], expected: str) -> None:
    def with_scaler(step: int, **values: Any) -> StateDigest:
        return state(step, objects={"scaler": {"growth_interval": 9, **values}})

    first = with_scaler(0, scale=64.0, _growth_tracker=0)
    before = with_scaler(STEP, scale=8.0, _growth_tracker=3)
    log = DigestLog([first, before], LOG.following)
    assert status(report(with_scaler(STEP, **scaler), log=log), "scaler") == expected


@pytest.mark.parametrize(
    ("seen", "expected", "words"),
    [
        (samples(0), "lost", "starts over"),
        (samples(100 * 4), "lost", "another place"),
        (samples(900), "lost", "are left out"),
        (samples(600), "lost", "come again"),
        (samples(5, dataset="more"), "changed", "other samples"),
        (samples(STEP * 4, num=2), "same", ""),
        (None, "unknown", "cannot tell"),
    ],
)
def test_data(seen: SamplesSeen | None, expected: str, words: str) -> None:
    finding = report(update=following(STEP, samples=seen)).finding("data")
    assert finding is not None
    assert finding.status == expected
    assert words in finding.text


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (samples(800), "same"),
        (samples(900), "lost"),
        (samples(0), "changed"),
        (samples(796), "lost"),
        (samples(3, dataset="content"), "unknown"),
    ],
)
def test_data_of_a_run_that_ended_at_its_checkpoint(seen: SamplesSeen, expected: str) -> None:
    last = [samples(788), samples(792), samples(796)]
    if seen.first[0][0] == "content":
        last = [samples(1, dataset="content"), samples(2, dataset="content")]
    before = state(STEP, last_samples=last)
    log = DigestLog([state(0), before], [following(0)])
    found = report(before, following(STEP, samples=seen), log=log)
    assert status(found, "data") == expected


@pytest.mark.parametrize(
    ("generator", "draws", "expected"),
    [
        (GeneratorDigest("other", 7), ["torch"], "lost"),
        (GeneratorDigest("other", 7), [], "changed"),
        (GeneratorDigest("g000000c8", 9), ["torch"], "changed"),
        (GeneratorDigest("g000000c8", 7), ["torch"], "same"),
    ],
)
def test_generators(generator: GeneratorDigest, draws: list[str], expected: str) -> None:
    update = following(STEP, generators={"torch": generator}, draws=draws)
    assert status(report(update=update), "generators") == expected


@pytest.mark.parametrize(
    ("block", "expected"), [("g000000c8", "same"), ("h000000c8", "same"), ("other", "lost")]
)
def test_numbers_that_are_drawn_for_the_first_batch_are_no_loss(block: str, expected: str) -> None:
    log = DigestLog([state(0), state(STEP)], [following(0)])
    update = following(STEP, generators={"torch": GeneratorDigest(block, 30)})
    assert status(report(update=update, log=log), "generators") == expected


def test_a_generator_that_nothing_draws_from_is_not_compared() -> None:
    host = {"python": GeneratorDigest("x", 1), **following(STEP).generators}
    log = DigestLog([state(0), state(STEP)], [following(0), following(STEP, generators=host)])
    other = {**host, "python": GeneratorDigest("y", 1)}
    assert status(report(update=following(STEP, generators=other), log=log), "generators") == "same"


@pytest.mark.parametrize(
    ("own", "expected"),
    [(Mode(False), "lost"), (Mode(True, ["norm"]), "changed"), (Mode(True), "same")],
)
def test_mode(own: Mode, expected: str) -> None:
    assert status(report(update=following(STEP, mode=own)), "mode") == expected


def test_a_fresh_start_claims_nothing() -> None:
    assert find_claim(LOG, state(0), num_updates=0) is None
    assert find_claim(LOG, state(0, tensors={"a": tensor("?")}), num_updates=0) is None


def test_a_resume_is_claimed_by_its_number_its_weights_or_its_step_count() -> None:
    by_number = find_claim(LOG, state(0), num_updates=STEP)
    by_weights = find_claim(LOG, state(STEP, counts=None), num_updates=0)
    by_count = find_claim(LOG, state(STEP, tensors=state(0).tensors), num_updates=0)
    kinds = [claim and (claim.kind, claim.step) for claim in (by_number, by_weights, by_count)]
    assert kinds == [("number", STEP), ("weights", STEP), ("step count", STEP)]


def test_without_a_digest_of_the_step_little_is_known() -> None:
    log = DigestLog([state(0)], [following(0)])
    well = report(log=log)
    assert not well.lost
    assert status(well, "weights") == "unknown"
    bad = report(state(STEP, moments={}, counts=None), log=log)
    assert [finding.what for finding in bad.lost] == ["moments"]
    fresh = report(state(STEP, tensors=state(0).tensors), log=log)
    assert [finding.what for finding in fresh.lost] == ["weights"]
    again = report(state(STEP, objects={"scheduler": {"last_epoch": 0}}), log=log)
    assert [finding.what for finding in again.lost] == ["schedule"]
    evaluating = report(update=following(STEP, mode=Mode(False)), log=log)
    assert [finding.what for finding in evaluating.lost] == ["mode"]
    over = report(update=following(STEP, samples=samples(0)), log=log)
    assert status(over, "data") == "changed"


def test_without_a_digest_a_tensor_of_the_beginning_is_known_if_training_changed_it() -> None:
    log = DigestLog([state(0), state(100)], [following(0)])
    tensors = {**state(STEP).tensors, "b": state(0).tensors["b"]}
    finding = report(state(STEP, tensors=tensors), log=log).finding("weights")
    assert finding is not None
    assert finding.status == "lost"


def test_a_part_is_accepted_with_the_one_it_comes_with() -> None:
    lost = report(state(STEP, moments={}, counts=None)).accepting(["moments"])
    assert not lost.lost
    assert status(lost, "step count") == "expected"


def test_the_worst_finding_of_all_ranks_counts() -> None:
    well = report().as_details()
    bad = report(state(STEP, moments={}, counts=None)).as_details()
    found = merged([well, bad]).finding("moments")
    assert found is not None
    assert "rank 1" in found.text
    blind = ResumeReport(
        step=STEP,
        from_step=STEP,
        claim="number",
        findings=[Finding(what="weights", status="unknown", text="")],
    )
    assert status(merged([well, blind.as_details()]), "weights") == "same"


def test_reports_and_digests_read_back_as_they_were_written(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.records.mkdir()
    with RecordFile(layout.record_file(DIGESTS, 0)) as file:
        for digest in LOG.states:
            file.append(as_record(digest))
        for update in LOG.following:
            file.append(as_record(update))
    log = read_digests(tmp_path)
    assert [known.tensors for known in log.states] == [known.tensors for known in LOG.states]
    assert report(log=log) == report()
    found = report(state(STEP, moments={}, counts=None))
    append_event(tmp_path, EVENT, **found.as_details())
    assert [read.lines() for read in read_reports(tmp_path)] == [found.lines()]


def test_a_rank_without_a_digest_takes_the_weights_of_rank_0(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.records.mkdir()
    with RecordFile(layout.record_file(DIGESTS, 0)) as file:
        file.append(as_record(state(STEP)))
    log = read_digests_of_rank(tmp_path, 1)
    assert log.states[0].tensors == state(STEP).tensors
    assert not log.states[0].generators
