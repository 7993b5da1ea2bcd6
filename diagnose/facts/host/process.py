"""What the process takes of the machine: threads, memory that it fetches each step, and room for a larger batch."""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause, round_half_up
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.idle import idle
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.run import HOW, manifest, trains_on_cpu
from diagnose.facts.core.spans import host_spans, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.facts.device.kernels import filling
from diagnose.facts.device.memory import memory
from diagnose.facts.host.python import SHORT_NS, python_pauses
from diagnose.facts.host.starvation import starvation
from diagnose.facts.optimizer.optimizer import for_parameters
from diagnose.facts.run.timed_steps import slowdown
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

BUSY_SHARE = 0.1  # Of a core: threads beside the training that compute less hardly hold it up (our choice).


class CpuThreads(Struct, frozen=True):
    """Threads that a training on the CPU computes with."""

    threads: int  # Of each process (torch.get_num_threads).
    cpus: int  # Logical cores that there are for each process of the run on this machine, at least 1.
    ops_ns: int  # Time of the training threads in ops, per step.
    op_ids: IntArray  # Outermost ops of the training threads.


@fact
def cpu_threads(facts: Facts) -> CpuThreads | None:
    """None if the training computes on a device. Raises Missing if threads or cores are not known, or without ops."""
    threads = manifest(facts).flags.threads
    context = facts.rank.context
    cpus = None if context is None else context.host.cpus_allowed
    if not trains_on_cpu(facts):
        return None
    if not threads or not cpus or context is None:
        raise Missing("numbers of threads and cores", "Record with diagnose profile.")
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    return CpuThreads(
        threads=threads,
        cpus=max(cpus // max(context.ranks, 1), 1),
        ops_ns=round_half_up(ops.in_steps(facts).times.total, steps(facts).count),
        op_ids=ops.ids,
    )


class CompetingThreads(Struct, frozen=True):
    """Threads of Python that compute beside the one that trains. Python runs one thread at a time."""

    names: tuple[str, ...]  # Most computing first.
    share: float  # CPU time of all of them over the time of the steps: 1 is a core.

    @property
    def busy(self) -> bool:
        """Whether they compute enough to hold up the training."""
        return self.share >= BUSY_SHARE


@fact
def competing_threads(facts: Facts) -> CompetingThreads:
    """Such threads, as seen in steps without the profiler. Raises Missing if that was not recorded."""
    found = manifest(facts).python_threads
    if found is None:
        raise Missing("CPU time of other Python threads", HOW)
    return CompetingThreads(tuple(one.name for one in found), sum(one.cpu_share for one in found))


BYTE_NS = 0.25  # What fetching takes: 80 MB took 20 ms of one thread (an Intel Xeon, in a virtual machine).


class FetchedMemory(Struct, frozen=True):
    """Memory that a training on the CPU fetches in every step."""

    bytes: int  # Per step without the profiler.
    ns: int  # Time that takes per recorded step, with the slowdown of recording.
    op_ids: IntArray  # Outermost ops of training threads in the whole recording; which of them fetch is not known.
    ops_ns: int  # Time in them, per step.
    largest_bytes: int | None  # Of a tensor that an op takes; None if that is not recorded.


@fact
def fetched_memory(facts: Facts) -> FetchedMemory | None:
    """None where the training is not on the CPU alone. Raises Missing if nobody counted, and without steps."""
    alone = manifest(facts).unprofiled
    if alone is None or alone.fetched_bytes is None:
        raise Missing("page faults", "Record with diagnose profile.")
    if not trains_on_cpu(facts):
        return None
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    used, slower = ops.in_steps(facts), optional(slowdown, facts)
    ratio = slower.ratio if slower is not None and slower.ratio else 1.0
    sizes = [tensor.bytes for some in recorded_inputs(facts, ops.ids)[1] for input_ in some for tensor in input_]
    return FetchedMemory(
        bytes=alone.fetched_bytes,
        ns=round(alone.fetched_bytes * BYTE_NS * max(ratio, 1.0)),
        op_ids=ops.ids,
        largest_bytes=max(filter(None, sizes), default=None),
        ops_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), steps(facts).count),
    )


TIMES = (2, 4, 8)  # As large as now: what still larger batches do to the training no trace tells. Chosen.
USED_AT_MOST = 0.9  # Of the device's memory, with the larger batch: the rest is for context, libraries, fragments.


class LargerBatch(Struct, frozen=True):
    """A batch that fits, and what a step does once whatever the batch is; times per step."""

    times: int  # As large as now, of TIMES; 1 if twice the batch does not fit for sure.
    used_bytes: int  # Most that the allocator held.
    capacity_bytes: int
    host_idle_ns: int  # Idle time of the device in dispatch, calls of modules, and the optimizer's step.
    host_times: tuple[tuple[int, Intervals], ...]  # Of these: thread and times.
    update_ids: IntArray  # Device work for parameters: updates, and zeroing of gradients.
    update_ns: int
    underfilled_ids: IntArray  # Other kernels that do not fill the device.
    underfilled_ns: int
    filled_share: float  # Of the device, while they run.


@fact
def larger_batch(facts: Facts) -> LargerBatch:
    """By the fullest device. Raises Missing without device work, like `memory`, and if its size was not recorded."""
    table, count = work_table(facts), max(steps(facts).count, 1)
    known = [
        (one.peak_reserved_bytes / one.capacity_bytes, one.peak_reserved_bytes, one.capacity_bytes)
        for one in memory(facts)
        if one.peak_reserved_bytes and one.capacity_bytes
    ]
    if not known:
        raise Missing("reserved GPU memory", "Record with a current PyTorch.")
    share, used, capacity = max(known)
    fits = [times for times in TIMES if times * share <= USED_AT_MOST]
    update = for_parameters(facts)
    starved, kernels = optional(starvation, facts), optional(filling, facts)
    pauses = [one for one in optional(python_pauses, facts) or () if not one.on_cpu and one.each_ns <= SHORT_NS]
    activities = optional(host_activities, facts)
    stepping = activities[TimeCause.OPTIMIZER] if activities else intervals.EMPTY
    under = np.empty(0, dtype=np.int64) if kernels is None else np.setdiff1d(kernels.underfilled_ids, table.ids[update])
    dur_ns = table.dur_ns * table.in_steps
    return LargerBatch(
        times=max(fits, default=1),
        used_bytes=used,
        capacity_bytes=capacity,
        host_idle_ns=(starved.idle_ns if starved else 0)
        + sum(pause.idle_ns for pause in pauses)
        + sum(one.ns for one in optional(idle, facts) or () if one.cause is TimeCause.OPTIMIZER),
        host_times=(
            *(starved.times if starved else ()),
            *(some for pause in pauses for some in pause.times),
            *([(host_threads(facts).main, stepping)] if stepping.size else []),
        ),
        update_ids=table.ids[update],
        update_ns=int(dur_ns[update].sum()) // count,
        underfilled_ids=under,
        underfilled_ns=int(dur_ns[np.isin(table.ids, under)].sum()) // count,
        filled_share=1.0 if kernels is None else kernels.filled_share,
    )
