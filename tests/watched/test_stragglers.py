"""Ranks side by side, from logs whose truth is known."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.contracts.watched_run import RunBasis, RunFinding, RunSaving, WatchedRun
from diagnose.facts.core.base import Missing
from diagnose.facts.watched.log import RunFacts
from diagnose.facts.watched.series import _rank_sum_chance, changed, grows, risen, stretches
from diagnose.facts.watched.side_by_side import side_by_side
from diagnose.reports import terminal
from diagnose.trace.run_log import RunLog
from diagnose.watched.assembly import watched_run
from tests.rules import built_in
from tests.watched.logs import MS, S, column, interval, log, noise, recorded, windows, with_columns

RULE = built_in("stragglers_and_restarts")
USUAL = {"loader": 2 * MS, "forward": 20 * MS, "backward": 40 * MS, "optimizer": 10 * MS, "rest": 8 * MS}


def job(folder: Path, world: int, slow: str = "", since: int = 0, share: float = 0.02) -> list[RunLog]:
    """Of 500 steps on each rank. On rank 1 a part takes 20 ms more from a step on: all others wait in backward."""
    logs = []
    factors = [noise(seed, share) for seed in range(world)]
    each = [[[int(ns * next(factor)) for ns in USUAL.values()] for _ in range(500)] for factor in factors]
    own = np.array(each)  # rank, step, part
    at = list(USUAL).index(slow) if slow else 0
    own[1, since:, at] += 20 * MS * bool(slow)
    alone = own.sum(axis=2)
    waits = alone.max(axis=0) - alone
    own[:, :, list(USUAL).index("backward")] += waits
    for rank in range(world):
        some = [
            interval(int(row.sum()), **{name: int(ns) for name, ns in zip(USUAL, row, strict=True) if name != "rest"})
            for row in own[rank]
        ]
        logs.append(recorded(folder, some, rank, world))
    return logs


def stragglers(logs: list[RunLog]) -> list[RunFinding]:
    return [
        one for one in RULE.check.run(logs=logs, attempts=logs[:1], facts=RunFacts(logs)) if one.kind == "straggler"
    ]


def lost_ranks(logs: list[RunLog]) -> list[RunFinding]:
    return list(RULE.module._lost_ranks(logs))


def told(one: RunFinding) -> str:
    return " ".join(evidence.text for evidence in one.evidence)


def test_columns_are_compared_by_the_steps_that_ranks_make_together(tmp_path: Path) -> None:
    # Of other lengths in other windows: 20 ms and 30 ms each step.
    logs = [
        recorded(tmp_path, [interval(ms * MS, forward=ms * MS // 2)] * 1000, at, 2) for at, ms in enumerate((20, 30))
    ]
    assert len(logs[0].windows) != len(logs[1].windows)
    table = side_by_side(RunFacts(logs))
    assert table.ranks == (0, 1)
    assert np.allclose(table.step, [[20 * MS], [30 * MS]])
    assert np.allclose(table.parts["forward"], [[10 * MS], [15 * MS]])
    assert np.allclose(table.parts["rest"], [[10 * MS], [15 * MS]])


@pytest.mark.parametrize("slow", ["loader", "forward", "optimizer", "rest"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_that_is_slow_all_along(tmp_path: Path, slow: str, world: int) -> None:
    logs = job(tmp_path, world, slow)
    steps = [one.windows[5].of("step").sum_ns / one.windows[5].steps for one in logs]
    assert max(steps) < 1.01 * min(steps)  # All steps are equally long.
    (one,) = stragglers(logs)
    assert one.title == "Straggler: rank 1"
    # 500 steps of 20 ms more than the next slowest rank, which noise brings a little nearer.
    assert one.saving.high_ns == pytest.approx(500 * 20 * MS, rel=0.06)
    assert one.saving.likely_ns == pytest.approx(0.7 * one.saving.high_ns)  # Ranks without a device share a machine.
    names = {"loader": "waiting for data", "forward": "the forward pass", "optimizer": "the optimizer step"}
    assert f"The extra time is in {names.get(slow, 'other code in the loop')}" in told(one)
    assert "The other ranks wait in their backward passes" in told(one)


def test_a_rank_that_gets_slow(tmp_path: Path) -> None:
    (one,) = stragglers(job(tmp_path, 4, "forward", since=250))
    text = told(one)
    since = int(text.split("From step ")[1].split(" ")[0])
    assert abs(since - 250) <= 500 / 24
    assert one.saving.high_ns == pytest.approx(250 * 20 * MS, rel=0.1)


def test_a_rank_that_is_slow_in_its_backward_pass_only_cannot_be_told(tmp_path: Path) -> None:
    assert stragglers(job(tmp_path, 4, "backward")) == []


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("world", [2, 8])
def test_ranks_alike_have_no_straggler(tmp_path: Path, share: float, world: int) -> None:
    assert stragglers(job(tmp_path, world, share=share)) == []


def test_with_a_gpu_the_rest_of_the_step_may_be_waiting(tmp_path: Path) -> None:
    logs = [
        replace(one, windows=tuple(with_columns(w, device=column(w.steps, w.of("step").sum_ns)) for w in one.windows))
        for one in job(tmp_path, 4, "rest")
    ]
    assert stragglers(logs) == []


def test_what_cannot_be_compared_says_so(tmp_path: Path) -> None:
    first, second = job(tmp_path, 2)
    with pytest.raises(Missing, match="fewer than two ranks have a log"):
        stragglers([first])
    with pytest.raises(Missing, match="the log of a rank is damaged"):
        stragglers([first, replace(second, windows=(*second.windows[:3], *second.windows[4:]))])
    with pytest.raises(Missing, match="at least 7 windows"):
        stragglers([first, replace(second, windows=second.windows[:4])])
    with pytest.raises(Missing, match="at least 17 windows"):  # So few do not show a rank that gets slow.
        stragglers([first, replace(second, windows=second.windows[:10])])


def test_ranks_that_are_lost(tmp_path: Path) -> None:
    first, second = (replace(one, world_size=4, length_ns=100 * S) for one in job(tmp_path, 2))
    early = replace(second, length_ns=80 * S)
    (one,) = lost_ranks([first, early])
    assert told(one) == (
        "2 of 4 ranks have no log (ranks 2-3): lost before the first step, or writing to another folder."
        " The log of rank 1 ends 20.0 s before the last rank's."
    )
    assert one.saving == RunSaving(0, 0, 0, RunBasis.NONE)
    late = replace(second, world_size=2, started_unix_ns=90 * S, length_ns=10 * S)
    (one,) = lost_ranks([replace(first, world_size=2), late])
    assert told(one) == "Rank 1 started 1 min 30 s after the first rank."
    assert lost_ranks([replace(first, world_size=2), replace(second, world_size=2)]) == []
    (many,) = lost_ranks([replace(first, world_size=1 << 40)])
    assert told(many).startswith("1,099,511,627,775 of 1,099,511,627,776 ranks have no log (ranks 1-8 and more)")


def test_a_job_is_shown_as_one(tmp_path: Path) -> None:
    found = watched_run(job(tmp_path, 2, "forward"))
    assert found.findings[0].kind == "straggler"
    text = terminal.watched(found, 100, details=True)
    assert "Rank 0 of 2 (2 with a log): 501 steps" in text
    assert re.search(r"rank 1 +501 +51\.\d s +100 ms +2\.0\d ms +40\.\d ms +40\.\d ms +10\.\d ms", text)


def test_slower_steps_that_a_straggler_explains_are_no_finding_of_their_own(tmp_path: Path) -> None:
    logs = job(tmp_path, 4, "forward", since=200)
    assert [one.kind for one in watched_run(logs[:1]).findings] == ["slower_steps", "lost_rank"]
    assert [one.kind for one in watched_run(logs).findings] == ["straggler"]


def attempt(began_s: int, ended: str | None, saves_in: int | None = 2) -> RunLog:
    """It takes a second to its first step, then makes 100 steps in each of five seconds, and saves in one of them."""
    some = list(windows([10 * MS] * 5, steps=100))
    if saves_in is not None:
        some[saves_in] = with_columns(some[saves_in], save=column(1, 1))
    return log(tuple(some), started_unix_ns=began_s * S, ended=ended)


def of(*attempts: RunLog) -> WatchedRun:
    return watched_run([attempts[-1]], attempts[:-1])


def test_what_was_trained_after_the_last_checkpoint_is_lost() -> None:
    """The first attempt ends at second 6, and the next one's first step at second 11, as it starts at 10.
    The checkpoint is in the third of five seconds: 2 to 3 s are lost, 250 of 500 steps if it was in the middle."""
    found = of(attempt(0, "crashed"), attempt(10, "itself"))
    (one,) = [finding for finding in found.findings if finding.kind == "restarts"]
    saving = one.saving
    assert RunSaving(7 * S, 7_500 * MS, 10 * S, saving.basis) == saving
    assert one.title == "The training restarted once"
    assert one.evidence[0].text == "5.00 s passed between the last steps of attempts and the first steps of the next."
    assert one.evidence[1].text == "About 250 steps (2.50 s) came after the last checkpoint."
    (known,) = found.attempts
    assert (known.length_ns, known.steps, known.ended, known.saved_steps) == (6 * S, 501, "crashed", 251)
    shown = terminal.watched(found, 80, details=True)
    assert "saves 7.5 s (7.0 s to 10 s), 47 %" in shown  # Of 16 s.
    assert "1: ended with an error" in shown


def test_without_a_checkpoint_all_is_lost() -> None:
    found = of(attempt(0, None, saves_in=None), attempt(6, "itself"))
    (one,) = [finding for finding in found.findings if finding.kind == "restarts"]
    assert (one.saving.low_ns, one.saving.likely_ns, one.saving.high_ns) == (6 * S, 6 * S, 6 * S)
    assert one.evidence[1].text.endswith("Not every attempt saved a checkpoint.")
    assert "1: killed" in terminal.watched(found, 80, details=True)


def test_one_that_ended_by_itself_was_no_failure() -> None:
    for found in (of(attempt(0, "itself"), attempt(10, "itself")), of(attempt(0, None))):
        assert "stragglers_and_restarts" in {other.rule for other in found.not_found}


def test_values_that_rise_all_along() -> None:
    found = risen([100 + 10 * k for k in range(12)])
    # The medians of the first three and of the last three.
    assert (found.first, found.last, found.each) == (110, 200, 10)
    assert found.chance < 1e-7
    assert risen([110 - k for k in range(12)]) is None
    assert risen([100, 101, 102]) is None


@pytest.mark.parametrize(
    "values",
    [
        [100] * 12,
        [100, 104, 98, 101, 99, 103, 97, 102, 100, 98, 104, 101],
        [100] * 6 + [150] * 6,
        [150, 140, 130, 120, 110, 100] * 2,
        [100, 101, 102, 103, 104, 105, 106, 107, 108, 108.5, 108.7, 108.9],
    ],
    ids=["alike", "noise", "changed once", "saw", "too little"],
)
def test_values_that_do_not_rise_all_along(values: list[float]) -> None:
    assert risen(values) is None


def test_values_that_are_more_from_one_position_on() -> None:
    found = changed([10, 11, 10, 9, 10, 10, 11, 9, 10, 10, *[13, 12, 13, 14] * 3])
    assert (found.at, found.before, found.after) == (10, 10, 13)
    # All pairs in order: one of C(22, 10) ways to put ten of 22 first, at 21 positions.
    assert found.chance == pytest.approx(21 / 646_646)
    assert changed([13.0] * 10 + [10.0] * 10) is None
    assert changed([10.0] * 10 + [10.9] * 10) is None
    assert changed([10.0] * 3 + [13.0] * 3) is None  # One of 20 ways: it may be chance.


def test_what_grows_is_told_from_what_changes_once() -> None:
    factors = noise(3, 0.02)
    assert grows([(100 + 3 * k) * next(factors) for k in range(48)])
    assert not grows([(100 if k < 30 else 150) * next(factors) for k in range(48)])


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 4), (4, 3)])
def test_the_chance_is_that_of_all_orders(first: int, second: int) -> None:
    whole = range(first + second)
    lost = [sum(a > b for a in some for b in whole if b not in some) for some in combinations(whole, first)]
    for most in range(first * second + 1):
        expected = sum(one <= most for one in lost) / len(lost)
        assert _rank_sum_chance(first, second, most) == pytest.approx(expected)


def test_a_stretch_has_the_usual_step_and_the_parts_of_the_mean_one() -> None:
    some = tuple(with_columns(one, forward=column(10, 400 * MS)) for one in windows([100 * MS] * 48))
    found, _ = stretches(RunFacts([log(some)]))
    assert len(found) == 24
    assert (found[1].first_step, found[1].steps, found[1].began_ns, found[1].ended_ns) == (21, 20, 3 * S, 5 * S)
    assert (found[1].step_ns, found[1].parts_ns["forward"], found[1].parts_ns["rest"]) == (100 * MS, 40 * MS, 60 * MS)
