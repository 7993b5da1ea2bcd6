"""Sequences of very different lengths share a batch.

Each batch is padded to its own longest row, but rows are drawn at random: one long text among short ones makes all of
them long.

Why it costs
    Padding is computed like all else: layers take time by the number of places, attention by its square.

How to fix
    Put rows of like length into a batch: sort a few dozen batches' worth of shuffled rows by length, cut them into
    batches, and shuffle these. Or pack rows one after the other, with attention that knows where each ends.

Ignore when
    the order of the data matters, or batches are small enough that the least time of an op is what counts.

Sources
    https://huggingface.co/docs/transformers/main/en/main_classes/trainer
    https://arxiv.org/abs/2107.02027
"""

from diagnose.facts.data.padding import Padding
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device: the order of the data changes (our choice)
FULL = 0.95  # of the places, of batches of like lengths: 0.99 was reported (our choice)
LONGEST = 0.9  # of the places, up to the longest row: else that comes first, see excess_padding (our choice)
BUCKETS = Fix(
    "Draw batches of rows of like length.",
    before="DataLoader(dataset, batch_size=32, shuffle=True)",
    after="DataLoader(dataset, batch_sampler=batches_by_length)  # transformers: group_by_length=True",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://huggingface.co/docs/transformers/main/en/main_classes/trainer",
)


@rule("DL08")
def mixed_sequence_lengths(padding: Padding | None, steps: Steps) -> Verdicts:
    if padding is None:
        yield NotApplicable("batches hold no rows of whole numbers or of vectors")
        return
    if padding.needed < LONGEST:
        yield NotApplicable("batches are padded to more than their longest row, whatever rows they hold")
        return
    left = padding.filled / FULL
    saved_ns = padding.saved_ns(left) if left < 1 else 0
    if saved_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"rows fill {percent(padding.filled)} of the places up to the longest of their batch")
        return
    linear, attention = _left(left), _left(left * left)
    yield Finding(
        evidence=(
            Evidence(
                f"Rows fill {percent(padding.filled)} of the places up to the longest row of their batch.",
                padding.filled,
                "share",
            ),
        ),
        edits=(Shorten(padding.linear.data_ids, linear), Shorten(padding.attention.data_ids, attention)),
        fixes=(BUCKETS,),
        confidence=Confidence(Level.MEDIUM, "batches were looked into; whether their order may change is not known"),
        basis=Basis.RULE_OF_THUMB,
        site=padding.site,
    )


def _left(share: float) -> Between:
    """Of the time, if so much is left of the places: low is half of what is gone, as ops have a least time."""
    return Between((1 + share) / 2, share, share)


EXAMPLES = [
    Fires(  # rows fill 38 of 76 places: with 95 % filled, 18.95 of 40 ms are saved in layers
        """
        4 steps of 100
        2 threads, 4 cores
        batches 16x76, 76 needed, 38 filled
        cpu  aten::embedding 0-10 shapes=[[500,32],[16,76],[],[],[]] | aten::linear 10-40 shapes=[[16,76,32],[64,32]]
        """,
        saving_ms=(9.5, 32.8),
    ),
    Silent(  # each batch is padded to 80 places, and would be if rows were alike
        """
        4 steps of 100
        2 threads, 4 cores
        batches 16x80, 40 needed, 20 filled
        cpu  aten::embedding 0-10 shapes=[[500,32],[16,80],[],[],[]] | aten::linear 10-40 shapes=[[16,80,32],[64,32]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="what is in batches"),
]
