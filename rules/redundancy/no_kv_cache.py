"""Decoding recomputes the whole prefix for every token.

A text is written word by word, and read from its start for each: `logits = model(text[:, :n])` with n growing by one.

Why it costs
    What a layer makes of the first n - 1 places is what it made of them in the round before, unless it looks ahead: of
    all rounds together the work grows with the square of their number.

How to fix
    Keep what the layers have made: `past_key_values` (`use_cache=True`) of transformers, the state of an RNN. Where
    the whole is known before, one pass with a causal mask gives all places at once.

Ignore when
    the layers look ahead: without a causal mask, in both directions.

Sources
    https://huggingface.co/docs/transformers/kv_cache
    https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html
"""

from diagnose.facts.host.prefixes import GrowingPrefix
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
LOW_SHARE = 0.5  # of what is likely: what is kept has to be written and read (our choice)
KEEP = Fix(
    "Keep what the layers made of the start, and give them what is new.",
    effort=2,
    safety=Safety.ROUNDING,
    before="scores, _ = model(text[:, : n + 1])",
    after="scores, state = model(text[:, n : n + 1], state)",
    link="https://huggingface.co/docs/transformers/kv_cache",
)


@rule("LB10")
def no_kv_cache(growing_prefix: GrowingPrefix | None, steps: Steps) -> Verdicts:
    if growing_prefix is None or growing_prefix.work.longest_ns < WORTH_SHARE * steps.mean_ns:
        spent = growing_prefix.work.longest_ns if growing_prefix else 0
        share = percent(spent / max(steps.mean_ns, 1))
        yield Clean(f"layers whose input grows from round to round take {share} of the step")
        return
    work, lengths = growing_prefix.work, growing_prefix.lengths
    left = Between(1 - LOW_SHARE * (1 - growing_prefix.left), growing_prefix.left, growing_prefix.least_left)
    yield Finding(
        evidence=(
            Evidence(
                f"{len(lengths)} rounds of {growing_prefix.layer} take {lengths[0]:,}, {lengths[1]:,} to"
                f" {lengths[-1]:,} places: with the ops that grow along, {ms(work.longest_ns)} a step.",
                work.longest_ns,
                "ns",
            ),
        ),
        edits=(Shorten(work.data_ids, left),),
        fixes=(KEEP,),
        confidence=Confidence(Level.MEDIUM, "that no layer looks ahead is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        site=growing_prefix.site,
    )


EXAMPLES = [
    Fires(  # 2 to 8 ms for 1 to 4 words, 20 ms in all; for a word each 8 ms, and a careful half of what goes
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::gru 0-2 shapes=[[8,1,64],[64]] | aten::gru 10-14 shapes=[[8,2,64],[64]]
        cpu  aten::gru 20-26 shapes=[[8,3,64],[64]] | aten::gru 30-38 shapes=[[8,4,64],[64]] | aten::mm 50-90
        """,
        saving_ms=(6, 21.5),
    ),
    Silent(  # four lengths, but none is by as much longer as the next
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::gru 0-2 shapes=[[8,1,64],[64]] | aten::gru 10-14 shapes=[[8,2,64],[64]]
        cpu  aten::gru 20-26 shapes=[[8,4,64],[64]] | aten::gru 30-38 shapes=[[8,9,64],[64]] | aten::mm 50-90
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
