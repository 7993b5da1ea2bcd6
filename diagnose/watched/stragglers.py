"""Ranks side by side, by the steps that they make together: which one all others wait for, and which is lost.

Where gradients are averaged in each step, all ranks' steps are equally long: each waits for the slowest. On the host
they wait in the backward pass (gloo), or with a GPU wherever the host reads a result. So ranks are compared by what is
left: waiting for data, forward pass, optimizer, and without a GPU the rest of the step. A rank that is slower in its
backward pass only, or only on its GPU, cannot be told from a log.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunFindingKind, RunSaving
from diagnose.facts.run.growth import RARE_TIME
from diagnose.trace.run_log import RunLog
from diagnose.trace.units import duration, long_duration, number, ranks
from diagnose.watched.growth import PART_NAMES, STANDS_OUT
from diagnose.watched.pricing import SHORT, TOO_FEW, CannotTell, Shares, cost, finding, saving
from diagnose.watched.series import GROUPS, LEAST_GROUPS, LEAST_TO_CHANGE, PARTS, REST, changed

EVENED: Shares = (0.7, 1.0, 1.0)
"""Of the difference to the next slowest rank, on devices of their own (ST01: our choice)."""
CPU_EVENED: Shares = (0.4, 0.7, 1.0)  # Where ranks share a machine (ST01).
SLOWER = 0.05  # Of the step: by so much a straggler is behind the median of the other ranks at least (our choice).

EARLY_NS, LATE_NS = 15_000_000_000, 60_000_000_000
"""A log loses ten seconds of a rank that is killed at most; ranks of one job start within a minute (our choice)."""

MOST_RANKS, MOST_TOLD = 4096, 8  # Among which those without a log are looked for; sentences.

Times = npt.NDArray[np.float64]


class SideBySide(Struct, frozen=True):
    """Ranks by row, stretches of as many steps each by column, in ns of the mean step."""

    ranks: tuple[int, ...]
    steps: int  # Of a stretch.
    first_step: int
    parts: dict[str, Times]  # By PARTS and REST.
    step: Times
    compared: tuple[str, ...]  # Those in which no rank waits for another.

    @property
    def own(self) -> Times:
        """What can be compared."""
        total: Times = sum((self.parts[name] for name in self.compared), np.zeros_like(self.step))
        return total


def side_by_side(logs: Sequence[RunLog]) -> SideBySide:
    """Raises CannotTell."""
    known = [log for log in logs if log.windows]
    if len(known) < 2:
        raise CannotTell("fewer than two ranks have a log")
    if any(a.first_step + a.steps != b.first_step for log in known for a, b in pairwise(log.windows)):
        raise CannotTell("the log of a rank is damaged")
    first = max(log.windows[0].first_step for log in known)
    last = min(log.windows[-1].first_step + log.windows[-1].steps for log in known)
    count = min(GROUPS, *(len(log.windows) for log in known), last - first)
    if count < LEAST_GROUPS:
        raise CannotTell(SHORT)
    bounds = np.linspace(first, last, count + 1)
    columns = {name: np.array([_per_step(log, name, bounds) for log in known]) for name in ("step", *PARTS)}
    step = columns.pop("step")
    rest = np.maximum(step - sum(columns.values()), 0.0)
    device = any("device" in window.columns for log in known for window in log.windows)
    compared = ("loader", "forward", "optimizer", "collection", *(() if device else (REST,)))
    who = tuple(log.rank for log in known)
    return SideBySide(who, round(bounds[1] - bounds[0]), first, {**columns, REST: rest}, step, compared)


def stragglers(logs: Sequence[RunLog]) -> list[RunFinding]:
    """Ranks that are the slowest far more often than by chance, or that fall behind from a moment on.

    Raises CannotTell.
    """
    table = side_by_side(logs)
    found = list[RunFinding]()
    for row in range(len(table.ranks)):
        since = _behind_since(table, row)
        if since is not None:
            found += _straggler(table, row, since, logs)
    if not found and table.step.shape[1] < LEAST_TO_CHANGE:
        raise CannotTell(TOO_FEW.format(LEAST_TO_CHANGE))
    return found


def lost_ranks(logs: Sequence[RunLog]) -> list[RunFinding]:
    """Ranks without a log, that ended before the others, or were started after them."""
    world, have = max(log.world_size for log in logs), {log.rank for log in logs}
    evidence = list[str | Evidence]()
    if missing := [rank for rank in range(min(world, MOST_RANKS)) if rank not in have]:
        who = ranks(missing[:MOST_TOLD]) + (" and more" if len(missing) > MOST_TOLD else "")
        why = "lost before the first step, or writing to another folder"
        evidence.append(f"{number(world - len(have))} of {number(world)} ranks have no log ({who}): {why}.")
    latest = max(log.started_unix_ns + log.length_ns for log in logs)
    began = min(log.started_unix_ns for log in logs)
    for log in logs:
        early, late = latest - log.started_unix_ns - log.length_ns, log.started_unix_ns - began
        if early > EARLY_NS:
            evidence.append(f"The log of rank {log.rank} ends {long_duration(early)} before the last rank's.")
        if late > LATE_NS:
            evidence.append(f"Rank {log.rank} started {long_duration(late)} after the first rank.")
    if not evidence:
        return []
    if len(evidence) > MOST_TOLD:
        evidence[MOST_TOLD:] = [f"{number(len(evidence) - MOST_TOLD)} more cases."]
    change = "Check the output of these ranks, and the system log for killed processes."
    return finding(
        RunFindingKind.LOST_RANK, "Some ranks have no complete log", evidence, RunSaving(0, 0, 0, RunBasis.NONE), change
    )


def _per_step(log: RunLog, name: str, bounds: Times) -> Times:
    """A column between two bounds, which are numbers of steps, in ns of the mean step."""
    at = [log.windows[0].first_step, *(window.first_step + window.steps for window in log.windows)]
    spent = np.cumsum([0, *(window.of(name).sum_ns for window in log.windows)], dtype=np.float64)
    found: Times = np.diff(np.interp(bounds, at, spent)) / np.diff(bounds)
    return found


def _others(values: Times, row: int) -> Times:
    return np.delete(values, row, axis=0)


def _behind(table: SideBySide, row: int) -> Times:
    """By how much, of the mean step of each stretch, against the median of the other ranks."""
    behind: Times = table.own[row] - np.median(_others(table.own, row), axis=0)
    return behind


def _behind_since(table: SideBySide, row: int) -> int | None:
    """The stretch from which on a rank holds up the others; None of one that does not."""
    behind, count = _behind(table, row), table.step.shape[1]
    usual = float(np.median(table.step))
    change = changed(list(usual + behind))
    if change is not None and change.chance * len(table.ranks) <= RARE_TIME:
        return change.at if np.median(behind[change.at :]) >= SLOWER * usual else None
    slowest = int((table.own.argmax(axis=0) == row).sum())
    if np.median(behind) < SLOWER * usual:
        return None
    return 0 if _chance(slowest, count, len(table.ranks)) * len(table.ranks) <= RARE_TIME else None


def _chance(times: int, of: int, among: int) -> float:
    """That one of so many ranks is the slowest so often if each is as likely."""
    return sum(math.comb(of, k) * (1 / among) ** k * (1 - 1 / among) ** (of - k) for k in range(times, of + 1))


def _straggler(table: SideBySide, row: int, since: int, logs: Sequence[RunLog]) -> list[RunFinding]:
    rank, log = table.ranks[row], max(logs, key=lambda one: one.length_ns)
    behind = float(np.median(_behind(table, row)[since:]))
    lost = np.maximum(table.own[row] - _others(table.own, row).max(axis=0), 0.0)[since:]
    lost_ns = float(lost.sum()) * table.steps
    device = REST not in table.compared
    began = table.first_step + since * table.steps
    when = f"From step {number(began)} on, rank {rank}" if since else f"Rank {rank}"
    said = f"{when} takes {duration(behind)} longer per step than the other ranks, and they wait for it."
    backward = _gap(table.parts["backward"], row, since)
    waits = "The other ranks wait in their backward passes, which take {} longer."
    return finding(
        RunFindingKind.STRAGGLER,
        f"Straggler: rank {rank}",
        (
            Evidence(said, behind, "ns", primary=True),
            _why(table, row, since, behind),
            waits.format(duration(backward)) if backward >= STANDS_OUT * behind else "",
            f"At the speed of the next slowest rank, the job would save {cost(lost_ns, log)}.",
        ),
        saving(lost_ns, EVENED if device else CPU_EVENED, RunBasis.RULE_OF_THUMB),
        f"Check what rank {rank} does more than the others, and its machine: other processes, clocks, storage.",
    )


def _gap(values: Times, row: int, since: int) -> float:
    return float(np.median(np.median(_others(values, row), axis=0)[since:] - values[row, since:]))


def _why(table: SideBySide, row: int, since: int, behind: float) -> str:
    longer = {name: -_gap(table.parts[name], row, since) for name in table.compared}
    name = max(longer, key=lambda one: longer[one])
    if longer[name] < STANDS_OUT * behind:
        return "No part of its step stands out."
    return f"The extra time is in {PART_NAMES[name]}: {duration(longer[name])}."
