"""Each slice's backward pass fills a gradient of the whole.

`x[:, t]` in a loop, or a window `maps[n, :, y:y + 5, x:x + 5]` for each of many places: in the backward pass each piece
fills a tensor of zeros as large as the whole, puts its gradient into it, and all of these are added up. One op that
cuts everything has one gradient.

Ignore when
    pieces are few, or no gradient goes to what is cut.
"""

from diagnose.rulekit.vocabulary import *

PIECES = 8  # at least: with fewer, as the four gates of a cell, one gradient of all saves little (our choice)
LEFT = 0.1  # of the time, likely: the pieces' gradients are still copied (our choice)


def _left(one: Found) -> Between:
    """On a CPU, recording slows them down more than the rest: 4 to 7 times where the step took 2 to 3 times as long."""
    slower = 1.0 if one.work.device_ns else one.slower
    return Between(1 - 0.5 / slower, 1 - (1 - LEFT) / slower, min(LEFT, 1 / len(one.first.positions)))


RULE = rewrite(
    "AT12",
    "filling gradients for pieces",
    (
        Op("select|slice|narrow", ("*whole",), left=1, back=_left),
        Takers("*whole", names="select|slice|narrow", left=1, back=_left),
    ),
    where=lambda one: len(one.positions) >= PIECES,
    says=lambda one: (
        f"{len(one.first.positions)} pieces in a row are cut out of a tensor of {one.sizes('whole')}, and for"
        " each the backward pass fills one as large"
    ),
    left=1,
    fixes=(
        Fix(
            "Cut it once, before the loop.",
            before="for t in range(x.shape[1]): state = cell(x[:, t], state)",
            after="for moment in x.unbind(1): state = cell(moment, state)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.unbind.html",
        ),
        Fix(
            "Where pieces overlap, take all of them by one index.",
            before="torch.stack([x[n, :, i:i + 5] for n, i in places])",
            after="x[number[:, None], :, first[:, None] + torch.arange(5)]  # (pieces, 5, channels)",
            safety=Safety.ROUNDING,
        ),
    ),
    why="that pieces are of one tensor is told by shapes",
)

EXAMPLES = [
    Fires(  # 10 moments; the backward pass takes 3 ms each
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=1 in 0
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=1 "Fwd thread id"=1 in 0
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=2 in 1
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=2 "Fwd thread id"=1 in 1
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=3 in 2
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=3 "Fwd thread id"=1 in 2
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=4 in 3
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=4 "Fwd thread id"=1 in 3
        """,
        saving_ms=(15, 44.7),
    ),
    Silent(  # four gates
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::slice 1-1.5 x4 every 1 shapes=[[32,256],[],[],[],[]] sequence=1
        cpu  "autograd::engine::evaluate_function: SliceBackward0" 20-23 x4 every 4 sequence=1 "Fwd thread id"=1
        """
    ),
]
