"""The optimizer updates parameters in many small kernels.

Without its fused form an optimizer launches several kernels for each parameter, or passes several times over all.

Why it costs
    Each launch costs the host 5 us and more, each pass reads and writes all parameters and their statistics.

How to fix
    `fused=True`: one kernel for many parameters, each read and written once. SGD, Adam, AdamW and Adagrad have it.

Ignore when
    the optimizer has no fused form, or runs on the host on purpose.

Sources
    https://docs.pytorch.org/docs/stable/optim.html
"""

from diagnose.rule import (
    Basis,
    Between,
    Clean,
    Confidence,
    Evidence,
    Finding,
    Fires,
    Fix,
    Implementation,
    Level,
    OptimizerSteps,
    Safety,
    Shorten,
    Silent,
    Steps,
    Verdicts,
    ms,
    rule,
)  # fmt: skip

FUSED = "SGD Adam AdamW Adagrad"
LAUNCHES = 20  # a step: fewer are not worth another form (a foreach step launches about ten)
DEVICE = Between(
    1.0, 0.6, 0.3
)  # of the device time: a fused Adam moves 28 bytes a parameter, foreach 4 to 6 times as much
HOST = Between(0.6, 0.3, 0.1)  # of the host time: launches go from hundreds to a few


@rule("OP01")
def unfused_optimizer(optimizer_steps: tuple[OptimizerSteps, ...], steps: Steps) -> Verdicts:
    slow = [
        one
        for one in optimizer_steps
        if one.implementation in (Implementation.SINGLE_TENSOR, Implementation.FOREACH) and one.launches >= LAUNCHES
    ]
    if not slow:
        said = [f"{one.optimizer} is {one.implementation.value}, {one.launches} launches" for one in optimizer_steps]
        yield Clean("; ".join(said))
    for one in slow:
        single = one.implementation is Implementation.SINGLE_TENSOR
        has_fused = one.optimizer in FUSED.split()
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.optimizer} launches {one.launches:,} kernels a step"
                    f" {'for one parameter at a time' if single else 'in several passes'}:"
                    f" {ms(one.host_ns)} of host time, {ms(one.device_ns)} of GPU time.",
                    one.device_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(one.work_ids, DEVICE), Shorten(one.op_ids, HOST)),
            fixes=(
                Fix(
                    "Use the fused optimizer." if has_fused else "Use a fused form of the optimizer, if there is one.",
                    before=f"torch.optim.{one.optimizer}(model.parameters())" if has_fused else "",
                    after=f"torch.optim.{one.optimizer}(model.parameters(), fused=True)" if has_fused else "",
                    safety=Safety.ROUNDING,
                    link="https://docs.pytorch.org/docs/stable/optim.html",
                    trial="patch:torch.optim(fused=True)" if has_fused else None,
                ),
            ),
            confidence=Confidence(
                Level.HIGH if single and has_fused else Level.MEDIUM,
                "the optimizer's own ops are recorded" if has_fused else "whether it has a fused form is not known",
            ),
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 40
        cpu  aten::mm 0-0.1 | optimizer 1-31 | aten::addcmul_ 1-1.09 x300 every 0.1
        gpu  bf16_gemm 0.1-0.9 @0.05 | pointwise 1.05-1.06 @1.03 x300 every 0.1
        """
    ),
    Silent(
        """
        4 steps of 40
        cpu  aten::mm 0-0.1 | optimizer 1-1.5 | aten::_fused_adamw_ 1.1-1.4 | sync 2-39.5
        gpu  bf16_gemm 0.1-37 @0.05 | adam 37-39 @1.2
        """
    ),
    Silent(  # many launches, all hidden behind the GPU's work
        """
        4 steps of 40
        cpu  aten::mm 0-0.1 | optimizer 1-4.1 | aten::addcmul_ 1-1.09 x30 every 0.1 | sync 5-39.9
        gpu  bf16_gemm 0.1-39.5 @0.05 | pointwise 39.5-39.503 @1.03 x30 every 0.01
        """
    ),
]
