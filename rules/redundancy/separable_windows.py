"""A window that is a column times a row is slid as a square.

A Gaussian or a mean over squares, as in a structural loss (SSIM), weighs with the product of two lines: it can be
taken along the columns first, and along the rows of what comes of it.

Why it costs
    A window of k by k takes k² products for each point, two lines take 2 k; and as many again in the backward pass.

How to fix
    Two convolutions, with a column and with a row.

Ignore when
    a GPU has a kernel of its own for the whole loss (fused SSIM).

Sources
    https://en.wikipedia.org/wiki/Separable_filter
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv2d.html
"""

from diagnose.facts.values.special_numbers import SeparableWindows
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such windows (our choice)
# Time left, in shares of the products that are left: 1.7 to 1.8 of windows of 5, 7 and 11, forth and back (torch 2.13,
# one core of a Xeon).
TIMES = (2.5, 1.8, 1.0)
LINES = Fix(
    "Slide a column, and a row over what comes of it.", before="means = conv2d(images, window)",
    after="means = conv2d(conv2d(images, column), row)", safety=Safety.ROUNDING,
    link="https://en.wikipedia.org/wiki/Separable_filter",
)  # fmt: skip


@rule("AT31")
def squares_of_lines(separable_windows: tuple[SeparableWindows, ...], steps: Steps) -> Verdicts:
    large = [one for one in separable_windows if _is_worth(one, steps)]
    if not large:
        most = max((one.work.longest_ns for one in separable_windows), default=0)
        yield Clean(f"windows that two lines could be take {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.times} convolutions a step have windows of {one.window[0]} by {one.window[1]}, each a column"
                    f" times a row: {ms(one.work.longest_ns)} a step, with the backward pass.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, Between(*(min(_left(one) * times, 1.0) for times in TIMES))),),
            fixes=(LINES,),
            confidence=Confidence(Level.HIGH, "the windows were looked at"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


def _left(one: SeparableWindows) -> float:
    """Of the products."""
    return sum(one.window) / (one.window[0] * one.window[1])


def _is_worth(one: SeparableWindows, steps: Steps) -> bool:
    saved_ns = one.work.longest_ns * (1 - _left(one) * TIMES[1])
    return saved_ns >= WORTH_SHARE * steps.mean_ns and one.steps_seen >= OFTEN * steps.count


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
