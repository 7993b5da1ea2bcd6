"""A memory is moved whole to make room for a few rows.

`memory = memory.roll(-new, 0)` or `torch.cat((memory[new:], rows))` in every step: a memory of plays, a queue of
earlier keys, a window of a stream.

Why it costs
    All rows are read and written to put in a few. It grows with the memory, not with the batch.

How to fix
    Keep a ring: write the new rows over the oldest ones, and remember where these are.

Ignore when
    the order of rows in memory matters to what reads it, as a window that a convolution slides over.

Sources
    https://en.wikipedia.org/wiki/Circular_buffer
    https://github.com/facebookresearch/moco/blob/main/moco/builder.py
"""

from diagnose.facts.values.rolled import RolledMemories
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such ops (our choice)
LEFT = Between(0.2, 0.05, 0.0)  # of the time, to write the new rows (our choice)
RING = Fix(
    "Write over the oldest rows, and remember where they are.",
    before="memory = memory.roll(-new, 0)\nmemory[-new:] = rows",
    after="memory[spot : spot + new] = rows\nspot = (spot + new) % len(memory)",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://github.com/facebookresearch/moco/blob/main/moco/builder.py",
)


@rule("ME06")
def moved_whole(rolled_memories: RolledMemories | None, steps: Steps) -> Verdicts:
    found = rolled_memories
    seldom = found is None or found.steps_seen < OFTEN * steps.count
    if found is None or seldom or found.work.longest_ns < WORTH_SHARE * steps.mean_ns:
        share = 0.0 if found is None else found.work.longest_ns / max(steps.mean_ns, 1)
        yield Clean(f"memories that are moved whole take {percent(share)} of the step")
        return
    size = " by ".join(f"{one:,}" for one in found.largest)
    tensors = "A tensor" if found.times == 1 else f"{found.times} tensors"
    yield Finding(
        evidence=(
            Evidence(
                f"{tensors} of the step before, the largest of {size}, moved whole for a few new rows:"
                f" {ms(found.work.longest_ns)} a step.",
                found.work.longest_ns,
                "ns",
            ),
        ),
        edits=(Shorten(found.work.ids, LEFT), Shorten(found.work.work_ids, LEFT)),
        fixes=(RING,),
        confidence=Confidence(Level.MEDIUM, "whether the order of rows matters is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        site=found.site,
    )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::roll carried 1 | aten::copy_ takes 0 | aten::mm
        cpu  aten::roll 0-50 shapes=[[4096,64],[],[]] | aten::copy_ 50-51 | aten::mm 60-90
        """,
        saving_ms=(40, 71.4),
    ),
    Silent(  # a batch is rolled
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::roll takes - | aten::copy_ takes 0 | aten::mm
        cpu  aten::roll 0-50 shapes=[[4096,64],[],[]] | aten::copy_ 50-51 | aten::mm 60-90
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
