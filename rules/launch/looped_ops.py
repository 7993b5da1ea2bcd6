"""A Python loop runs the same small ops many times.

A step runs the same ops in many iterations, each on one sample, row, time step or weight.

Why it costs
    Each op takes 5 to 20 us to start, however little it computes. One op on all inputs starts once, and reads memory in
    one go.
How to fix
    Run the ops once on all inputs of the loop: stack them, use `torch.vmap`, or `torch._foreach_...` ops for lists of
    tensors. If iterations depend on each other, use a fused module (`nn.LSTM`), or compile the loop.
Ignore when
    iterations are few and large, or each waits for something outside torch.
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
    "Run the loop's ops once, on all its inputs as one batch.",
    safety=Safety.ROUNDING,
    effort=2,
    after="y = f(x)  # or torch.vmap(f)(x)",
    link="https://docs.pytorch.org/tutorials/intermediate/torch_vmap_tutorial.html",
)
FUSE = Fix(
    "If iterations depend on each other: use nn.LSTM or nn.GRU instead of cells, or compile the loop.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",
)
LISTS = Fix(
    "Use torch._foreach ops on lists of tensors; read numbers at once with tolist().",
    after="torch._foreach_lerp_(means, weights, 0.01)",
    safety=Safety.ROUNDING,
)


@rule("LB04")
def looped_ops(loops: tuple[Loop, ...], steps: Steps) -> Verdicts:
    large = [loop for loop in loops if loop.fixed_ns >= FIXED_SHARE * steps.mean_ns]
    if not large:
        most = max((loop.fixed_ns for loop in loops), default=0)
        yield Clean(f"overhead of looped ops is at most {ms(most)}/step, {percent(most / max(steps.mean_ns, 1))}")
    for loop in large:
        in_turn, cell = (loop.in_need or 0) >= IN_TURN, any(name.endswith("_cell") for name in loop.ops)
        host, device = _left(loop, in_turn and not cell)
        known = loop.in_need is not None
        sure = "iterations are independent" if known else "whether iterations depend on each other is not recorded"
        sure = "each iteration needs the one before" if cell or in_turn else sure
        names = ", ".join(name.removeprefix("aten::") for name in loop.ops[:MOST_SHOWN]) + ", ..." * (
            len(loop.ops) > MOST_SHOWN
        )
        backward = " with their backward pass" * loop.has_backward
        takes = f"{ms(loop.ns)}/step, {ms(loop.fixed_ns)} of it overhead per op"
        yield Finding(
            evidence=(Evidence(f"{loop.rounds} iterations of {names}{backward}: {takes}.", loop.ns, "ns"),),
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
    # an average of 25 weights, moved one by one after the backward pass
    Fires("""
        4 steps of 40
        1 threads, 2 cores
        cpu  aten::linear 1-20 sequence=1 | aten::lerp_ 30-30.2 x25 every 0.28
        cpu  "autograd::engine::evaluate_function: LinearBackward0" 21-29 sequence=1 "Fwd thread id"=1
    """),
    # ten layers: each has a parameter, whose gradient is complete after its round
    Silent("""
        4 steps of 40
        cpu  aten::mul 1-1.8 x10 every 1 | device_sync 32-39.9
        cpu  "autograd::engine::evaluate_function: MulBackward0" 11-12.7 x10 every 2
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 12.8-12.9 x10 every 2
        gpu  pointwise 1.5-1.503 @1.4 x10 every 1 | pointwise 12.5-12.503 @12.4 x10 every 2
    """),
    CannotTell("gpu  pointwise 1.5-1.503 @1.4 x10 every 1", because="framework ops"),
]
