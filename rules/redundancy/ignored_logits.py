"""Logits are computed for rows that the loss ignores.

A layer scores all classes, as a vocabulary, at every place of a text, and most targets are `ignore_index`: places that
were not hidden from a masked language model, prompts, padding. The last layer and its softmax are much of the step.

Ignore when
    the scores of all rows are used for something else too.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT16",
    Cause.IGNORED_BY_LOSS,
    says="Scores are computed of {detail}, and the loss ignores {share} of these",
    fixes=(
        Fix(
            "Pick the rows that count before the layer that scores.",
            before="loss = cross_entropy(head(states).flatten(0, 1), targets.flatten())",
            after="counts = targets != -100; loss = cross_entropy(head(states[counts]), targets[counts])",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
        ),
    ),
    left=Between(0.5, 0.05, 0.0),  # Picking the others costs a little; on a GPU it waits for their number.
    confidence=Confidence(Level.HIGH, "targets were looked at while the training warmed up"),
    basis=Basis.RULE_OF_THUMB,
)

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
]
