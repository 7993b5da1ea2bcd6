"""What a finding saves: of the recorded step as replayed, and of the step without the profiler.

Savings are of the step without the profiler where that was timed: the share that the replay takes off the recorded
step, of the other. What recording added may all have been where a finding about host time looks: its least saving is
what is left without it. Where the CPU trains it is more than what the replay takes off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from diagnose.contracts.finding import Finding, RuleName
from diagnose.facts.core.breakdown import round_half_up
from diagnose.replay.saving import Saving

CACHE_WARMTH, MOST_CACHE_WARMTH = 0.3, 0.9
"""Where the CPU trains, what is left gets faster by this times the share that was saved, likely and at most: nothing
else fills its caches then, and it does not go to sleep. Only the time in which it is busy does. Of 51 recordings of
planted faults, of the part to develop on, half gained more than 0.63 in this way, a quarter less than 0.35. All were of
one machine, so half of it is taken."""


@dataclass(frozen=True)
class Priced:
    """A finding with what it saves."""

    page: RuleName
    finding: Finding
    alone: Saving
    others_ns: int  # Of its likely saving: what other ops are assumed to get faster.
    added_ns: int | None = None  # What it likely adds to those above; None if that was not asked.
    hidden: Saving | None = None  # What it saves once those above are fixed, if that is much more than alone.


def likely_ns(finding: Finding, gain_ns: int) -> int:
    """What is likely of a gain by the replay: of a bound half (our choice)."""
    return gain_ns // 2 if finding.names_no_fix else gain_ns


@dataclass(frozen=True)
class Step:
    """The step that savings are of, and the recorded one that was replayed."""

    ns: int
    recorded_ns: int
    busy: float  # Share of it in which the training is known to compute on the CPU.

    def priced(self, page: RuleName, finding: Finding, alone: Saving) -> Priced:
        """A finding with its saving of the recorded step as one of this step."""
        saving = self.saving(alone, finding.host_bound)
        others_ns = likely_ns(finding, self.others_ns(saving.likely_ns))
        if finding.names_no_fix:
            saving = replace(saving, low_ns=0, likely_ns=likely_ns(finding, saving.likely_ns))
        return Priced(page, finding, saving, others_ns)

    def of(self, recorded_ns: int) -> int:
        """As large a share of this step as the given time is of the recorded one."""
        return recorded_ns if self.ns == self.recorded_ns else round_half_up(recorded_ns * self.ns, self.recorded_ns)

    def left(self, recorded_ns: int) -> int:
        """What this step likely takes, given what the recorded one would."""
        ns = self.of(recorded_ns)
        return ns - self._with_warm_caches(CACHE_WARMTH, self.ns - ns, ns)

    def saving(self, alone: Saving, host_bound: bool) -> Saving:
        """A saving of the recorded step as one of this step."""
        added_ns = max(self.recorded_ns - self.ns, 0) if host_bound else 0
        low_ns = min(self.of(alone.low_ns), max(alone.low_ns - added_ns, 0))
        likely_ns, high_ns = self.of(alone.likely_ns), self.of(alone.high_ns)
        high_ns += self._with_warm_caches(MOST_CACHE_WARMTH, likely_ns, self.ns - high_ns)
        likely_ns += self._with_warm_caches(CACHE_WARMTH, likely_ns, self.ns - likely_ns)
        return Saving(low_ns, likely_ns, max(likely_ns, high_ns), alone.basis, alone.replayed_ns)

    def others_ns(self, likely_ns: int) -> int:
        """Of a likely saving the part that `saving` has added for other ops: x + times x (1 - x) = likely, in steps."""
        times = CACHE_WARMTH * self.busy
        if not times or likely_ns <= 0:
            return 0
        share = min(likely_ns / self.ns, 1.0)
        own = (1 + times - math.sqrt((1 + times) ** 2 - 4 * times * share)) / (2 * times)
        return max(likely_ns - round(own * self.ns), 0)

    def _with_warm_caches(self, times: float, saved_ns: int, left_ns: int) -> int:
        return round(times * self.busy * max(saved_ns, 0) / self.ns * left_ns)
