"""Ranks side by side, by the steps that they make together: which one all others wait for.

Where gradients are averaged in each step, all ranks' steps are equally long: each waits for the slowest. On the host
they wait in the backward pass (gloo), or with a GPU wherever the host reads a result. So ranks are compared by what is
left: waiting for data, forward pass, optimizer, and without a GPU the rest of the step. A rank that is slower in its
backward pass only, or only on its GPU, cannot be told from a log.
"""

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Missing
from diagnose.facts.run.growth import RARE_TIME
from diagnose.facts.watched.log import OTHER_CODE, PARTS, RunFacts, run_fact
from diagnose.facts.watched.series import GROUPS, LEAST_GROUPS, LEAST_TO_CHANGE, TOO_FEW, changed
from diagnose.trace.run_log import RunLog

SLOWER = 0.05  # Of the step: by so much a straggler is behind the median of the other ranks at least (our choice).
Times = npt.NDArray[np.float64]


class SideBySide(Struct, frozen=True):
    """Ranks by row, stretches of as many steps each by column, in ns of the mean step."""

    ranks: tuple[int, ...]
    steps: int  # Of a stretch.
    first_step: int
    parts: dict[str, Times]  # By PARTS and OTHER_CODE.
    step: Times
    compared: tuple[str, ...]  # The parts in which no rank waits for another.

    @property
    def own(self) -> Times:
        """The sum of the parts that are compared. Shape (ranks, stretches)."""
        total: Times = sum((self.parts[name] for name in self.compared), np.zeros_like(self.step))
        return total


class SlowRank(Struct, frozen=True):
    """A rank that all others wait for, in ns of a step."""

    rank: int
    since_step: int | None  # From which on it is slow; None: all along.
    behind_ns: float
    part: str  # In which it is longer than the others most, and by so much.
    longer_ns: float
    others_backward_ns: float  # By so much backward passes of the others are longer.
    lost_ns: float  # Of the whole run, against the next slowest rank.
    on_device: bool


@run_fact
def side_by_side(run: RunFacts) -> SideBySide:
    """The ranks by the steps that all of them made. Missing with fewer than two logs, with damaged and short ones."""
    known = [log for log in run.logs if log.windows]
    if len(known) < 2:
        raise Missing("fewer than two ranks have a log")
    if any(a.first_step + a.steps != b.first_step for log in known for a, b in pairwise(log.windows)):
        raise Missing("the log of a rank is damaged")
    first = max(log.windows[0].first_step for log in known)
    last = min(log.windows[-1].first_step + log.windows[-1].steps for log in known)
    count = min(GROUPS, *(len(log.windows) for log in known), last - first)
    if count < LEAST_GROUPS:
        raise Missing(TOO_FEW.format(LEAST_GROUPS))
    bounds = np.linspace(first, last, count + 1)
    columns = {name: np.array([_per_step(log, name, bounds) for log in known]) for name in ("step", *PARTS)}
    step = columns.pop("step")
    rest = np.maximum(step - sum(columns.values()), 0.0)
    device = any("device" in window.columns for log in known for window in log.windows)
    compared = ("loader", "forward", "optimizer", "collection", *(() if device else (OTHER_CODE,)))
    who = tuple(log.rank for log in known)
    return SideBySide(who, round(bounds[1] - bounds[0]), first, {**columns, OTHER_CODE: rest}, step, compared)


def _per_step(log: RunLog, name: str, bounds: Times) -> Times:
    """ns of a column in the mean step between each two neighbouring bounds, which are step numbers."""
    at = [log.windows[0].first_step, *(window.first_step + window.steps for window in log.windows)]
    spent = np.cumsum([0, *(window.of(name).sum_ns for window in log.windows)], dtype=np.float64)
    found: Times = np.diff(np.interp(bounds, at, spent)) / np.diff(bounds)
    return found


@run_fact
def slow_ranks(run: RunFacts) -> tuple[SlowRank, ...]:
    """Ranks that are slowest more often than by chance, or fall behind from a moment on. Missing with few windows."""
    table = side_by_side(run)
    since = {row: at for row in range(len(table.ranks)) if (at := _behind_since(table, row)) is not None}
    if not since and table.step.shape[1] < LEAST_TO_CHANGE:
        raise Missing(TOO_FEW.format(LEAST_TO_CHANGE))
    return tuple(_slow_rank(table, row, at) for row, at in since.items())


def _slow_rank(table: SideBySide, row: int, since: int) -> SlowRank:
    """What the rank in this row costs the others from stretch `since` on; 0 is all along."""
    lost = np.maximum(table.own[row] - _others(table.own, row).max(axis=0), 0.0)[since:]
    longer = {name: -_gap(table.parts[name], row, since) for name in table.compared}
    part = max(longer, key=lambda one: longer[one])
    began = table.first_step + since * table.steps if since else None
    behind, lost_ns = float(np.median(_behind(table, row)[since:])), float(lost.sum()) * table.steps
    backward_ns, on_device = _gap(table.parts["backward"], row, since), OTHER_CODE not in table.compared
    return SlowRank(table.ranks[row], began, behind, part, longer[part], backward_ns, lost_ns, on_device)


def _others(values: Times, row: int) -> Times:
    return np.delete(values, row, axis=0)


def _behind(table: SideBySide, row: int) -> Times:
    """ns per step by which the row's own time exceeds the median of the other ranks, by stretch."""
    behind: Times = table.own[row] - np.median(_others(table.own, row), axis=0)
    return behind


def _behind_since(table: SideBySide, row: int) -> int | None:
    """The stretch from which on a rank holds up the others, 0 for all along; None of one that does not."""
    behind, count = _behind(table, row), table.step.shape[1]
    usual = float(np.median(table.step))
    change = changed(list(usual + behind))
    if change is not None and change.chance * len(table.ranks) <= RARE_TIME:
        return change.at if np.median(behind[change.at :]) >= SLOWER * usual else None
    slowest = int((table.own.argmax(axis=0) == row).sum())
    if np.median(behind) < SLOWER * usual:
        return None
    # That one of so many ranks is the slowest so often, if each is as likely.
    among = len(table.ranks)
    each = (math.comb(count, k) * (1 / among) ** k * (1 - 1 / among) ** (count - k) for k in range(slowest, count + 1))
    return 0 if sum(each) * among <= RARE_TIME else None


def _gap(values: Times, row: int, since: int) -> float:
    return float(np.median(np.median(_others(values, row), axis=0)[since:] - values[row, since:]))
