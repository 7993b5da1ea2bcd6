"""torch.cuda.synchronize() in every step.

The training loop calls `torch.cuda.synchronize()`, `event.synchronize()` or `stream.synchronize()`, often for timing.

Why it costs
    The CPU launches nothing while it waits, and the GPU runs out of work.
How to fix
    Remove the calls. For timing record CUDA events, and read them some steps later.
Ignore when
    another process or library needs the result at that moment.
Sources
    https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
"""

from diagnose.facts.host.waits import HostWait, WaitReason
from diagnose.rulekit.vocabulary import *

CALLS = 2  # in all used steps: a single one may be the profiler's own
EVERY_STEPS = 2  # seen in less than every second step it is an occasional one


@rule("SY03")
def explicit_synchronisation(host_waits: tuple[HostWait, ...], steps: Steps) -> Verdicts:
    waits = [wait for wait in host_waits if wait.reason is WaitReason.EXPLICIT]
    repeated = [wait for wait in waits if wait.total_calls >= CALLS]
    frequent = [wait for wait in repeated if wait.steps_seen * EVERY_STEPS >= steps.count]
    if not frequent:
        yield Clean(f"{sum(wait.total_calls for wait in waits)} explicit synchronisations in {steps.count} steps")
    for wait in frequent:
        yield Finding(
            evidence=(Evidence(waited(wait, steps), wait.blocked_ns, "ns"),),
            edits=(Detach(wait.ids),),
            fixes=(Fix.of(fixes.NoSynchronize()),),
            confidence=Confidence(Level.HIGH, "the wait and the GPU's idle time are recorded"),
            site=wait.site,
            host_bound=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        cpu  aten::mm 40-41 | device_sync 42-99.01
        gpu  sgemm 40.01-99 @40
        """,
        saving_ms=(41, 41),  # the kernel's 58.99 ms are left
    ),
    # the next launch comes at once
    Silent("4 steps of 100\ncpu  aten::mm 0.01-0.03 | device_sync 0.1-99.95\ngpu  sgemm 0.04-99.94 @0.02"),
    # once in eight steps
    Silent("8 steps of 100\ncpu  aten::mm 0-1 | device_sync 2-99.01 in 5\ngpu  sgemm 0.02-99 @0.01"),
]
