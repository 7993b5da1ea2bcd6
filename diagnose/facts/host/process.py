"""What the process takes of the machine: threads that compute on its CPU, and memory that it fetches each step."""

from collections.abc import Iterator

from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.run import HOW, manifest, trains_on_cpu
from diagnose.facts.core.spans import host_spans, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.run.timed_steps import slowdown
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

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

_NOT_COUNTED = Missing("page faults", "Record with diagnose profile.")


class FetchedMemory(Struct, frozen=True):
    """Memory that a training on the CPU fetches in every step."""

    bytes: int  # Per step without the profiler.
    ns: int  # What that takes, per recorded step: as much longer as it is.
    op_ids: IntArray  # Outermost ops of the training threads, of the whole recording: in some of them it is fetched.
    ops_ns: int  # Time in them, per step.
    largest_bytes: int | None  # Of a tensor that an op takes; None if that is not recorded.


@fact
def fetched_memory(facts: Facts) -> FetchedMemory | None:
    """None where the training is not on the CPU alone. Raises Missing if nobody counted, and without steps."""
    alone = manifest(facts).unprofiled
    if alone is None or alone.fetched_bytes is None:
        raise _NOT_COUNTED
    if not trains_on_cpu(facts):
        return None
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    used, slower = ops.in_steps(facts), optional(slowdown, facts)
    ratio = slower.ratio if slower is not None and slower.ratio else 1.0
    return FetchedMemory(
        bytes=alone.fetched_bytes,
        ns=round(alone.fetched_bytes * BYTE_NS * max(ratio, 1.0)),
        op_ids=ops.ids,
        largest_bytes=max((size for size in _sizes(facts, ops.ids) if size), default=None),
        ops_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), steps(facts).count),
    )


def _sizes(facts: Facts, ops: IntArray) -> Iterator[int | None]:
    _, distinct = recorded_inputs(facts, ops)
    return (tensor.bytes for inputs in distinct for some in inputs for tensor in some)
