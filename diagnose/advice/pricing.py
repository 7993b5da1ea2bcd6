"""What a finding saves of the step as replayed and of the step that the report is about, in which range, how sure.

That step is the mean of all that were timed without the profiler. Work of the device takes what it took when it was
recorded. The rest of the replayed step is the host's, which recording lengthens: it is scaled so that the whole is as
long as a step without the profiler. What steps of a kind that was not recorded take longer stays as it is.

A saving has odds: the time that goes over the time that is left, which is the speed-up less one. Its range is the
likely odds times two factors: the 10 and 90 % quantiles of true over predicted odds, of published pairs of its basis.
So a range lies within the step by itself, and gets small where little is saved or little is left.
A rule's own low and high say nothing of how far its savings are off in these pairs: they widen no range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from diagnose.contracts.diagnosis import Sections
from diagnose.contracts.finding import Caution, Finding, Kind, Level, RuleName
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.breakdown import Breakdown, TimeCause, breakdown, shared_out
from diagnose.facts.core.host import HostTime
from diagnose.facts.core.idle import IdleShare
from diagnose.facts.core.run import busy_share
from diagnose.facts.core.steps import steps
from diagnose.facts.device.kernels import Kernel, KernelGroup
from diagnose.facts.run.timed_steps import slowdown
from diagnose.replay.saving import DOUBTFUL, Basis, Replay, Saving
from diagnose.replay.shown import Change, ChangeKind
from diagnose.trace.model import Ground, IntegrityNote, Severity
from diagnose.trace.units import percent

_SAID = {
    Ground.HOST_TIMES: "CPU timings",
    Ground.DEVICE_TIMES: "kernel timings",
    Ground.DEVICE_IDLE: "GPU idle times",
    Ground.LAUNCHES: "links from calls to kernels",
    Ground.CLOCKS: "CPU-to-GPU clock offsets",
    Ground.RANKS: "clock offsets between ranks",
}


class Doubt(Struct, frozen=True):
    """Why a finding is less sure than its rule thinks."""

    why: str
    decides: bool = False  # It alone makes the confidence low.


class Doubtful(Struct, frozen=True):
    """What is doubtful of a rank: in its measurement, its replay, and its recording."""

    replay: Replay
    cautions: Sequence[Caution]

    def doubts(self, one: Priced, step: Step) -> list[Doubt]:
        """Why the finding is less sure than its rule says; each doubt lowers its confidence by one level."""
        found = []
        for caution in self.cautions:
            if caution.lowers_all or (caution.lowers_host and one.finding.host_bound):
                noise = one.alone.likely_ns < caution.noise_share * step.ns
                below = f"below the noise ({percent(caution.noise_share)}): measure before you keep it"
                found.append(Doubt(below if noise else caution.what, noise))
        quality = self.replay.quality
        if quality.unexplained_share >= DOUBTFUL:
            found.append(Doubt(f"the simulation cannot explain {quality.unexplained_share:.0%} of the step"))
        elif abs(quality.error_share) >= DOUBTFUL:
            found.append(Doubt(f"the simulated step is off by {quality.error_share:+.0%} before fitting"))
        against = self._against(one.finding)
        if doubted := [ground for ground in Ground if any(ground in grounds for _, grounds in against)]:
            named = " and ".join(_SAID[ground] for ground in doubted)
            lost = any(note.severity is Severity.ERROR for note, _ in against)
            found.append(Doubt(f"{named} are unreliable here, see Notes", lost))
        return found

    def bounded(self, finding: Finding, saving: Saving) -> Saving:
        """The saving; with 0 as its low end where so much device work was lost that the device may not have idled."""
        against = self._against(finding)
        lost = (Ground.DEVICE_IDLE in grounds and note.severity is Severity.ERROR for note, grounds in against)
        return dataclasses.replace(saving, low_ns=0, basis=Basis.BOUNDED) if any(lost) else saving

    def _against(self, finding: Finding) -> list[tuple[IntegrityNote, frozenset[Ground]]]:
        """The notes that doubt something that the finding's edits rest on, each with what it doubts of that."""
        own = self.replay.grounds(finding.edits)
        against = ((note, own.intersection(note.doubts)) for note in self.replay.notes)
        return [(note, doubted) for note, doubted in against if doubted]


