"""A separable filter runs as a 2-D convolution.

A Gaussian or a mean over squares, as in a structural loss (SSIM), weighs with the product of two lines. A window of k
by k takes k² products for each point; a column, and a row over what comes of it, take 2 k.

Ignore when
    a GPU has a kernel of its own for the whole loss (fused SSIM).
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT31",
    Cause.SEPARABLE_WINDOW,
    says="Convolutions with windows of {detail}, each a column times a row, run {times} a step",
    fixes=(
        Fix(
            "Slide a column, and a row over what comes of it.",
            before="means = conv2d(images, window)",
            after="means = conv2d(conv2d(images, column), row)",
            safety=Safety.ROUNDING,
            link="https://en.wikipedia.org/wiki/Separable_filter",
        ),
    ),
    slower=(1.4, 1.0, 0.55),  # Of what two lines took of windows of 5, 7 and 11 (our choice).
    confidence=Confidence(Level.HIGH, "the windows were looked at"),
    basis=Basis.RULE_OF_THUMB,
)

EXAMPLES = [
    Fires(  # of 60 ms 27.3 to 10.9 are left
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::convolution separable 1 | aten::mul
        cpu  aten::convolution 0-60 shapes=[[4,1,48,48],[1,1,11,11]] | aten::mul 70-90
        """,
        saving_ms=(32.7, 67.6),
    ),
    Silent(  # of a window of three by three nothing is gained
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::convolution separable 1 | aten::mul
        cpu  aten::convolution 0-60 shapes=[[4,1,48,48],[1,1,3,3]] | aten::mul 70-90
        """
    ),
]
