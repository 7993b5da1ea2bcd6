"""The CPU is slow at everything.

Ops that move no data, such as `view`, take many times as long as on other machines.

Why it costs
    All CPU work takes longer, and the GPU waits for each launch and each line of Python.
How to fix
    Check what else runs on the machine, how many cores the container or job may use, and their clock. Check that
    PyTorch is no debug build and runs under no memory checker.
Ignore when
    the machine is meant to be that slow.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.run.quality import Distortion
from diagnose.rulekit.vocabulary import *

VIEW_NS = 8_000  # median of views: 0.3 to 6 us in nine public recordings, 23 in one whose every op was as slow


@rule("MQ06")
def slow_host(distortion: Distortion) -> Verdicts:
    if distortion.view_ns is None:
        yield NotApplicable("few or no view ops")
    elif distortion.view_ns < VIEW_NS:
        yield Clean(f"a view op takes {ms(distortion.view_ns)}")
    else:
        yield Caution(
            f"an op that moves no data takes {ms(distortion.view_ns)} of CPU time (usually 0.3 to 6 us)",
            "The CPU is slow or busy, or PyTorch is a debug build. Check this first: host-bound findings may vanish.",
            lowers_host=True,
        )


EXAMPLES = [
    Fires("4 steps of 10\ncpu  aten::view 0.1-0.12 x30 every 0.1 | aten::mm 8-8.1\ngpu  sgemm 8.05-9 @8.01"),
    Silent("4 steps of 10\ncpu  aten::view 0.1-0.101 x30 every 0.1 | aten::mm 8-8.1\ngpu  sgemm 8.05-9 @8.01"),
    # too few to say so
    Silent("4 steps of 10\ncpu  aten::view 0.1-0.12 x3 every 0.1 | aten::mm 8-8.1\ngpu  sgemm 8.05-9 @8.01"),
]
