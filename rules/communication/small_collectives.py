"""Many small collectives run one after another.

Gradients or metrics are reduced tensor by tensor.

Why it costs
    Below about 1 MiB, a collective takes its latency, whatever its size: 15 to 45 us within a node, 50 to 150 us
    between nodes, 100 to 300 us with gloo, which also blocks the CPU.
How to fix
    Pack the tensors that are reduced at one place into one. Let DDP reduce gradients: it packs them, and overlaps with
    the backward pass. Reduce metrics every 100 steps.
Ignore when
    each result is needed before the next collective can start, as in tensor parallelism.
Sources
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from diagnose.facts.communication.collectives import SmallCollectives
from diagnose.facts.communication.host_collectives import HostRuns
from diagnose.facts.communication.messages import CollectiveRuns, LooseGradients
from diagnose.rulekit.vocabulary import *

CALLS = 20  # a step, on the device: fewer cost a millisecond at most (our choice)
HOST_SHARE = 0.01  # of the step that the host waits for all but the first of each row (our choice)
LEFT = Between(0.2, 0.05, 0.02)  # of later ones on the host: packing takes some us of 100 to 300 each (our choice)
WAITS = Between(0.6, 0.3, 0.0)  # of the waiting for other ranks there: who is late is waited for once (our choice)
PACK = Fix(
    "Reduce all tensors at once.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
    after="dist.all_reduce(flat := torch.cat([g.ravel() for g in grads]))",
)
WRAP = Fix(
    "Wrap the model in DistributedDataParallel, to reduce buckets during the backward pass.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    after="model = DistributedDataParallel(model)",
)
FLATTEN = Fix(
    "Or reduce the gradients as one tensor after the backward pass, without overlap.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
    after="flat = torch._utils._flatten_dense_tensors(grads)\ndist.all_reduce(flat)\n"
    "torch._foreach_copy_(grads, torch._utils._unflatten_dense_tensors(flat, grads))",
)


@rule("CO06")
def small_collectives(
    small_collectives: SmallCollectives,
    collective_runs: CollectiveRuns,
    loose_gradients: LooseGradients,
    host_runs: HostRuns,
    steps: Steps,
) -> Verdicts:
    small, runs, host, later, loose = small_collectives, collective_runs, host_runs, host_runs.later, loose_gradients
    if small.unknown_calls > small.calls or host.unknown_calls > host.calls:
        raise Missing("the sizes of most collectives", "NCCL: use PyTorch 2.2 or newer. gloo: record shapes.")
    if not small.total_calls:
        yield NotApplicable("there are no collectives")
    elif max(runs.calls, host.calls, loose.calls) < CALLS and later.ns < HOST_SHARE * steps.mean_ns:
        yield Clean(f"{small.calls} collectives below 1 MiB per step on the GPU, {runs.calls + host.calls} in a row")
    if loose.calls >= CALLS:
        took = f"{ms(loose.exposed_ns)} exposed, {ms(loose.host_ns)} of CPU time"
        text = f"{loose.calls} all-reduces per step of {bytes_(loose.bytes)} of gradients: {took}."
        yield Finding(
            title="Gradients are all-reduced one by one",
            evidence=(Evidence(text, loose.calls, "collectives"),),
            edits=(Remove(loose.later_op_ids), Replace(loose.ids, loose.run, loose.joined_ns)),
            fixes=(WRAP, FLATTEN),
            confidence=Confidence(Level.MEDIUM, "how much of the backward pass can hide each reduction is not known"),
            basis=Basis.RULE_OF_THUMB,
            host_bound=loose.host_ns > loose.exposed_ns,
        )
    if runs.calls >= CALLS:
        took = f"{ms(runs.exposed_ns)} exposed, {ms(runs.host_ns)} of CPU time"
        yield _found(
            f"{runs.calls} small collectives per step run one after another: {took}.",
            runs.calls,
            (Remove(runs.later_op_ids), Replace(runs.ids, runs.run, runs.joined_ns)),
            runs.host_ns > runs.exposed_ns,
        )
    if later.ns >= HOST_SHARE * steps.mean_ns:
        yield _found(
            f"{host.calls} small collectives per step block the CPU one after another: {ms(later.ns)}"
            " after the first of each row.",
            host.calls,
            (
                Remove(later.ids),
                Shorten(Times(later.track, later.own), LEFT),
                Shorten(Times(later.track, later.waiting), WAITS),
            ),
            False,
        )


def _found(text: str, calls: int, edits: tuple[Edit, ...], host_bound: bool) -> Finding:
    return Finding(
        evidence=(Evidence(text, calls, "collectives"),),
        edits=edits,
        fixes=(PACK,),
        confidence=Confidence(Level.MEDIUM, "the light work between the collectives could wait for all"),
        basis=Basis.RULE_OF_THUMB,
        host_bound=host_bound,
    )


EXAMPLES = [
    Fires(  # 40 collectives of 40 us and 80 us of host time each
        """
        4 steps of 6
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 1-1.08 x40 every 0.1 | aten::add 5-5.1 | device_sync 5.2-5.99
        gpu     sgemm 0.1-0.9 @0.05 | pointwise 5.1-5.95 @5.05
        gpu 20  allreduce 1.05-1.09 @1.02 x40 every 0.1 operation=allreduce in_elements=9 dtype=Float
        """,
        saving_ms=(3.12, 3.12),
    ),
    # 40 gradients of 0.4 MB in 40 us each: 0.8 ms at least are latency, and the backward pass hides the rest
    Fires("""
        4 steps of 6
        cpu     "autograd::engine::evaluate_function: MmBackward0" 0-0.1 | c10d::allreduce_ 1-1.08 x40 every 0.1
        cpu     aten::add 5-5.1 | device_sync 5.2-5.99
        gpu     sgemm 0.1-0.99 @0.05 | pointwise 5.1-5.95 @5.05
        gpu 20  allreduce 1.05-1.09 @1.02 x40 every 0.1 operation=allreduce in_elements=100000 dtype=Float
    """),
    # each between two matrix products: tensor parallelism
    Silent("""
        4 steps of 6
        cpu     aten::mm 1-1.03 x40 every 0.1 | c10d::allreduce_ 1.04-1.08 x40 every 0.1 | device_sync 5.2-5.99
        gpu     sgemm 1.03-1.06 @1.01 x40 every 0.1
        gpu 20  allreduce 1.06-1.09 @1.05 x40 every 0.1 operation=allreduce in_elements=9 dtype=Float
    """),
    # hidden, and the host has time
    Silent("""
        4 steps of 6
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 1-1.08 x40 every 0.1 | device_sync 5.2-5.99
        gpu     sgemm 0.1-5.95 @0.05
        gpu 20  allreduce 1.05-1.09 @1.02 x40 every 0.1 operation=allreduce in_elements=9 dtype=Float
    """),
    CannotTell("gpu 20  allreduce 1.05-1.09 x40 every 0.1", because="sizes of collectives"),
]
