"""Batches are padded beyond their longest sequence.

Sequences are padded to the longest of the dataset, or to a limit (`padding="max_length"`), not to the longest of their
batch. Or batches are drawn at random, and one long sequence pads all the others.

Why it costs
    Padding is computed like data: layers take time linear in its length, attention quadratic.
How to fix
    Pad in `collate_fn`, to the batch's longest row or the next multiple of 8. Batch rows of similar length: sort a few
    dozen shuffled batches by length, cut them into batches, and shuffle these. Or pack rows, with attention that knows
    where each ends.
Ignore when
    the order of the data matters, or the model is compiled for one length. Then pad to a few fixed lengths.
Sources
    https://huggingface.co/docs/transformers/main/en/pad_truncation
    https://huggingface.co/docs/transformers/main/en/main_classes/trainer
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
    https://github.com/huggingface/transformers/pull/5195
    https://arxiv.org/abs/2107.02027
"""

from diagnose.facts.data.padding import Padding
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
MANY = 0.1  # of the places: a few are padding to a multiple of 8 (our choice)
UNLIKE = 0.75  # of the places up to the longest row: from there on down it is said that rows are unlike (our choice)
FULL = 0.95  # of the places, of batches of like lengths: 0.99 was reported (our choice)
LONGEST = Fix(
    "Pad each batch to its own longest row.",
    before='tokenizer(texts, padding="max_length")',
    after="DataLoader(dataset, collate_fn=DataCollatorWithPadding(tokenizer))  # or pad_sequence in a collate_fn",
    safety=Safety.ROUNDING,
    link="https://huggingface.co/docs/transformers/main/en/pad_truncation",
)
BUCKETS = Fix(
    "Batch rows of similar length.",
    before="DataLoader(dataset, batch_size=32, shuffle=True)",
    after="DataLoader(dataset, batch_sampler=batches_by_length)  # transformers: group_by_length=True",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://huggingface.co/docs/transformers/main/en/main_classes/trainer",
)


@rule("DL07")
def excess_padding(padding: Padding | None, steps: Steps) -> Verdicts:
    if padding is None:
        yield NotApplicable("batches hold no rows of integers or of vectors")
        return
    beyond, (shortest, longest) = 1 - padding.needed, padding.lengths
    mixed = beyond < MANY
    left = min(padding.filled / FULL, 1.0) if mixed else padding.needed
    saved_ns = padding.saved_ns(left)
    length = f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    padded = f"{percent(beyond)} of each batch ({padding.rows:,} x {length}) is beyond its longest row"
    padded = f"{padded}: {ms(saved_ns)}/step with the backward pass."
    fill = f"Rows fill {percent(padding.filled)} of the positions up to the longest"
    if saved_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"{percent(beyond)} of the positions are beyond the longest row; r{fill[1:]}")
    elif mixed:
        yield Finding(
            title="Sequences of very different lengths share a batch",
            evidence=(Evidence(f"{fill} row of their batch.", padding.filled, "share"),),
            edits=shortened(padding, left),
            fixes=(BUCKETS,),
            confidence=Confidence(
                Level.MEDIUM, "lengths were measured; whether the data order may change is not recorded"
            ),
            basis=Basis.RULE_OF_THUMB,
            site=padding.site,
        )
    else:
        more = Evidence(f"{fill}: batching rows of similar length would save more.", padding.filled, "share")
        yield Finding(
            evidence=(Evidence(padded, saved_ns, "ns"), *([more] * (padding.filled < UNLIKE))),
            edits=shortened(padding, left),
            fixes=(LONGEST,),
            confidence=Confidence(Level.HIGH, "lengths were measured during warm-up"),
            basis=Basis.RULE_OF_THUMB,
            site=padding.site,
        )


def shortened(padding: Padding, left: float) -> tuple[Edit, ...]:
    """If so much is left of the places: low is half of what is gone, as ops have a least time."""
    linear, attention = (Between((1 + share) / 2, share, share) for share in (left, left * left))
    return Shorten(padding.linear.data_ids, linear), Shorten(padding.attention.data_ids, attention)


EXAMPLES = [
    Fires(  # half of 40 ms in layers, three quarters of 20 ms in attention
        """
        4 steps of 100
        2 threads, 4 cores
        batches 16x80, 40 needed, 30 filled
        cpu  aten::embedding 0-10 shapes=[[500,32],[16,80],[],[],[]] | aten::linear 10-40 shapes=[[16,80,32],[64,32]]
        cpu  aten::scaled_dot_product_attention 40-60 shapes=[[16,4,80,8],[16,4,80,8],[16,4,80,8]]
        """,
        saving_ms=(17.5, 35),
    ),
    Fires(  # rows fill 38 of 76 places: with 95 % filled, 18.95 of 40 ms are saved in layers
        """
        4 steps of 100
        2 threads, 4 cores
        batches 16x76, 76 needed, 38 filled
        cpu  aten::embedding 0-10 shapes=[[500,32],[16,76],[],[],[]] | aten::linear 10-40 shapes=[[16,76,32],[64,32]]
        """,
        saving_ms=(9.5, 18.95),
    ),
    # rows are alike, and fill their batches
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        batches 16x80, 80 needed, 79 filled
        cpu  aten::embedding 0-10 shapes=[[500,32],[16,80],[],[],[]] | aten::linear 10-40 shapes=[[16,80,32],[64,32]]
    """),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="contents of batches"),
]
