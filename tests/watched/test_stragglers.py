"""Ranks side by side, from logs whose truth is known."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diagnose.contracts.watched_run import RunBasis, RunFinding, RunFindingKind, RunSaving
from diagnose.reports import terminal
from diagnose.trace.run_log import RunLog
from diagnose.watched.assembly import watched_run
from diagnose.watched.pricing import CannotTell
from diagnose.watched.stragglers import lost_ranks, side_by_side, stragglers
from tests.watched.logs import MS, S, column, interval, noise, recorded, with_columns

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


def told(one: RunFinding) -> str:
    return " ".join(evidence.text for evidence in one.evidence)


def test_columns_are_compared_by_the_steps_that_ranks_make_together(tmp_path: Path) -> None:
    # Of other lengths in other windows: 20 ms and 30 ms each step.
    logs = [
        recorded(tmp_path, [interval(ms * MS, forward=ms * MS // 2)] * 1000, at, 2) for at, ms in enumerate((20, 30))
    ]
    assert len(logs[0].windows) != len(logs[1].windows)
    table = side_by_side(logs)
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
    assert one.title == "Rank 1 is slower than the others"
    # 500 steps of 20 ms more than the next slowest rank, which noise brings a little nearer.
    assert one.saving.high_ns == pytest.approx(500 * 20 * MS, rel=0.06)
    assert one.saving.likely_ns == pytest.approx(0.7 * one.saving.high_ns)  # Ranks without a device share a machine.
    names = {"loader": "waiting for data", "forward": "the forward pass", "optimizer": "the optimizer step"}
    assert f"What takes longer there is {names.get(slow, 'what the script does')}" in told(one)
    assert "they wait for it there" in told(one)


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
    with pytest.raises(CannotTell, match="fewer than two ranks have a log"):
        stragglers([first])
    with pytest.raises(CannotTell, match="the log of a rank is damaged"):
        stragglers([first, replace(second, windows=(*second.windows[:3], *second.windows[4:]))])
    with pytest.raises(CannotTell, match="too few windows"):
        stragglers([first, replace(second, windows=second.windows[:4])])
    with pytest.raises(CannotTell, match="it takes 17"):  # So few do not show a rank that gets slow.
        stragglers([first, replace(second, windows=second.windows[:10])])


def test_ranks_that_are_lost(tmp_path: Path) -> None:
    first, second = (replace(one, world_size=4, length_ns=100 * S) for one in job(tmp_path, 2))
    early = replace(second, length_ns=80 * S)
    (one,) = lost_ranks([first, early])
    assert told(one) == (
        "2 of 4 ranks have no log (ranks 2-3): lost before the first step, or its node writes into another folder."
        " The log of rank 1 ends 20.0 s before that of the last one."
    )
    assert one.saving == RunSaving(0, 0, 0, RunBasis.NONE)
    late = replace(second, world_size=2, started_unix_ns=90 * S, length_ns=10 * S)
    (one,) = lost_ranks([replace(first, world_size=2), late])
    assert told(one) == "Rank 1 was started 1 min 30 s after the first one."
    assert lost_ranks([replace(first, world_size=2), replace(second, world_size=2)]) == []
    (many,) = lost_ranks([replace(first, world_size=1 << 40)])
    assert told(many).startswith("1,099,511,627,775 of 1,099,511,627,776 ranks have no log (ranks 1-8 and more)")


def test_a_job_is_shown_as_one(tmp_path: Path) -> None:
    found = watched_run(job(tmp_path, 2, "forward"))
    assert found.findings[0].kind is RunFindingKind.STRAGGLER
    text = terminal.watched(found, 100)
    assert "Rank 0 of 2; 2 have a log. 501 steps" in text
    assert re.search(r"rank 1 +501 +51\.\d s +100 ms +2\.0\d ms +40\.\d ms +40\.\d ms +10\.\d ms", text)


def test_slower_steps_that_a_straggler_explains_are_no_finding_of_their_own(tmp_path: Path) -> None:
    logs = job(tmp_path, 4, "forward", since=200)
    assert [one.kind for one in watched_run(logs[:1]).findings] == [
        RunFindingKind.SLOWER_STEPS,
        RunFindingKind.LOST_RANK,
    ]
    assert [one.kind for one in watched_run(logs).findings] == [RunFindingKind.STRAGGLER]
