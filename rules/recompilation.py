"""torch.compile compiles again in steady steps.

A new shape, type or Python value makes compiled code unfit for what it is called with, and it is compiled again.

Why it costs
    Compiling takes seconds to minutes, in which nothing is trained. After eight times the function runs uncompiled.

How to fix
    Find the reason with TORCH_LOGS=recompiles,graph_breaks; mark sizes that change as dynamic, or pad them to a few.

Ignore when
    the recorded steps are the first of the run.

Sources
    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
"""

from diagnose.rule import (
    Between,
    Clean,
    Compiling,
    Confidence,
    Evidence,
    Finding,
    Fires,
    Fix,
    Level,
    NotApplicable,
    Safety,
    Shorten,
    Silent,
    Steps,
    Verdicts,
    ms,
    percent,
    rule,
)  # fmt: skip

LOOKUP_SHARE = 0.01  # of the step spent looking for compiled code (our choice)
COMPILING = Between(0.5, 0.05, 0.0)  # of the compiling that is left: a new shape now and then may be legitimate
LOOKING = Between(0.8, 0.5, 0.2)  # of the looking that is left with fewer graph breaks (our choice)


@rule("LB03")
def recompilation(compiling: Compiling, steps: Steps) -> Verdicts:
    share = compiling.lookup_ns / steps.mean_ns
    if not compiling.used:
        yield NotApplicable("torch.compile is not in use")
    elif not compiling.compilations.total and share < LOOKUP_SHARE:
        yield Clean(f"nothing is compiled in these steps; looking for compiled code takes {percent(share)} of them")
    if compiling.compilations.total:
        yield Finding(
            evidence=(
                Evidence(
                    f"Compiled {compiling.compilations.total} times in {steps.count} steps:"
                    f" {ms(compiling.compile_ns)} a step.",
                    compiling.compile_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(compiling.compilations.ids, COMPILING),),
            fixes=(
                Fix(
                    "Mark sizes that change as dynamic.",
                    before="model = torch.compile(model)",
                    after="model = torch.compile(model, dynamic=True)  # or torch._dynamo.mark_dynamic(x, 1)",
                    safety=Safety.ROUNDING,
                    link="https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
                    trial="env:TORCH_LOGS=recompiles,graph_breaks",
                ),
            ),
            confidence=Confidence(Level.HIGH, "compiling is recorded in the used steps"),
            host_bound=True,
        )
    if compiling.used and share >= LOOKUP_SHARE:
        yield Finding(
            title="Compiled code is split into many pieces",
            evidence=(
                Evidence(
                    f"{compiling.lookups} searches for compiled code a step take {ms(compiling.lookup_ns)};"
                    f" {compiling.graph_breaks} pieces follow a graph break.",
                    compiling.lookup_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(compiling.lookup_ids, LOOKING),),
            fixes=(
                Fix(
                    "Remove graph breaks: prints, `.item()` and Python side effects inside compiled functions.",
                    safety=Safety.ROUNDING,
                    effort=2,
                    link="https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
                    trial="env:TORCH_LOGS=graph_breaks",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "how many breaks can go is not recorded"),
            host_bound=True,
        )


EXAMPLES = [
    Fires(
        """
        6 steps of 100
        cpu  compile 0-60 in 3 | "Torch-Compiled Region: 0/0" 60-62
        gpu  triton_poi_fused_add_0 61.02-99 @61
        """
    ),
    Silent(
        """
        6 steps of 100
        cpu  "Torch-Compiled Region: 0/0" 60-62
        gpu  triton_poi_fused_add_0 61.02-99 @61
        """
    ),
    Silent(  # torch.compile is not in use
        """
        4 steps of 100
        cpu  aten::add 0-1
        gpu  pointwise 0.02-99 @0.01
        """
    ),
]
