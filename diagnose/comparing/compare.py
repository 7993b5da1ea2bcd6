"""Two sides -> a Comparison."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.comparing import changes, noise
from diagnose.comparing.parts import parts
from diagnose.comparing.runs import middle
from diagnose.contracts.baseline import Baseline, Run
from diagnose.contracts.comparison import Basis, Comparison, Ns, Range, Verdict
from diagnose.version import __version__


def compare(before: Baseline, after: Baseline) -> Comparison:
    """How `after` differs from `before`.

    Of several recordings of a side, findings and settings are of the one with the middle step.
    """
    sides = before.runs, after.runs
    timed = all(run.unprofiled_ns for runs in sides for run in runs)
    then, now = (noise.side_of(runs, timed) for runs in sides)
    before_ns, after_ns = round(then.mean_ns), round(now.mean_ns)
    basis = noise.basis_of(*sides)
    first, second = (runs[middle(runs)] for runs in sides)
    found = parts(*sides, before_ns, after_ns)
    usual = noise.difference(then, now)
    share = noise.decided(usual, found, then, now)
    verdict = verdict_of(share)
    return Comparison(
        tool_version=__version__,
        before_ns=before_ns,
        after_ns=after_ns,
        difference_ns=_ns(share, before_ns, after_ns),
        difference_share=share,
        verdict=verdict,
        why=_DECIDED if share != usual else _why(verdict, share, basis, sides),
        basis=basis,
        recordings=(len(before.runs), len(after.runs)),
        smallest_visible_share=noise.visible_share(share),
        parts=found,
        findings=changes.findings(first, second),
        settings=changes.settings(first, second, found),
        incomparable=tuple(changes.incomparable(first, second)),
        per=tuple(changes.per(first, second, before_ns, after_ns)),
        ranks=changes.ranks(first, second),
        groups=changes.groups(first, second),
    )


def _ns(share: Range, before_ns: int, after_ns: int) -> Ns:
    low, high = (None if bound is None else round(bound * before_ns) for bound in (share.low, share.high))
    return Ns(low, after_ns - before_ns, high)


def verdict_of(share: Range) -> Verdict:
    """By the interval alone."""
    if share.low is None or share.high is None:
        return "cannot_tell"
    if share.low > 0:
        return "slower"
    if share.high < 0:
        return "faster"
    return "cannot_tell" if share.high - share.low > 2 * noise.WIDE else "same"


_DECIDED = "Parts that are new, gone or doubled are more than noise between runs, so the recorded steps decide."
_BASES = {
    Basis.RECORDINGS: "The interval comes from the spread of recordings on each side.",
    Basis.UNPROFILED_STEPS: "The interval comes from unprofiled steps and the usual spread between runs.",
    Basis.RECORDED_STEPS: "The interval comes from profiled (slower) steps and the usual spread between runs.",
}

ENOUGH_RECORDINGS = 3  # Of each side: these show how runs differ here, as far as few can.


def _why(verdict: Verdict, share: Range, basis: Basis, sides: tuple[Sequence[Run], Sequence[Run]]) -> str:
    if share.low is None or share.high is None:
        least = min(len(run.times_ns) for runs in sides for run in runs)
        return f"One side has only {least} measured step{'s' * (least != 1)}: too few to rule out noise."
    if verdict != "cannot_tell":
        return _BASES[basis]
    if min(map(len, sides)) < ENOUGH_RECORDINGS:
        return f"Runs vary too much for this comparison. Use at least {ENOUGH_RECORDINGS} recordings per side."
    return "Recordings of the same side vary too much. Record more of them, on an idle machine."
