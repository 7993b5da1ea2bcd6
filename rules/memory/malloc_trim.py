"""malloc returns memory to the system in every step.

A training on the CPU frees large tensors in every step, the C library gives their memory back to the system, and the
next step gets it page by page.

Why it costs
    Each page of 4 kB is cleared and mapped when it is touched first: about 1 us, 250 ms for a GB.

How to fix
    Tell glibc to keep what may be needed again, by two variables of the environment: that works for tensors of up to
    32 MB. Or use jemalloc or TCMalloc, which do so by themselves. Fewer large temporaries (in-place ops,
    `torch.compile`) help as well.

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
    "Or use an allocator that does.",
    before="python train.py",
    after="LD_PRELOAD=libjemalloc.so.2 python train.py",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
TUNED = Fix.of(
    fixes.Environment(value=(("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "2147483647"))),
    "Have glibc keep memory.",
)


@rule("ME05")
def malloc_trim(fetched_memory: FetchedMemory | None, steps: Steps) -> Verdicts:
    found = fetched_memory
    if found is None:
        yield NotApplicable("tensors are not in the memory of the host")
        return
    if found.ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"{bytes_(found.bytes)} a step are fetched from the system")
        return
    if found.largest_bytes is None:
        raise Missing("how large tensors are", "Record with record_shapes=True.")
    if found.largest_bytes >= KEPT_BYTES:
        raise Missing(
            "whether tensors of 32 MB and more could be kept", "Try LD_PRELOAD=libjemalloc.so.2, and compare."
        )
    share = min(found.ns / max(found.ops_ns, 1), MOST)
    yield Finding(
        evidence=(
            Evidence(
                f"Each step fetches {bytes_(found.bytes)} from the system that were given back: about {ms(found.ns)}.",
                found.bytes,
                "bytes",
            ),
        ),
        edits=(Shorten(found.op_ids, Between(1 - share / 2, 1 - share, 1 - min(1.5 * share, MOST))),),
        fixes=(TUNED, KEEP),
        confidence=Confidence(Level.MEDIUM, "pages are counted without the profiler; what each takes is not"),
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
    Silent(
        """
        4 steps of 100
        2 threads, 4 cores
        fetched 1 MB a step
        cpu  aten::mm 0-50
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="memory"),
]
