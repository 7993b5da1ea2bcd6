"""A frozen model recomputes the same inputs.

Latents of images, embeddings of texts, features of a backbone that does not learn: each batch takes some rows of a
table, and the model makes of each what it has made of it in every epoch before.

Ignore when
    there is no room for the results, the training has one epoch, rows are to be augmented before the model, or the
    model is a copy that follows another one from time to time.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT30",
    Cause.FROZEN_ROWS,
    says="Rows of {detail} that does not change go through {count} layers that are not trained, and draw nothing",
    fixes=(
        Fix(
            "Compute the results once, and look them up.",
            after="with torch.no_grad():\n    known = encoder(images)  # before training\ncodes = known[chosen]",
            link="https://huggingface.co/docs/diffusers/en/training/text2image",
        ),
    ),
    confidence=Confidence(Level.MEDIUM, "two steps were looked at; in others rows or layers may change"),
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
    Silent(  # what is looked up is only scaled
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::index looked 0 | aten::mul looked 0 | aten::mm
        cpu  aten::index 0-5 | aten::mul 5-45 | aten::mm 45-90
        """
    ),
]
