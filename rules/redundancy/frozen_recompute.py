"""A frozen model recomputes the same inputs.

Latents of images, embeddings of texts, features of a frozen backbone: each batch takes rows of a table, and the model
computes the same outputs for these rows in every epoch.
Ignore when
    there is no room for the outputs, the training has one epoch, or rows are augmented before the model. Or the frozen
    model is updated from time to time.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT30",
    Cause.FROZEN_ROWS,
    says="{count} frozen, deterministic layers process rows of {detail} that does not change",
    fixes=(
        Fix(
            "Compute the frozen model's outputs once, and look them up.",
            after="with torch.no_grad():\n    known = encoder(images)  # before training\ncodes = known[chosen]",
            link="https://huggingface.co/docs/diffusers/en/training/text2image",
        ),
    ),
    confidence=Confidence(Level.MEDIUM, "only two steps were compared; rows or layers may change in others"),
)

EXAMPLES = [
    Fires(  # the layer and what follows it
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::index looked 0 | aten::mm looked 0 | aten::relu looked 0 | aten::add
        cpu  aten::index 0-5 | aten::mm 5-35 shapes=[[64,32],[32,8]] | aten::relu 35-45 | aten::add 45-90
        """,
        saving_ms=(40, 40),
    ),
    # what is looked up is only scaled
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        values aten::index looked 0 | aten::mul looked 0 | aten::mm
        cpu  aten::index 0-5 | aten::mul 5-45 | aten::mm 45-90
    """),
]
