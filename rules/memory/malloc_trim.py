"""malloc returns memory to the system in every step.

A training on the CPU frees large tensors in every step. The C library returns their memory to the system, and the next
step gets it back page by page.

Why it costs
    The system clears and maps each page of 4 kB at its first use: about 1 us, 250 ms per GB.
How to fix
    Set two glibc variables to keep freed memory; they work for tensors up to 32 MB. Or use jemalloc or TCMalloc, which
    keep it by default. Fewer large temporaries help too (in-place ops, `torch.compile`).
Ignore when
    memory is short, and other processes wait for it.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html
"""

from diagnose.facts.host.process import FetchedMemory
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step (our choice)
# Such blocks glibc maps and unmaps one by one, however it is told: four trainings with them gained nothing.
KEPT_BYTES = 32 << 20
MOST = 0.8  # of the time in ops: more is not believed (our choice)
KEEP = Fix(
    "Or use jemalloc, which keeps freed memory.",
    before="python train.py",
    after="LD_PRELOAD=libjemalloc.so.2 python train.py",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
TUNED = Fix.of(
    fixes.Environment(value=(("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "2147483647"))),
    "Let glibc keep freed memory.",
)


@rule("ME05")
def malloc_trim(fetched_memory: FetchedMemory | None, steps: Steps) -> Verdicts:
    found = fetched_memory
    if found is None:
        yield NotApplicable("tensors are not in CPU memory")
        return
    if found.ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"page faults fetch {bytes_(found.bytes)}/step from the system")
        return
    if found.largest_bytes is None:
        raise Missing("tensor sizes", "Record with record_shapes=True.")
    if found.largest_bytes >= KEPT_BYTES:
        raise Missing(
            "whether malloc can keep tensors of 32 MB and more", "Try LD_PRELOAD=libjemalloc.so.2, and compare."
        )
    share = min(found.ns / max(found.ops_ns, 1), MOST)
    text = f"Page faults fetch {bytes_(found.bytes)} of freed memory back per step: about {about(found.ns)}."
    yield Finding(
        evidence=(Evidence(text, found.bytes, "bytes"),),
        edits=(Shorten(found.op_ids, Between(1 - share / 2, 1 - share, 1 - min(1.5 * share, MOST))),),
        fixes=(TUNED, KEEP),
        confidence=Confidence(Level.MEDIUM, "page faults are counted without the profiler, their cost is assumed"),
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # 80 MB take 20 ms: of 50 ms in ops two fifths
        """
        4 steps of 100
        2 threads, 4 cores
        fetched 80 MB a step
        cpu  aten::mm 0-50 shapes=[[1000,100],[100,1000]] types=["float","float"]
        """,
        saving_ms=(10, 30),
    ),
    Silent("4 steps of 100\n2 threads, 4 cores\nfetched 1 MB a step\ncpu  aten::mm 0-50"),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="page faults"),
]
