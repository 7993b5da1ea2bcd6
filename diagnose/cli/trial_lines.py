"""How trials stand while they run, in lines on standard error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.contracts.trials import Trial
    from diagnose.trace.manifest import Screened
    from diagnose.trials.protocol import Standing
    from diagnose.trials.selection import Candidate


class Lines:
    """A line for each pair, and for what came of it."""

    def __init__(self, candidates: Sequence[Candidate], say: Callable[[str], None]) -> None:
        self._rules = {one.trial: one.rule for one in candidates}
        self._say, self._pair, self._screened = say, ("", 0), set[str]()

    def begins(self, standing: Standing) -> None:
        """A run begins."""
        pair = standing.name, standing.pair
        if pair != self._pair:
            self._pair = pair
            self._say(f"running {standing.name}: {'pair' if standing.numbers else 'run'} {standing.pair}")

    def screens(self, found: Sequence[Screened]) -> None:
        """A line for each that has ended."""
        for one in found:
            if one.ended and one.name not in self._screened:
                self._screened.add(one.name)
                self._say(f"{self._rules.get(one.name, one.name)}: {_blocks(one, found)}")

    def ended(self, trial: Trial) -> None:
        """A trial has ended."""
        from diagnose.reports import trials

        self._say(trials.brief(trial))


def _interval(one: Screened, found: Sequence[Screened]) -> str:
    from diagnose.reports import trials
    from diagnose.trials.screening import so_far

    alone, added = so_far(one, found)
    measured = added or alone
    return "" if measured is None else trials.factors(measured)


def _blocks(one: Screened, found: Sequence[Screened]) -> str:
    pairs, on_top = one.added or one.alone, " on top of others" if one.added else ""
    counted = "waiting for steady steps" if not pairs else f"{len(pairs)} pairs of blocks of {one.steps} steps{on_top}"
    if one.ended and (one.void or not pairs):
        counted = "not measured"
    return ", ".join(filter(None, (_interval(one, found), counted)))
