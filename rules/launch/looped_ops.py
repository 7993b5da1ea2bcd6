"""A Python loop runs the same small ops many times.

Within a step the same ops run one round after the other, forward and backward, on one sample, row or moment at a time;
or outside of what gradients go through, on one weight, row or number at a time.

Why it costs
    Each op takes 5 to 20 us to start, whatever it computes. One op on all takes that once, and reads memory in one go.

How to fix
    Run the ops once on all that the loop goes over: stack the inputs, use `torch.vmap`, or `torch._foreach_...` ops for
    lists of tensors. Where a round needs the one before, use a fused module (`nn.LSTM`), or compile the loop.

Ignore when
    rounds are few and large, or each waits for an answer from outside torch.

Sources
    https://docs.pytorch.org/tutorials/intermediate/torch_vmap_tutorial.html
"""

from diagnose.facts.host.loops import Loop
from diagnose.rulekit.vocabulary import *

FIXED_SHARE = 0.01  # of the step that goes to starting ops of the loop (our choice)
BATCHED = 0.3  # of the rest of small ops on a CPU: larger matrices, memory read once; planted loops gained 0 to 0.6
IN_TURN = 0.5  # share of a round that needs the one before, from which on rounds stay apart (our choice)
MOST_SHOWN = 4  # names of ops in the evidence
BATCH = Fix(
    "Run the loop's ops once, on a batch of all it goes over.",
    safety=Safety.ROUNDING,
    effort=2,
    after="y = f(x)  # or torch.vmap(f)(x)",
    link="https://docs.pytorch.org/tutorials/intermediate/torch_vmap_tutorial.html",
)
FUSE = Fix(
    "If an iteration needs the one before: replace nn.LSTMCell by nn.LSTM (nn.GRU), or compile the loop.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",
)
LISTS = Fix(
    "For lists of tensors torch has ops that take them whole; numbers are read at once by tolist().",
    after="torch._foreach_lerp_(means, weights, 0.01)",
    safety=Safety.ROUNDING,
)


@rule("LB04")
def looped_ops(loops: tuple[Loop, ...], steps: Steps) -> Verdicts:
    large = [loop for loop in loops if loop.fixed_ns >= FIXED_SHARE * steps.mean_ns]
    if not large:
        most = max((loop.fixed_ns for loop in loops), default=0)
        yield Clean(f"starting looped ops takes {ms(most)} a step at most, {percent(most / max(steps.mean_ns, 1))}")
    for loop in large:
        in_turn, cell = (loop.in_need or 0) >= IN_TURN, any(name.endswith("_cell") for name in loop.ops)
        host, device = _left(loop, in_turn and not cell)
        known = loop.in_need is not None
        sure = "no iteration needs the one before it" if known else "whether iterations depend on each other is open"
        sure = "an iteration needs the one before it" if cell or in_turn else sure
        names = ", ".join(loop.ops[:MOST_SHOWN]) + ", ..." * (len(loop.ops) > MOST_SHOWN)
        backward = ", and so does their backward pass" * loop.has_backward
        rows = f"The same ops ({names}) run {loop.rounds} times in a row{backward}: {ms(loop.ns)} a step."
        fixed = f"Of that {ms(loop.fixed_ns)} is overhead per op."
        yield Finding(
            evidence=(Evidence(rows, loop.ns, "ns"), Evidence(fixed, loop.fixed_ns, "ns")),
            edits=(*(Shorten(Times(*pieces), host) for pieces in loop.pieces), Shorten(loop.work_ids, device)),
            fixes=_fixes(loop, cell or in_turn),
            confidence=Confidence(Level.MEDIUM if known or cell else Level.LOW, sure),
            basis=Basis.RULE_OF_THUMB,
            site=loop.site,
            host_bound=True,
        )


def _fixes(loop: Loop, in_turn: bool) -> tuple[Fix, ...]:
    """Not what a loop needs whose iterations depend on each other, where none does."""
    if in_turn:
        return (FUSE,)
    if not loop.has_backward:
        return (BATCH, LISTS)
    return (BATCH,) if loop.in_need is not None else (BATCH, FUSE)


def _left(loop: Loop, in_turn: bool) -> tuple[Between, Between]:
    """Of the time on the host and on the device."""
    if in_turn:
        return Between(1, loop.in_turn_left, loop.in_turn_least), Between(1, 1, loop.work_left)
    likely = (1 - BATCHED) * loop.left + BATCHED * loop.least_left
    host = Between(0.5 + 0.5 * loop.left, likely, 1 / loop.rounds)
    return host, Between(0.5 + 0.5 * loop.work_left, loop.work_left, 1 / loop.rounds)


EXAMPLES = [
    Fires(  # ten rounds of 1 ms forward and 2 ms backward, of which the GPU works 3 us in each op
        """
        4 steps of 40
        cpu  aten::mul 1-1.8 x10 every 1
        cpu  "autograd::engine::evaluate_function: MulBackward0" 11-12.8 x10 every 2 | device_sync 32-39.9
        gpu  pointwise 1.5-1.503 @1.4 x10 every 1 | pointwise 12.5-12.503 @12.4 x10 every 2
        """,
        saving_ms=(13.4, 26.8),
    ),
    Fires(  # an average of 25 weights, moved one by one after the backward pass
        """
        4 steps of 40
        1 threads, 2 cores
        cpu  aten::linear 1-20 sequence=1 | aten::lerp_ 30-30.2 x25 every 0.28
        cpu  "autograd::engine::evaluate_function: LinearBackward0" 21-29 sequence=1 "Fwd thread id"=1
        """
    ),
    Silent(  # ten layers: each has a parameter, whose gradient is complete after its round
        """
        4 steps of 40
        cpu  aten::mul 1-1.8 x10 every 1 | device_sync 32-39.9
        cpu  "autograd::engine::evaluate_function: MulBackward0" 11-12.7 x10 every 2
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 12.8-12.9 x10 every 2
        gpu  pointwise 1.5-1.503 @1.4 x10 every 1 | pointwise 12.5-12.503 @12.4 x10 every 2
        """
    ),
    CannotTell("gpu  pointwise 1.5-1.503 @1.4 x10 every 1", because="framework ops"),
]
