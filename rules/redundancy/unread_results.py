"""Results are computed and never read.

A spectrogram is made of whole clips, and a short piece is cut out of it. A frozen model returns logits for all tokens,
and the loss uses some. Pictures are normalised, and then cropped.

Ignore when
    something that torch does not see reads the rest: an extension, or another thread.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT33",
    Cause.UNREAD,
    says={
        "": "Nothing reads {share} of what {ops} compute before it is cut down{there}",
        "all": "Nothing reads what {ops} compute",
    },
    fixes={
        "": (
            Fix(
                "Cut first, and compute then.",
                before="piece = spectrogram(sounds)[:, :, first:last]",
                after="piece = spectrogram(sounds[:, hop * first : hop * (last - 1) + window])",
                safety=Safety.ROUNDING,
                link="https://docs.pytorch.org/docs/stable/tensor_view.html",
            ),
            Fix(
                "Compute logits only at positions that the loss reads.",
                before="scores = teacher(words).logits[:, -kept:]",
                after="scores = teacher(words, logits_to_keep=kept).logits  # in transformers",
                safety=Safety.ROUNDING,
                link="https://huggingface.co/docs/transformers/main_classes/text_generation",
            ),
        ),
        "all": (
            Fix(
                "Leave out what nothing reads.",
                before="states, scores = teacher(words)  # and scores are not used",
                after="states = teacher.body(words)",
                link="https://huggingface.co/docs/transformers/main_classes/model",
            ),
        ),
    },
    # None of a reference model's, a frozen encoder's and of pictures that are cropped late (torch 2.13, two cores of a
    # Xeon), more where fewer rows take more time each (our choice).
    left=Between(0.5, 0.15, 0.0),
    confidence=Confidence(Level.MEDIUM, "two steps were looked at; in others it may be more or less"),
    basis=Basis.RULE_OF_THUMB,
)

EXAMPLES = [
    Fires(  # of 60 ms four fifths are for nothing
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::_fft_r2c read 20 | aten::abs takes 0 read 20 | aten::convolution takes 1
        cpu  aten::_fft_r2c 0-40 | aten::abs 40-60 | aten::convolution 60-90
        """,
        saving_ms=(24, 67.1),
    ),
    Silent(  # all is read
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::_fft_r2c | aten::abs takes 0 | aten::convolution takes 1
        cpu  aten::_fft_r2c 0-40 | aten::abs 40-60 | aten::convolution 60-90
        """
    ),
]
