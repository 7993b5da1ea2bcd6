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
        self._say, self._screened = say, set[str]()

    def begins(self, standing: Standing) -> None:
        """A run begins."""
        self._say(f"running {standing.name}: {'pair' if standing.numbers else 'run'} {standing.pair}")

    def screens(self, found: Sequence[Screened]) -> None:
        """A line for each that has ended."""
        for one in found:
            if one.ended and one.name not in self._screened:
                self._screened.add(one.name)
                pairs = 0 if one.void else len(one.added or one.alone)
                measured = f"{pairs} pairs of blocks of {one.steps} steps" if pairs else "not measured"
                self._say(f"{self._rules.get(one.name, one.name)}: {measured}")

    def ended(self, trial: Trial) -> None:
        """A trial has ended."""
        from diagnose.reports import trials

        self._say(trials.brief(trial))
