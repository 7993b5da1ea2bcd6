"""CUDA_LAUNCH_BLOCKING makes every launch wait.

With CUDA_LAUNCH_BLOCKING=1, a debugging mode, each launch returns only when its kernel has finished.

Why it costs
    CPU and GPU take turns. Nothing is ever queued, and the GPU idles while the CPU prepares the next launch.
How to fix
    Unset CUDA_LAUNCH_BLOCKING.
Ignore when
    you are debugging.
Sources
    https://docs.pytorch.org/docs/stable/notes/cuda.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.host.waits import BlockingLaunches
from diagnose.rulekit.vocabulary import *

LAUNCH = Between(0.3, 0.1, 0.03)  # of a launch's time: 3 to 6 us are usual


@rule("SY04")
def blocking_launches(blocking_launches: BlockingLaunches, launch_blocking: bool | None = None) -> Verdicts:
    found = blocking_launches
    if not found.block or launch_blocking is False:
        off = ", with CUDA_LAUNCH_BLOCKING off" if launch_blocking is False else ""
        yield Clean(f"{percent(found.alike_share)} of long kernels' launches take as long as the kernel{off}")
    else:
        known = "CUDA_LAUNCH_BLOCKING is on, " if launch_blocking else ""
        yield Finding(
            evidence=(
                Evidence(
                    f"{percent(found.alike_share)} of long kernels' launches take as long as the kernel;"
                    f" {percent(found.empty_queue_share)} hit an empty queue.",
                    found.alike_share,
                    "share",
                ),
            ),
            edits=(Shorten(found.call_ids, LAUNCH),),
            fixes=(
                Fix.of(
                    fixes.Environment(value=(("CUDA_LAUNCH_BLOCKING", "0"),)),
                    "Unset CUDA_LAUNCH_BLOCKING.",
                    before="CUDA_LAUNCH_BLOCKING=1 python train.py",
                    after="python train.py",
                ),
            ),
            confidence=Confidence(Level.HIGH, f"{known}launches take as long as their kernels"),
            host_bound=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        cpu  aten::mm 0-4.5 x20 every 5
        gpu  sgemm 0.11-4 @0.1-4.01 x20 every 5
        """,
        saving_ms=(22.18, 22.18),  # 20 kernels of 3.891 ms are left
    ),
    Silent("""
        4 steps of 100
        cpu  aten::mm 0-0.5 x20 every 0.5 | sync 11-99.91
        gpu  sgemm 0.11-5 @0.1 | sgemm 5-9.9 @0.6 | sgemm 9.9-99.9 @1.1
    """),
]
