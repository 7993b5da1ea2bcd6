"""The CPU computes what the GPU could.

An op runs on tensors in CPU memory: it draws random numbers, augments or sorts. It launches nothing on the GPU, and
takes far longer than the dispatch of a kernel.

Why it costs
    The GPU idles until the op is done. Compiling does not help.
How to fix
    Create tensors on the GPU (`device=device`), and compute there on tensors that are there already. Move work on
    single samples to DataLoader workers.
Ignore when
    the op has no GPU version, or its tensors do not fit.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.host.starvation import HostCompute
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step idle for one op at one line (our choice)
CALLS = 3  # in the used steps: one or two may be start-up, not a loop (our choice)
MADE = Between(0.1, 0.02, 0.0)  # of making a tensor: a GPU fills 8 million numbers in 20 us, a host took 50 ms
LEFT = Between(0.5, 0.1, 0.0)  # of other ops, on the device or in workers (our choice)

ON_DEVICE = Fix(
    "Create the tensor on the GPU (random numbers then come from its generator).",
    after="x = torch.randn(n, device=device)",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
MOVE = Fix(
    "Run the op on the GPU, once, or in DataLoader workers.",
    after="x = augment(x.to(device))",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)


@rule("LB11")
def host_compute(host_compute: tuple[HostCompute, ...], steps: Steps) -> Verdicts:
    large = [one for one in host_compute if one.share >= WORTH_SHARE]
    if large and steps.count == 1 and sum(one.calls for one in large) < CALLS:
        raise Missing("whether ops that compute on the CPU recur", "Record three steps or more.")
    if not large:
        most = max((one.share for one in host_compute), default=0.0)
        yield Clean(f"the GPU waits at most {percent(most)} of the step for one op on the CPU")
    for one in large:
        made = len(one.move_ids) * 2 > len(one.ids)
        often = one.calls / steps.count
        yield Finding(
            title=f"`{one.op}` creates a tensor on the CPU" if made else f"`{one.op}` runs on the CPU",
            evidence=(
                Evidence(
                    f"The GPU idles {ms(one.idle_ns)}/step ({percent(one.share)}) while `{one.op}` runs on the CPU.",
                    one.idle_ns,
                    "ns",
                ),
                Evidence(
                    f"`{one.op}` takes {ms(one.ns)}/step in {often:.3g} call{'s' * (often != 1)}"
                    f"{'; its result is copied to the GPU' * made}.",
                    one.ns,
                    "ns",
                ),
            ),
            edits=(Shorten(one.ids, MADE if made else LEFT), Remove(one.move_ids)),
            fixes=(ON_DEVICE if made else MOVE,),
            confidence=Confidence(Level.HIGH, "the op, its time and its copy are recorded")
            if made
            else Confidence(Level.MEDIUM, "whether the op can run on the GPU is not recorded"),
            site=one.site,
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    # 50 ms of random numbers, of which 90 to 100 % go, with the copy's 5
    Fires("""
        4 steps of 60
        cpu  aten::randn 0-50 | aten::to 50.1-50.3 | aten::mm 56-56.1
        gpu  h2d 50.2-55.2 @50.15 pageable 33MB | sgemm 56.06-59.9 @56.05
    """),
    # the result is not made out of nothing, and nothing copies it
    Fires("4 steps of 60\ncpu  aten::sort 0-40 | aten::mm 41-41.1\ngpu  sgemm 41.06-59.9 @41.05"),
    # while the GPU works
    Silent("4 steps of 60\ncpu  aten::mm 0-0.1 | aten::sort 1-40 | sync 41-59.95\ngpu  sgemm 0.06-59.9 @0.05"),
    CannotTell("4 steps of 100\ngpu  sgemm 40.5-99.9 @40.2", because="ProfilerActivity.CPU"),
]
