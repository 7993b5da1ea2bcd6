"""The host is slow at everything.

Ops that only say how memory is read, such as `view`, take many times as long as on other machines.

Why it costs
    All that the host does takes longer then, and the GPU waits for it: each launch, each line of Python.

How to fix
    See what else runs on the machine, how many cores the container or job may use, at which clock they run; and that
    PyTorch is no build for debugging and runs under no tool that checks memory.

Ignore when
    the machine is meant to be so slow.

Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.run.quality import Distortion
from diagnose.rulekit.vocabulary import *

VIEW_NS = 8_000  # median of views: 0.3 to 6 us in nine public recordings, 23 in one whose every op was as slow


@rule("MQ06")
def slow_host(distortion: Distortion) -> Verdicts:
    if distortion.view_ns is None:
        yield NotApplicable("few or no views are made")
    elif distortion.view_ns < VIEW_NS:
        yield Clean(f"a view takes the host {ms(distortion.view_ns)}")
    else:
        yield Caution(
            f"an op that moves no data takes the host {ms(distortion.view_ns)}, where 0.3 to 6 us are usual",
            "The CPU is slow or busy, or PyTorch is built for debugging. Check the host first: on a healthy one,"
            " findings about host time shrink or vanish.",
            lowers_host=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 10
        cpu  aten::view 0.1-0.12 x30 every 0.1 | aten::mm 8-8.1
        gpu  sgemm 8.05-9 @8.01
        """
    ),
    Silent(
        """
        4 steps of 10
        cpu  aten::view 0.1-0.101 x30 every 0.1 | aten::mm 8-8.1
        gpu  sgemm 8.05-9 @8.01
        """
    ),
    Silent(  # too few to say so
        """
        4 steps of 10
        cpu  aten::view 0.1-0.12 x3 every 0.1 | aten::mm 8-8.1
        gpu  sgemm 8.05-9 @8.01
        """
    ),
]
