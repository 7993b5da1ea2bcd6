"""Each piece cut out has a gradient as large as the whole.

`x[:, t]` in a loop, or a window `maps[n, :, y:y + 5, x:x + 5]` for each of many places: in the backward pass each piece
fills a tensor of zeros as large as the whole, puts its gradient into it, and all of these are added up.

Why it costs
    n pieces write and read the whole 2 n times, where once is enough: time grows with the square of a sequence's
    length.

How to fix
    Cut everything in one op, whose gradient is put together in one: `for moment in x.unbind(1)`, `x.split(n, dim)`, and
    one index of all windows, or `unfold`, where they overlap.

Ignore when
    pieces are few, or no gradient goes to what is cut.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.unbind.html
"""

from diagnose.facts.autograd.slices import SlicedTensor
from diagnose.facts.run.slowdown import Slowdown
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.03  # of the step, on the host or the device (our choice)
LEFT = 0.1  # of the time, likely: the pieces' gradients are still copied (our choice)
UNBIND = Fix(
    "Cut it once, before the loop.", before="for t in range(x.shape[1]): state = cell(x[:, t], state)",
    after="for moment in x.unbind(1): state = cell(moment, state)", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.unbind.html",
)  # fmt: skip
INDEX = Fix(
    "Where pieces overlap, take all of them by one index.",
    before="torch.stack([x[n, :, i:i + 5] for n, i in places])",
    after="x[number[:, None], :, first[:, None] + torch.arange(5)]  # (pieces, 5, channels)", safety=Safety.ROUNDING,
)  # fmt: skip


@rule("AT12")
def whole_gradients_for_pieces(
    sliced_tensors: tuple[SlicedTensor, ...], steps: Steps, slowdown: Slowdown | None = None
) -> Verdicts:
    large = [one for one in sliced_tensors if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in sliced_tensors), default=0)
        yield Clean(f"gradients of pieces take {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        # On a CPU, recording slows them down more than the rest: 4 to 7 times where the step took 2 to 3 times as long.
        slower = max(slowdown.ratio or 1.0, 1.0) if slowdown and not one.work.device_ns else 1.0
        left = Between(1 - 0.5 / slower, 1 - (1 - LEFT) / slower, min(LEFT, 1 / max(one.fills, one.pieces)))
        on_device = f", {ms(one.work.device_ns)} of GPU time" * (one.work.device_ns > 0)
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.pieces} pieces in a row are cut out of a tensor of {' x '.join(map(str, one.shape))};"
                    f" {one.fills} times a step the backward pass fills one as large: {ms(one.work.host_ns)} of host"
                    f" time{on_device}.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, left), Shorten(one.work.work_ids, left)),
            fixes=(UNBIND, INDEX),
            confidence=Confidence(Level.MEDIUM, "that pieces are of one tensor is told by shapes"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="backward passes"),
]
