"""Gradients are communicated in fp32.

Ranks exchange 4 bytes per gradient element while the GPU computes nothing.

Why it costs
    The time of large collectives is proportional to their bytes: 16 bits take half as long.
How to fix
    DDP: a communication hook that sends bf16, or PowerSGD, which sends far less. FSDP: `reduce_dtype`. By hand: cast
    before the reduction.
Ignore when
    sums over many ranks need the digits: bf16 keeps 8 bits. Compare a loss curve. PowerSGD is lossy by design.
Sources
    https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
    https://arxiv.org/abs/1905.13727
"""

from diagnose.facts.communication.bandwidth import WideGradients
from diagnose.facts.communication.roles import Role
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, exposed (our choice)
BESIDE = 1.1  # times as much is spared if the casts run beside compute (our choice)
HOOKS = "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"
HOOK = Fix.of(fixes.CommunicationHook())
POWER = Fix(
    "Or send low-rank approximations (PowerSGD), where the network is very slow.",
    after="from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook\n"
    "state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=1000)\n"
    "ddp_model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link=HOOKS,
)
POLICY = Fix(
    "Reduce gradients in bf16: their sums are rounded to 8 bits.",
    after="fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
CAST = Fix(
    "Reduce gradients in bf16: their sums are rounded to 8 bits.",
    before="dist.all_reduce(p.grad)",
    after="sent = p.grad.bfloat16()\ndist.all_reduce(sent)\np.grad.copy_(sent)",
    safety=Safety.NEEDS_JUDGEMENT,
    link=HOOKS,
)
FIXES = {Role.BUCKET: (HOOK, POWER), Role.SHARD_REDUCE: (POLICY,), Role.GRADIENT: (CAST,)}
ALONE = Confidence(Level.LOW, "one rank cannot separate transfer from waiting: record all ranks")
COMPARED = Confidence(Level.MEDIUM, "half the bytes are assumed to take half the time")


@rule("CO07")
def fp32_gradients(wide_gradients: tuple[WideGradients, ...], steps: Steps) -> Verdicts:
    worth = [one for one in wide_gradients if one.exposed_ns >= WORTH_SHARE * steps.mean_ns and one.left < 1.0]
    if not wide_gradients:
        yield NotApplicable("no fp32 gradients are reduced on the GPU")
    elif not worth:
        exposed = ms(wide_gradients[0].exposed_ns)
        yield Clean(f"reductions of fp32 gradients are exposed for {exposed}/step, or are small")
    for one in worth:
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.calls} reductions per step of {bytes_(one.bytes)} of fp32 gradients: {ms(one.ns)},"
                    f" {ms(one.exposed_ns)} exposed.",
                    one.exposed_ns,
                    "ns",
                ),
                Evidence(
                    f"In 16 bits, casts included, the reductions take {about(one.halved_ns)} and end"
                    f" {about(one.spared_ns)} sooner.",
                    one.spared_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(one.ids, _left(one)),),
            fixes=FIXES[one.role],
            confidence=COMPARED if one.compared else ALONE,
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
        )


def _left(one: WideGradients) -> Between:
    low = (1.0 + one.left) / 2 if one.compared else 1.0
    return Between(low, one.left, max(1.0 - BESIDE * (1.0 - one.left), 0.0))


EXAMPLES = [
    Fires(  # 100 MB in 20 ms, half of which and 0.09 ms of casts would do for as many elements of 2 bytes
        """
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-0.12 | device_sync 1-99.9
        cpu     "autograd::engine::evaluate_function: MmBackward0" 0.15-0.45 | c10d::allreduce_ 0.2-0.4
        gpu     sgemm 0.3-79 @0.11
        gpu 20  allreduce 79-99 @0.3 operation=allreduce in_elements=25000000 dtype=Float
        """,
        saving_ms=(0, 10.8),
    ),
    # in bf16 already
    Silent("""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-0.12 | device_sync 1-99.9
        cpu     "autograd::engine::evaluate_function: MmBackward0" 0.15-0.45 | c10d::allreduce_ 0.2-0.4
        gpu     sgemm 0.3-79 @0.11
        gpu 20  allreduce 79-99 @0.3 operation=allreduce in_elements=25000000 dtype=BFloat16
    """),
    # hidden
    Silent("""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-0.12 | device_sync 1-99.9
        cpu     "autograd::engine::evaluate_function: MmBackward0" 0.15-0.45 | c10d::allreduce_ 0.2-0.4
        gpu     sgemm 0.3-99 @0.11
        gpu 20  allreduce 79-99 @0.3 operation=allreduce in_elements=25000000 dtype=Float
    """),
    CannotTell("4 steps of 100\ncpu  aten::mm 0-10", because="device work"),
]
