"""Scores are computed for rows that the loss ignores.

A layer scores all classes, as a vocabulary, at every place of a text, and most targets are `ignore_index`: places that
were not hidden from a masked language model, prompts, padding.

Why it costs
    With many classes the last layer and its softmax are much of the step, forth and back; for ignored rows the result
    is multiplied by zero.

How to fix
    Pick the states of rows that count before the layer: `head(states[targets != -100])`.

Ignore when
    the scores of all rows are used for something else too.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    https://github.com/google-research/bert/blob/master/run_pretraining.py
"""

from diagnose.facts.data.targets import IgnoredScores
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
MANY = 0.25  # of the rows: below this picking the others may cost what it saves (our choice)
# Of the time for ignored rows: picking the others costs a little; on a GPU it waits for their number.
STILL = Between(0.5, 0.05, 0.0)
PICK = Fix(
    "Pick the rows that count before the layer that scores.",
    before="loss = cross_entropy(head(states).flatten(0, 1), targets.flatten())",
    after="counts = targets != -100; loss = cross_entropy(head(states[counts]), targets[counts])",
    safety=Safety.ROUNDING, link="https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
)  # fmt: skip


@rule("AT16")
def scores_for_nothing(ignored_scores: tuple[IgnoredScores, ...], steps: Steps) -> Verdicts:
    many = [one for one in ignored_scores if 1 - one.counted >= MANY]
    large = [one for one in many if one.ignored_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.ignored_ns for one in many), default=0)
        yield Clean(f"scores of many rows that a loss ignores take {percent(most / max(steps.mean_ns, 1))} of the step")
    for one in large:
        ignored = 1 - one.counted
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.classes:,} classes are scored for {one.rows:,} rows, and the loss ignores {percent(ignored)}"
                    f" of these: {ms(one.ignored_ns)} a step, with the backward pass.",
                    one.ignored_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, STILL.of_share(ignored)),),
            fixes=(PICK,),
            confidence=Confidence(Level.HIGH, "targets were looked at while the training warmed up"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # of 60 ms three quarters are for nothing
        """
        4 steps of 100
        2 threads, 4 cores
        ignored 96 of 128 rows, 500 classes
        cpu  aten::linear 0-40 shapes=[[2,64,32],[500,32],[500]]
        cpu  aten::flatten 40-41 shapes=[[2,64,500],[],[]] | aten::cross_entropy_loss 41-60 shapes=[[128,500],[128]]
        """,
        saving_ms=(22.5, 68.2),
    ),
    Silent(
        """
        4 steps of 100
        2 threads, 4 cores
        ignored 2 of 128 rows, 500 classes
        cpu  aten::linear 0-40 shapes=[[2,64,32],[500,32],[500]]
        cpu  aten::flatten 40-41 shapes=[[2,64,500],[],[]] | aten::cross_entropy_loss 41-60 shapes=[[128,500],[128]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="what losses ignore"),
]