Factors = Mapping[Basis, tuple[float, float]]

FACTORS: Factors = {
    Basis.MEASURED: (0.74, 1.32),
    Basis.TIMED_ELSEWHERE: (0.74, 1.30),
    Basis.REPLAYED: (0.60, 4.47),
    Basis.RULE_OF_THUMB: (0.60, 5.38),
}
"""The likely odds times these are low and high. `python -m benchmarks.ranges` computes them; docs/accuracy.md says how
often ranges hold if a case's own pairs are left out."""

NARROW = 0.25  # Of the saving: a narrower range is of high confidence, if it rests on this run alone (our choice).


def ranged(
    likely_ns: int,
    high_ns: int,
    step_ns: int,
    basis: Basis,
    doubt: float = 0.0,
    factors: Factors = FACTORS,
    most_ns: int | None = None,
) -> tuple[int, int, int]:
    """Low, likely and high of a saving, ns per step: 0 <= low <= likely <= high <= step.
    `high_ns`: as replayed by the highest estimates; only upper bounds (`basis.is_bound`) use it, and have 0 as low.
    `most_ns`: what the fix can save at most, for all but bounds; None: not known.
    `doubt`: share by which the replay fails to explain the recording; odds may be lower and higher by that, too."""
    likely_ns = min(max(likely_ns, 0), step_ns)
    if basis.is_bound:
        return 0, likely_ns, min(max(high_ns, likely_ns), step_ns)
    down, up = factors[basis]
    left_ns, certain = step_ns - likely_ns, 1.0 - min(doubt, 1.0)
    low_ns = round(step_ns * _share(likely_ns * down * certain, left_ns))
    high_ns = round(step_ns * _share(likely_ns * up, left_ns * certain))
    return low_ns, likely_ns, high_ns if most_ns is None else max(min(high_ns, most_ns), likely_ns)


def _share(gone: float, left: float) -> float:
    return gone / (gone + left) if gone else 0.0


def confidence(low_ns: int, likely_ns: int, high_ns: int, basis: Basis) -> Level:
    """How sure a saving can be, by the width of its range and what it rests on."""
    if basis.is_bound:
        return Level.LOW
    here = basis in (Basis.REPLAYED, Basis.MEASURED)
    return Level.HIGH if here and high_ns - low_ns < NARROW * likely_ns else Level.MEDIUM


Share = TypeVar("Share", IdleShare, Kernel, KernelGroup)

CACHE_WARMTH = 0.3
"""Where the CPU trains, what is left gets faster by this times the share that was saved: nothing else fills its caches
then, and it does not go to sleep. Only the time in which it is busy does. Of 51 recordings of planted faults, of the
part to develop on, half gained more than 0.63 in this way, a quarter less than 0.35. All were of one machine, so half
of it is taken."""


BESIDES = 1.1  # Times the kernels' own time, at most (our choice): of GPT-2's attention took 44.0 ms, and 44.7 went.
MOSTLY = 0.9  # Of the time that is removed, that is the device's: then what is removed are kernels (our choice).
UNTOUCHED = 0.95  # Of the device's time, that a fix leaves which is of the host (our choice).


class Priced(Struct, frozen=True):
    """A finding with what it saves."""

    page: RuleName
    finding: Finding
    alone: Saving
    others_ns: int  # Of its likely saving alone: what other ops are assumed to get faster.
    added: Saving | None = None  # What it adds to those above; None if that was not asked.
    most_ns: int | None = None  # Of its saving; None: not known.
    hidden: bool = False  # Whether it saves much more once those above are fixed than alone.

    @property
    def fixes(self) -> bool:
        """Whether its fix shortens the step."""
        return not (self.finding.per_sample or self.finding.kind is Kind.WHERE_TO_LOOK)


def likely_ns(finding: Finding, gain_ns: int) -> int:
    """The likely saving of a finding that gains so much when replayed: half of it if it names no fix (our choice)."""
    return gain_ns // 2 if finding.names_no_fix else gain_ns


