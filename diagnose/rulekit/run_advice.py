"""What rules on whole runs say alike: what a fix would save of a run, and how parts of a step are called."""

from typing import TypeAlias

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunSaving
from diagnose.facts.watched.log import OTHER_CODE
from diagnose.trace.run_log import RunLog
from diagnose.trace.units import long_duration, share

Shares: TypeAlias = "tuple[float, float, float] | None"
"""Of a time: what goes if it is fixed, low, likely and high; None: nothing tells how much of it."""

UNKNOWN = (0.0, 0.5, 0.9)  # As rules have it where nothing tells what of a time is needed (DL05: our choice).
ODDS = (0.60, 4.47)  # Of a saving against what is left, as for replayed savings of recorded steps (docs/accuracy.md).
STANDS_OUT = 0.3  # Of what steps are longer by, from which share on a part is named (our choice).
PART_NAMES = {
    "loader": "waiting for data",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
    "collection": "Python garbage collection",
    "compilation": "compilation",
    OTHER_CODE: "other code in the loop",
}


def saved(ns: float, shares: Shares = None) -> RunSaving:
    """A saving of these shares of `ns` of the run; without shares of UNKNOWN, as an upper bound (AT_MOST)."""
    low, likely, high = (int(max(ns, 0) * one) for one in shares or UNKNOWN)
    return RunSaving(low, likely, high, RunBasis.RULE_OF_THUMB if shares else RunBasis.AT_MOST)


def widened(low: float, likely: float, high: float) -> tuple[float, float, float]:
    """Shares of a step that a model saves, with a range no narrower than what replayed savings were off by (ODDS)."""
    odds = likely / max(1 - likely, 1e-9)
    least, most = (factor * odds / (1 + factor * odds) for factor in ODDS)
    return min(low, least), likely, max(high, most)


def costs(
    log: RunLog, ns: float, said: str, title: str, change: str, more: str = "", kind: str = "", shares: Shares = None
) -> RunFinding:
    """A finding of `ns` of the run, priced as `saved`. `said` is the clause before the amount, `more` a sentence."""
    first = Evidence(f"{said}: {cost(ns, log)}.", ns, "ns", primary=True)
    return RunFinding(title, sentences(first, more), saved(ns, shares), change, kind)


def sentences(*some: str | Evidence) -> tuple[Evidence, ...]:
    """Evidence in order, without what is empty."""
    return tuple(Evidence(one) if isinstance(one, str) else one for one in some if one)


def cost(ns: float, log: RunLog) -> str:
    """`8.63 s (13.5 % of the run)`."""
    return f"{long_duration(ns)} ({share(ns, log.length_ns)} of the run)"


def times(count: int, what: str) -> str:
    """`2 evaluations`."""
    return f"{count:,} {what}{'s' * (count != 1)}"
