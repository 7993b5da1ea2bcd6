"""Now and then a step takes far longer.

Logging, metrics, validation, images or other work that is not done in every step makes some of them long.

Why it costs
    What one long step costs, divided by the steps between two of them, is added to every step.

How to fix
    Do it less often, on another thread, or on the GPU; on one rank only.

Ignore when
    the work is the point, as validation is: then look at how often it is needed.

Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.rule import (
    Basis,
    Between,
    Clean,
    Confidence,
    Evidence,
    Filler,
    Filling,
    Finding,
    Fires,
    Fix,
    Level,
    Shorten,
    Silent,
    Spike,
    StepSpikes,
    Verdicts,
    ms,
    rule,
)  # fmt: skip

LEFT = Between(0.8, 0.4, 0.2)  # of such work: some of it is needed (our choice)
EXPLAINED = "loader garbage_collection compile checkpoint allocation other_rank"  # by other rules
PARTS_OF_TRAINING = ("Optimizer.", "DistributedDataParallel", "autograd::", "aten::", "nccl:", "gloo:", "## ")


@rule("PA03")
def periodic_spikes(step_spikes: StepSpikes) -> Verdicts:
    if not step_spikes.spikes:
        yield Clean("no step takes over 1.5 times the median")
        return
    named = [(spike, one) for spike in step_spikes.spikes for one in _named(spike)[:1]]
    if not named:
        yield Clean("what makes some steps long is not marked by the script, or another rule names it")
    for name in sorted({one.name for _, one in named}):
        mine = [(spike, one) for spike, one in named if one.name == name]
        excess = sum(one.ns for _, one in mine)
        often = f"every {step_spikes.period} steps" if step_spikes.period else f"in {len(mine)} of the steps"
        yield Finding(
            evidence=(
                Evidence(
                    f"`{name}` makes steps longer {often}: by {ms(excess // len(mine))}, where the median step takes"
                    f" {ms(step_spikes.median_ns)}.",
                    excess,
                    "ns",
                ),
            ),
            edits=tuple(Shorten(one.ids, LEFT) for _, one in mine),
            fixes=(Fix("Do it less often, or beside the training on another thread.", effort=2),),
            confidence=Confidence(
                Level.MEDIUM if step_spikes.period else Level.LOW,
                "it came back at equal distances" if step_spikes.period else "it was seen too seldom to know how often",
            ),
            basis=Basis.RULE_OF_THUMB,
        )


def _named(spike: Spike) -> list[Filler]:
    """Ranges that the script marks and that fill the spike, unless they are the training or another rule's."""
    if any(one.filling is Filling.ACTIVITY and one.name in EXPLAINED.split() for one in spike.fillers[:1]):
        return []
    ranges = [one for one in spike.fillers if one.filling is Filling.ANNOTATION and len(one.ids)]
    return [one for one in ranges if not one.name.startswith(PARTS_OF_TRAINING)]


EXAMPLES = [
    Fires(
        """
        cpu  optimizer 99-100 | optimizer 199-200 | log_metrics 210-500 | optimizer 599-600 | optimizer 699-700
        cpu  optimizer 799-800 | log_metrics 810-1100 | optimizer 1199-1200 | optimizer 1299-1300
        gpu  adam 99.1-99.9 @99.05 | adam 199.1-199.9 @199.05 | adam 599.1-599.9 @599.05 | adam 699.1-699.9 @699.05
        gpu  adam 799.1-799.9 @799.05 | adam 1199.1-1199.9 @1199.05 | adam 1299.1-1299.9 @1299.05
        """
    ),
    Silent(
        """
        8 steps of 100
        cpu  aten::mm 0-1 | log_metrics 30-90
        gpu  sgemm 0.02-95 @0.01
        """
    ),
]
