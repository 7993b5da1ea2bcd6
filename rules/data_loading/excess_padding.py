"""Batches are padded beyond their longest sequence.

Texts, signals or series of different lengths are made equally long to fit one tensor, and are given the length of the
longest there is, or of a limit (`padding="max_length"`), rather than that of the longest of their batch.

Why it costs
    Padding is computed like all else: layers take time by the number of places, attention by its square.

How to fix
    Pad in the collate function, to the longest row of the batch; for kernels that want it, up to a multiple of 8.

Ignore when
    the model is compiled, or exported, for one length: then a few lengths to choose from are better than any.

Sources
    https://huggingface.co/docs/transformers/main/en/pad_truncation
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
    https://github.com/huggingface/transformers/pull/5195
"""

from diagnose.facts.data.padding import Padding
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
MANY = 0.1  # of the places: a few are padding to a multiple of 8 (our choice)
UNLIKE = 0.75  # of the places up to the longest row: from there on down it is said that rows are unlike (our choice)
MIXED = "Rows fill {} of the places up to the longest: with rows of like length in a batch more could be saved."
LONGEST = Fix(
    "Pad each batch to its own longest row.",
    before='tokenizer(texts, padding="max_length")',
    after="DataLoader(dataset, collate_fn=DataCollatorWithPadding(tokenizer))  # or pad_sequence in a collate_fn",
    safety=Safety.ROUNDING,
    link="https://huggingface.co/docs/transformers/main/en/pad_truncation",
)


@rule("DL07")
def excess_padding(padding: Padding | None, steps: Steps) -> Verdicts:
    if padding is None:
        yield NotApplicable("batches hold no rows of whole numbers or of vectors")
        return
    left, (shortest, longest) = padding.needed, padding.lengths
    saved_ns = padding.saved_ns(left)
    if 1 - left < MANY or saved_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"{percent(1 - left)} of the places are beyond the longest row of their batch")
        return
    length = f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    linear, attention = _left(left), _left(left * left)
    yield Finding(
        evidence=(
            Evidence(
                f"Batches of {padding.rows:,} rows are padded to {length} places, and {percent(1 - left)} of these are"
                f" beyond the longest row: {ms(saved_ns)} a step, with the backward pass.",
                saved_ns,
                "ns",
            ),
            *([Evidence(MIXED.format(percent(padding.filled)), padding.filled, "share")] * (padding.filled < UNLIKE)),
        ),
        edits=(Shorten(padding.linear.data_ids, linear), Shorten(padding.attention.data_ids, attention)),
        fixes=(LONGEST,),
        confidence=Confidence(Level.HIGH, "the batches were looked into while the training warmed up"),
        basis=Basis.RULE_OF_THUMB,
        site=padding.site,
    )


def _left(share: float) -> Between:
    """Of the time, if so much is left of the places: low is half of what is gone, as ops have a least time."""
    return Between((1 + share) / 2, share, share)


EXAMPLES = [
    Fires(  # half of 40 ms in layers, three quarters of 20 ms in attention
        """
        4 steps of 100
        2 threads, 4 cores
        batches 16x80, 40 needed, 30 filled
        cpu  aten::embedding 0-10 shapes=[[500,32],[16,80],[],[],[]] | aten::linear 10-40 shapes=[[16,80,32],[64,32]]
        cpu  aten::scaled_dot_product_attention 40-60 shapes=[[16,4,80,8],[16,4,80,8],[16,4,80,8]]
        """,
        saving_ms=(17.5, 55.5),
    ),
    Silent(
        """
        4 steps of 100
        2 threads, 4 cores
        batches 16x80, 80 needed, 60 filled
        cpu  aten::embedding 0-10 shapes=[[500,32],[16,80],[],[],[]] | aten::linear 10-40 shapes=[[16,80,32],[64,32]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="what is in batches"),
]
