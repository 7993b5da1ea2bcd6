"""Do more threads compute on the CPU than there are cores, and do others of Python hold the training up?"""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.run import HOW, manifest, trains_on_cpu
from diagnose.facts.core.spans import host_spans, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

BUSY_SHARE = 0.1  # Of a core: threads beside the training that compute less hardly hold it up (our choice).


@dataclass(frozen=True)
class CpuThreads:
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
        raise Missing("how many threads and cores there are", "Record with diagnose profile.")
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    return CpuThreads(
        threads=threads,
        cpus=max(cpus // max(context.ranks, 1), 1),
        ops_ns=round_half_up(ops.in_steps(facts).times.total, steps(facts).count),
        op_ids=ops.ids,
    )


@dataclass(frozen=True)
class CompetingThreads:
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
        raise Missing("how much Python's other threads compute", HOW)
    return CompetingThreads(tuple(one.name for one in found), sum(one.cpu_share for one in found))
