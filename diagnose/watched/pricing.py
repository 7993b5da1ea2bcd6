"""What a finding of a run would save, and whether that is worth telling."""

from collections.abc import Sequence

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunFindingKind, RunSaving
from diagnose.trace.run_log import RunLog, Window
from diagnose.trace.units import long_duration, share

WORTH_SHARE, WORTH_NS = 0.01, 1_000_000_000
"""Of the run, and in all: what costs less is no finding. A fix has to be worth the work, as those of recorded steps,
and what is shorter than a window of the log cannot be told from noise (our choice)."""

TOO_FEW = "the log needs at least {} windows of one second or longer"
SHORT = TOO_FEW.format(7)

Shares = tuple[float, float, float]  # Of a time: what goes if it is fixed, low, likely and high.

ALL: Shares = (1.0, 1.0, 1.0)
UNKNOWN: Shares = (0.0, 0.5, 0.9)  # As rules have it where nothing tells what of a time is needed (DL05: our choice).
BACKGROUND: Shares = (0.5, 0.9, 0.96)
"""Of a save in the background: it must still copy, and slows the steps that go on meanwhile. 6.3 of 148.8 s were left
of a 7B model's (PA01, https://pytorch.org/blog/reducing-checkpointing-times)."""
KEPT_WORKERS: Shares = (0.5, 0.9, 0.98)  # Of starting workers, where these are kept (DL05: our choice).
SELDOM: Shares = (0.5, 0.9, 0.98)  # Of collections, if they are made every some hundred steps (PA02: our choice).


class CannotTell(Exception):
    """Why something cannot be looked for, as a clause."""


def saving(ns: float, shares: Shares, basis: RunBasis) -> RunSaving:
    """Of that much time of the run."""
    low, likely, high = (int(max(ns, 0) * one) for one in shares)
    return RunSaving(low, likely, high, basis)


def finding(
    kind: RunFindingKind, title: str, evidence: Sequence[str | Evidence], priced: RunSaving, change: str
) -> list[RunFinding]:
    """The finding, as a list of one."""
    told = tuple(Evidence(one) if isinstance(one, str) else one for one in evidence if one)
    return [RunFinding(kind, title, told, priced, change)]


def worth(one: RunFinding, length_ns: int) -> bool:
    """Whether it is told: by its likely saving; what costs no time always is.

    Raises CannotTell of one that would save more than there is.
    """
    if one.saving.basis is RunBasis.NONE:
        return True
    if one.saving.high_ns > length_ns:
        raise CannotTell("the log contradicts itself")
    return one.saving.likely_ns >= max(WORTH_SHARE * length_ns, WORTH_NS)


def cost(ns: float, log: RunLog) -> str:
    """`8.63 s (13.5 % of the run)`."""
    return f"{long_duration(ns)} ({share(ns, log.length_ns)} of the run)"


def total(windows: Sequence[Window], name: str) -> int:
    """A column's sum over the windows, in ns."""
    return sum(window.of(name).sum_ns for window in windows)


def counted(windows: Sequence[Window], name: str) -> int:
    """Steps that had any of it."""
    return sum(window.of(name).count for window in windows)
