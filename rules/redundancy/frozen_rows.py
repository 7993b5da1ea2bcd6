"""A frozen net computes the same rows again and again.

Latents of images, embeddings of texts, features of a backbone that does not learn: each batch takes some rows of a
table, and the net makes of each what it has made of it in every epoch before.

Why it costs
    Of a table of N rows there are N results. Each epoch computes all of them again.

How to fix
    Compute them once before the training, without gradients, and look up the results: `codes[chosen]`.

Ignore when
    there is no room for the results, the training has one epoch, rows are to be augmented before the net, or the net
    is a copy that follows another one from time to time.

Sources
    https://huggingface.co/docs/diffusers/en/training/text2image
    https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html
"""

from diagnose.facts.values.frozen_rows import FrozenRows
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such layers (our choice)
ONCE = Fix(
    "Compute the results once, and look them up.", before="codes = encoder(images[chosen])",
    after="with torch.no_grad():\n    known = encoder(images)  # once, before the training\ncodes = known[chosen]",
    safety=Safety.NEEDS_JUDGEMENT, link="https://huggingface.co/docs/diffusers/en/training/text2image",
)  # fmt: skip


@rule("AT30")
def computed_in_every_epoch(frozen_rows: tuple[FrozenRows, ...], steps: Steps) -> Verdicts:
    often = [one for one in frozen_rows if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in often), default=0)
        yield Clean(f"frozen nets take {percent(most / max(steps.mean_ns, 1))} of the step for rows of a table")
    for one in large:
        table = f"a table of {one.rows:,}" if one.rows else "a table"
        yield Finding(
            evidence=(
                Evidence(
                    f"Rows of {table} that does not change are looked up, and go through {one.layers} layers that learn"
                    f" nothing, with nothing drawn at random: {ms(one.work.longest_ns)} a step.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, 0.0), Shorten(one.work.work_ids, 0.0)),
            fixes=(ONCE,),
            confidence=Confidence(Level.MEDIUM, "two steps were looked at; in others rows or layers may change"),
            site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # the layer and what follows it
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::index looked 0 | aten::mm looked 0 | aten::relu looked 0 | aten::add
        cpu  aten::index 0-5 | aten::mm 5-35 shapes=[[64,32],[32,8]] | aten::relu 35-45 | aten::add 45-90
        """,
        saving_ms=(40, 61.6),
    ),
    Silent(  # what is looked up is only scaled
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::index looked 0 | aten::mul looked 0 | aten::mm
        cpu  aten::index 0-5 | aten::mul 5-45 | aten::mm 45-90
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
