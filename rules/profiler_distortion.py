"""Recording has slowed the host down.

Call stacks and memory events cost host time at every op, and the recorder itself stops threads to write its buffers.

Why it costs
    The host looks slower than it is: gaps in which the GPU waits for it are longer than in a run without the
    profiler. Times of kernels stay valid.

How to fix
    Take times from a recording without stacks and memory, and source lines from a second one with them.

Ignore when
    the GPU is busy nearly all the time: then the host's time is hidden anyway.

Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.rule import Caution, Clean, Distortion, Fires, Silent, Verdicts, ms, percent, rule

OVERHEAD_SHARE = 0.02  # of the step in the recorder's own work (our choice)
LAUNCH_NS = 12_000  # median of a launching call: twice the 6 us at most that launches take without a profiler
SLOW = ("stacks", "memory")  # options that cost host time at every op


@rule("MQ02")
def profiler_distortion(distortion: Distortion) -> Verdicts:
    slow = [option for option in distortion.options if option in SLOW]
    reasons = [f"{' and '.join(slow)} were recorded"] if slow else []
    if distortion.overhead_share >= OVERHEAD_SHARE:
        reasons.append(f"the recorder's own work takes {percent(distortion.overhead_share)} of the step")
    if distortion.launch_ns is not None and distortion.launch_ns > LAUNCH_NS:
        reasons.append(f"a launch takes {ms(distortion.launch_ns)}, where 3 to 6 us are usual")
    if not reasons:
        yield Clean("nothing points to a host slowed down by recording")
    else:
        yield Caution(
            f"recording slowed the host down ({'; '.join(reasons)})",
            "Savings of host time are too high. For times, record without with_stack and profile_memory.",
            lowers_host=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        cpu  "train.py(3): main" 0-99 | aten::mm 1-2 | sync 5-99
        gpu  sgemm 1.02-98.9 @1.01
        """
    ),
    Fires(
        """
        4 steps of 100
        cpu  aten::mm 0-1 | "Buffer Flush" 2-5 | sync 5-99.01
        gpu  sgemm 0.02-99 @0.01
        """
    ),
    Silent(
        """
        4 steps of 100
        cpu  aten::mm 0-1 | sync 5-99.01
        gpu  sgemm 0.02-99 @0.01
        """
    ),
]
