"""cudnn.benchmark is off, and input sizes are fixed.

cuDNN and MIOpen pick convolution kernels by heuristics. With benchmark on, they time all kernels once per input size
and keep the fastest.

Why it costs
    Kernels picked by heuristics may suit any size, or run far below what the GPU can do.
How to fix
    Set `torch.backends.cudnn.benchmark = True` once, before training. The first step with each size takes longer.
Ignore when
    input sizes change often: each new size is searched again. Or results must be the same from run to run.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://docs.pytorch.org/docs/stable/notes/randomness.html#cuda-convolution-benchmarking
"""

from diagnose.facts.device.layout import Convolutions
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in convolutions (our choice)
REACHED = 0.4  # of what the GPU can do: kernels that reach it are good ones (rule catalogue KE07)
GENERIC_SHARE = 0.1  # of convolutions' time in kernels for any size (our choice)
SEARCH = Fix.of(fixes.CudnnBenchmark())


@rule("KE07")
def cudnn_benchmark(convolutions: Convolutions, steps: Steps, manifest: RankManifest | None = None) -> Verdicts:
    one, share = convolutions, convolutions.ns / max(steps.mean_ns, 1)
    is_on = manifest.flags.cudnn_benchmark if manifest else None
    reached = "" if one.reached is None else f", at {percent(one.reached)} of what the GPU can do"
    if not one.ns:
        yield NotApplicable("no convolutions run on the GPU")
    elif share < WORTH_SHARE:
        yield Clean(f"convolutions take {percent(share)} of the step")
    elif is_on:
        yield Clean("cudnn.benchmark is on")
    elif one.fixed is None:
        raise Missing("whether input sizes are fixed", "Record several steps.")
    elif not one.fixed:
        yield Clean("convolution sizes change from step to step: each new size would be searched again")
    elif one.reached is not None and one.reached >= REACHED:
        yield Clean(f"convolutions reach {percent(one.reached)} of what the GPU can do")
    elif is_on is None:
        raise Missing("whether cudnn.benchmark is on", "Record with diagnose profile.")
    elif one.reached is None and one.generic_ns < GENERIC_SHARE * one.ns:
        yield Clean("convolutions run kernels made for their sizes")
    else:
        yield Finding(
            evidence=(
                Evidence(f"Convolutions of fixed sizes take {ms(one.ns)}/step{reached}.", one.ns, "ns"),
                *(
                    [Evidence(f"Generic kernels such as `{one.generic[0]}` take {ms(one.generic_ns)}/step.")]
                    if one.generic
                    else []
                ),
            ),
            edits=(Recost(one.ids, Searched()),),
            fixes=(SEARCH,),
            confidence=Confidence(Level.LOW, "a search may find no faster kernels for these sizes"),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(  # of 60 ms none, 6 or 18
        """
        4 steps of 100
        device A100
        cudnn.benchmark off
        cpu  aten::convolution 0-1 | sync 2-99.9
        gpu  "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)" 0.02-60.02 @0.01
        gpu  pointwise 60.03-99.8 @0.5
        """,
        saving_ms=(0, 18),
    ),
    # on an H100 it was measured to gain nothing
    Silent("""
        4 steps of 100
        cudnn.benchmark off
        cpu  aten::convolution 0-1 | sync 2-99.9
        gpu  "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)" 0.02-60.02 @0.01
        gpu  pointwise 60.03-99.8 @0.5
    """),
    # sizes change
    Silent("""
        4 steps of 100
        cudnn.benchmark off
        cpu  aten::convolution 0-1 | sync 2-99.9
        gpu  "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)" 0.02-60 @0.01 in 0,1 blocks=200
        gpu  "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)" 0.02-60 @0.01 in 2,3 blocks=300
    """),
    # it is on already
    Silent("""
        4 steps of 100
        cudnn.benchmark on
        cpu  aten::convolution 0-1 | sync 2-99.9
        gpu  "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)" 0.02-60 @0.01
    """),
    CannotTell(
        """
        4 steps of 100
        cpu  aten::convolution 0-1 | sync 2-99.9
        gpu  conv 0.02-60 @0.01
        """,
        because="whether cudnn.benchmark is on",
    ),
]
