"""How long does a step take over a whole epoch, and where in it are the recorded steps?"""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.run import HOW, manifest
from diagnose.facts.core.steps import Measure, steps

UNLIKE = 0.1
"""Share by which the mean step of an epoch differs from that of the window, from which on it is said (our choice)."""


@dataclass(frozen=True)
class Epoch:
    """An epoch, as the latest whole ones were before anything was recorded."""

    steps: int
    step_ns: int  # Mean, with all that is between epochs.
    between_ns: int  # An epoch: evaluation, saving and the like, by which its first step is longer than the others.
    starting_ns: int  # An epoch: until its first batch is there, by workers that start.
    first: int | None
    """Number in its epoch of the first of the recorded steps that figures are of, from 1 on; None if unknown."""
    last: int | None
    begun: int  # Epochs that begin in these steps.

    @property
    def starting_share(self) -> float:
        """Of an epoch."""
        return self.starting_ns / max(self.steps * self.step_ns, 1)

    def unlike(self, step_ns: int) -> bool:
        """Whether a step of this time stands for no whole epoch."""
        return abs(self.step_ns - step_ns) > UNLIKE * self.step_ns


@fact
def epoch(facts: Facts) -> Epoch:
    """Raises Missing if no whole epoch was seen, once steps were steady, and if the trace marks no steps."""
    known, used = manifest(facts).epochs, steps(facts)
    if known is None or not known.steps or known.step_ns is None or used.measure is Measure.WINDOW:
        raise Missing("a whole epoch before the recording", HOW)
    starting, longer = known.starting_ns or 0, 0
    if known.first_step_ns is not None and known.steps > 1:
        other = (known.steps * known.step_ns - known.first_step_ns) / (known.steps - 1)
        longer = max(round(known.first_step_ns - other), 0)
    places = [known.place(number) for number in used.numbers]
    first, last = (None if place is None else place + 1 for place in (places[0], places[-1]))
    return Epoch(
        steps=known.steps,
        step_ns=known.step_ns,
        between_ns=min(max(longer - starting, 0), known.between_ns or 0),
        starting_ns=starting,
        first=first,
        last=last,
        begun=sum(place == 0 for place in places),
    )
