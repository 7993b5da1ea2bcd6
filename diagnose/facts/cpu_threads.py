"""Do more threads compute on the CPU than there are cores?"""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.facts.base import Facts, Missing, fact
from diagnose.facts.breakdown import round_half_up
from diagnose.facts.dispatch import host_spans, on_training_threads
from diagnose.facts.run import manifest, trains_on_cpu
from diagnose.facts.steps import steps
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray


@dataclass(frozen=True)
class CpuThreads:
    """Threads that a training on the CPU computes with."""

    threads: int
    """Of each process (torch.get_num_threads)."""
    cpus: int
    """Logical cores that there are for each process of the run on this machine, at least 1."""
    ops_ns: int
    """Time of the training threads in ops, per step."""
    op_ids: IntArray
    """Outermost ops of the training threads."""


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
