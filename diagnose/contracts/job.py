"""A job of many ranks in brief: what its step is spent on, who waits for whom, in which groups."""

import msgspec

from diagnose.facts.communication.job_times import WhyUnmatched
from diagnose.replay.job_path import JobPathPart, JobPathStretch


class JobRank(msgspec.Struct, frozen=True):
    """How one rank spends its mean step: computing, on its host, waiting, in transfers and in what is unmatched."""

    rank: int
    compute_ns: int
    host_ns: int  # By itself, without computing: on a device, idle or only copying.
    wait_ns: int | None
    """Held up until the last rank comes; more where `unmatched_ns` is not 0. None if nothing is known of it."""
    transfer_ns: int | None  # Held up in collectives and transfers after the last rank has come. None as above.
    unmatched_ns: int  # Held up in those whose other ranks are not known: waiting, transfer, or both.
    compute_late_ns: int | None
    """What the others waited for this rank, together, as the last to come, while it computed. None as above."""
    host_late_ns: int | None  # The same while it was on its host.
    held_late_ns: int | None  # The same while it was held up itself.

    @property
    def awaited_ns(self) -> int:
        """What the others waited for this rank, together."""
        return sum(one or 0 for one in (self.compute_late_ns, self.host_late_ns, self.held_late_ns))


class JobGroup(msgspec.Struct, frozen=True):
    """An operation in one process group, or what one rank sends to another. Times are the mean of its ranks.

    Of what one rank sends to another, times are the sum of both sides.
    """

    name: str  # What the program says that the group is for; "" if it says nothing.
    kind: str  # dp, fsdp, tp, pp, ep, cp by the name, "p2p" of what one rank sends to another, or "".
    ranks: tuple[int, ...]  # Of "p2p" from, to.
    operation: str
    calls: int  # Of one rank, per step.
    bytes: int | None  # Of one rank, per step; None if not known.
    ns: int  # In calls, hidden or not.
    wait_ns: int  # Held up until the last rank comes.
    transfer_ns: int  # Held up after that.
    bandwidth_bytes_per_s: float | None  # Bytes over the time from when the last rank comes to the end, hidden or not.


class JobStage(msgspec.Struct, frozen=True):
    """A rank of a pipeline with its stages."""

    rank: int
    stages: tuple[int, ...]
    compute_ns: int  # Of the rank, per step.
    wait_ns: int | None


class JobUnmatched(msgspec.Struct, frozen=True):
    """Collectives or transfers of which it is not known who waits for whom."""

    why: WhyUnmatched
    operation: str
    ranks: tuple[int, ...]
    missing: tuple[int, ...]  # Ranks of their groups without a recording, as far as known.
    calls: int  # Of these ranks, in all steps.
    held_ns: int  # For how long they hold one of these ranks up, per step: waiting, transfer, or both.


class JobSummary(msgspec.Struct, frozen=True):
    """Ranks that train together, in the steps that all of them use."""

    step_ns: int  # Mean, from when the last rank begins to when the last one ends.
    steps: tuple[int, ...]  # Their numbers; () if no steps are marked: then the recorded window stands for one.
    ranks: tuple[JobRank, ...]
    groups: tuple[JobGroup, ...]  # Longest held up first.
    pipelines: tuple[tuple[JobStage, ...], ...]
    critical_path: tuple[JobPathPart, ...]  # What the step waits for, longest first; adds up to `step_ns`.
    path_lane: tuple[JobPathStretch, ...]  # The same of the last step, in order of time.
    unmatched: tuple[JobUnmatched, ...]
    clocks: int  # How many machines' clocks were aligned.
    clock_error_ns: int | None
    """By how much the ends of collectives still differ between ranks, in the median; None if there are none."""
    compute_ns: tuple[tuple[int, ...], ...]  # Of each rank, in each step.
    wait_ns: tuple[tuple[int, ...] | None, ...]  # Of each rank, in each step; None if nothing is known of its waiting.
    noise: float
    """Share of what a rank takes by itself by which ranks of equal work differ by chance, with cores of their own."""
