"""What never changes is computed in every step.

Positions, masks, grids, filters, targets of a fixed set: nothing that they are made of changes from step to step.

Why it costs
    Every step computes what the one before had computed.

How to fix
    Compute it before training, and keep it; in a module as a buffer, so that it moves with it to the device.

Ignore when
    it changes now and then: two steps in a row were compared. Then compute it where it changes.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
    https://en.wikipedia.org/wiki/Loop-invariant_code_motion
"""

from diagnose.facts.values.known_values import KnownValues
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
BUFFER = Fix(
    "Compute it before training, and keep it as a buffer.",
    before="def forward(self, x): return x + rotations(self.size)",
    after='self.register_buffer("rotations", rotations(size), persistent=False)  # in __init__',
    effort=2, link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
)  # fmt: skip


@rule("AT19")
def computed_in_every_step(unchanging_values: tuple[KnownValues, ...], steps: Steps) -> Verdicts:
    large = [one for one in unchanging_values if one.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        share = percent(sum(one.longest_ns for one in unchanging_values) / max(steps.mean_ns, 1))
        yield Clean(f"what is the same in every step takes {share} of it")
    sure = [one for one in large if not one.of_batch]
    if large and not sure:
        raise Missing("whether steps get new data", "Record with the data that the training is for.")
    for one in sure:
        yield Finding(
            evidence=(
                Evidence(
                    f"{ops_named(one)}: the step before had computed the same from the same values;"
                    f" {ms(one.longest_ns)} a step with the backward pass.",
                    one.longest_ns, "ns",
                ),
            ),
            edits=left_out(one),
            fixes=(BUFFER,),
            confidence=Confidence(Level.MEDIUM, "values were followed from op to op, in two steps only"),
            site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # 30 ms, and the 1 ms between
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::outer always | aten::sin takes 0 always | aten::mm takes 1
        cpu  aten::outer 0-10 | aten::sin 11-31 | aten::mm 40-90
        """,
        saving_ms=(30, 48),
    ),
    Silent(  # each step has values of its own
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::outer | aten::sin takes 0 | aten::mm takes 1
        cpu  aten::outer 0-10 | aten::sin 11-31 | aten::mm 40-90
        """
    ),
    CannotTell(  # the script may use one batch again and again
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::sin takes - always | aten::mm takes 0
        cpu  aten::sin 11-31 | aten::mm 40-90
        """,
        because="new data",
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