class Step(Struct, frozen=True):
    """The step that a report is about. In ns."""

    ns: int  # Mean of all timed steps.
    usual_ns: int  # The same of steps of a kind that was recorded.
    replayed_ns: int  # As the replay has it without a fix.
    device_ns: int = 0  # Of the replayed one, while the device computes or copies.
    busy: float = 0.0  # Share of it in which the training is known to compute on the CPU.
    size: float = 1.0  # How many times as much the replayed one does.
    longer_ns: Mapping[str, int] = field(default_factory=dict)  # By phase, of what steps not recorded take longer.
    doubt: float = 0.0  # Share of it that the replay fails to explain.

    @staticmethod
    def of(facts: Facts, replay: Replay | None = None) -> Step:
        """The step of a rank's report, also where nothing is replayed. Raises Missing if no step can be measured."""
        timed, parts = optional(slowdown, facts), optional(breakdown, facts)
        replayed_ns = max(steps(facts).mean_ns if replay is None else replay.quality.step_time_ns, 1)
        doubt = 0.0 if replay is None else replay.doubt
        device_ns = 0 if parts is None else parts.compute_ns + parts.exposed_copy_ns + parts.work_not_recorded_ns
        device_ns, busy = min(device_ns, replayed_ns), optional(busy_share, facts) or 0.0
        if timed is None:
            return Step(replayed_ns, replayed_ns, replayed_ns, device_ns, busy, doubt=doubt)
        return Step(
            timed.mean_ns, timed.unprofiled_ns, replayed_ns, device_ns, busy, timed.size, timed.longer_ns, doubt
        )

    def priced(self, page: RuleName, finding: Finding, alone: Saving, changes: Sequence[Change] = ()) -> Priced:
        """A finding with its saving of this step. `alone`: of the replayed step; `changes`: what its edits change."""
        phases, left = (finding.phase,), alone.device_left
        likely, high = (self.replayed_ns - ns for ns in (alone.likely_ns, alone.high_ns))
        gain_ns, high_ns = (self.ns - self.left(ns, left, phases) for ns in (likely, high))
        basis = finding.basis if alone.basis is Basis.REPLAYED else alone.basis
        basis = Basis.AT_MOST if finding.kind is Kind.WHERE_TO_LOOK else basis
        most_ns = self._most_ns(alone, changes)
        saving = self.ranged(likely_ns(finding, gain_ns), high_ns, basis, alone.replayed_ns, most_ns)
        own_ns = self.usual_ns - self._corrected(likely, left) + self.longer_ns.get(finding.phase, 0)
        return Priced(page, finding, saving, likely_ns(finding, max(gain_ns - own_ns, 0)), most_ns=most_ns)

    def _most_ns(self, alone: Saving, changes: Sequence[Change]) -> int | None:
        """What a fix saves at most, in ns: one that changes kernels little more than their time, one that leaves the
        device's work all but that; None: not known. Host time is no bound: more than a fix changes may go."""
        changed_ns, gone_ns = sum(one.ns for one in changes), (1 - alone.device_left) * self.device_ns
        recost = all(one.kind is ChangeKind.RECOST for one in changes)
        removed = all(one.kind is ChangeKind.REMOVE for one in changes) and gone_ns > MOSTLY * changed_ns
        if self.device_ns and changes and (recost or removed):
            return min(round(BESIDES * changed_ns), self.ns)
        if self.device_ns and alone.device_left > UNTOUCHED:
            return round(self.ns - min(self.device_ns, self.ns) * alone.device_left)
        return None

    def ranged(
        self,
        likely_ns: int,
        high_ns: int,
        basis: Basis,
        replayed_ns: tuple[int, int, int] | None = None,
        most_ns: int | None = None,
    ) -> Saving:
        """A saving with its range. `high_ns`: of bounds, of which only the upper end says something."""
        low_ns, likely_ns, high_ns = ranged(likely_ns, high_ns, self.ns, basis, self.doubt, most_ns=most_ns)
        return Saving(low_ns, likely_ns, high_ns, basis, replayed_ns)

    def left(self, replayed_ns: int, device_left: float = 1.0, phases: Iterable[str] = ()) -> int:
        """What this step takes, in ns, where the replayed one takes so much, with this share left of the device's time.
        `phases`: those in which no step is longer than the recorded ones any more."""
        ns = self._corrected(replayed_ns, device_left)
        warmer = CACHE_WARMTH * self.busy * (self.usual_ns - ns) / max(self.usual_ns, 1) * ns
        longer_ns = self.ns - self.usual_ns - sum(self.longer_ns.get(phase, 0) for phase in phases)
        return longer_ns + ns - round(warmer)

    def _corrected(self, replayed_ns: int, device_left: float) -> int:
        """What a usual step takes where the replayed one takes so much. Only time in which the device does nothing is
        scaled, as recording lengthens nothing else; `device_left`: share of the device's time that stays."""
        usual_ns, host_ns = self.usual_ns * self.size, self.replayed_ns - self.device_ns
        if not host_ns or usual_ns <= self.device_ns:
            return round(replayed_ns / self.replayed_ns * self.usual_ns)
        working_ns = min(self.device_ns * device_left, replayed_ns)
        ns = working_ns + (replayed_ns - working_ns) / host_ns * (usual_ns - self.device_ns)
        return round(min(ns, usual_ns) / self.size)

    def figures(self, one: Sections) -> Sections:
        """The sections with figures of this step, not of the recorded one: device work as recorded, idle the rest."""
        whole, flops, host = one.breakdown, one.flops, one.host and self._host(one.host)
        if flops is not None:
            per_step, recorded_s = flops.flops / self.size, flops.flops / flops.flops_per_s
            mfu = flops.mfu and flops.mfu * recorded_s / self.size / (self.ns / 1e9)
            flops = replace(flops, flops=round(per_step), flops_per_s=per_step / self.ns * 1e9, mfu=mfu)
        if whole is None:
            return replace(one, flops=flops, host=host)
        kept = min(1.0 / self.size, self.usual_ns / max(whole.busy_ns + whole.work_not_recorded_ns, 1))
        parts = whole.compute_ns, whole.exposed_communication_ns, whole.exposed_copy_ns, whole.work_not_recorded_ns
        compute, communication, copies, missing = (round(ns * kept) for ns in parts)
        busy_ns = compute + communication + copies
        waiting_ns = max(self.usual_ns - busy_ns - missing, 0)
        idle_ns = waiting_ns + self.ns - self.usual_ns
        step_ns = busy_ns + missing + idle_ns
        return replace(
            one,
            breakdown=Breakdown(step_ns, busy_ns, idle_ns, compute, communication, copies, whole.measure, missing),
            idle=one.idle and self._idle(one.idle, waiting_ns),
            kernels=one.kernels and tuple(self._share(row, kept) for row in one.kernels),
            kernel_kinds=one.kernel_kinds and tuple(self._share(row, kept) for row in one.kernel_kinds),
            kernel_ops=one.kernel_ops and tuple(self._share(row, kept) for row in one.kernel_ops),
            flops=flops,
            host=host,
        )

    def _host(self, one: HostTime) -> HostTime:
        """The host's time by cause, scaled to the usual step, with the stalls of this step added."""
        parts = shared_out([ns * self.usual_ns for ns in one.parts.values()], max(one.step_ns, 1))
        found = dict(zip(one.parts, parts, strict=True))
        for cause, ns in self._stalls():
            found[cause] = found.get(cause, 0) + ns
        return HostTime(sum(found.values()), found)

    def _stalls(self) -> list[tuple[TimeCause, int]]:
        """What this step takes longer than the usual one, in ns by cause: data loading, and all else. No zeros."""
        whole_ns = max(self.ns - self.usual_ns, 0)
        loading_ns = min(self.longer_ns.get("loader", 0), whole_ns)
        both = (TimeCause.LOADER, loading_ns), (TimeCause.OTHER_STEPS, whole_ns - loading_ns)
        return [(cause, ns) for cause, ns in both if ns]

    def _share(self, row: Share, kept: float) -> Share:
        return replace(row, ns=round(row.ns * kept), share=row.ns * kept / self.ns)

    def _idle(self, rows: Sequence[IdleShare], waiting_ns: int) -> tuple[IdleShare, ...]:
        """Idle time by cause, scaled to `waiting_ns` in all, with the stalls of this step on top; longest first."""
        whole_ns = max(sum(row.ns for row in rows), 1)
        parts = shared_out([row.ns * waiting_ns for row in rows], whole_ns)
        found = [replace(row, ns=ns, share=ns / self.ns) for row, ns in zip(rows, parts, strict=True)]
        stalled = [IdleShare(cause, None, ns, ns / self.ns, 0) for cause, ns in self._stalls()]
        return tuple(sorted([*found, *stalled], key=lambda row: -row.ns))
