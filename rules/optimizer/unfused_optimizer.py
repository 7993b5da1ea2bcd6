"""Optimizer is not fused.

Without its fused form, an optimizer launches several kernels per parameter, or passes several times over all. It does
so for each parameter group, also where groups have equal settings.

Why it costs
    Each launch costs 5 us of CPU time and more. Each pass reads and writes all parameters and their state.
How to fix
    Set `fused=True`: one kernel updates many parameters in one pass. SGD, Adam and AdamW have it; on the CPU, Adagrad
    too. Merge groups whose settings are equal.
Ignore when
    the optimizer has no fused form, or runs on the CPU on purpose.
Sources
    https://docs.pytorch.org/docs/stable/optim.html
"""

from diagnose.facts.optimizer.optimizer import Implementation, OptimizerSteps
from diagnose.rulekit.vocabulary import *

FUSED = "SGD Adam AdamW"
FOREACH = "Adadelta Adagrad Adamax ASGD NAdam RAdam RMSprop Rprop"
IN_PIECES = (Implementation.SINGLE_TENSOR, Implementation.FOREACH)
LAUNCHES = 20  # a step: fewer are not worth another form (a foreach step launches about ten)
HOST = Between(0.6, 0.3, 0.1)  # of the host time of a foreach step: launches go from tens to a few
ONE_BY_ONE = Between(0.4, 0.1, 0.04)  # where each parameter has launches of its own: an H100's host took 0.04
ON_CPU = "Adam AdamW Adagrad"  # a plain SGD makes one pass there, fused or not
WORTH_SHARE = 0.01  # of a step on the CPU: its ops compute, however few they are (our choice)
MANY_GROUPS = 8  # some of them with equal settings (our choice)
LEFT_OF_GROUPS = (0.4, 0.15, 0.05)  # beside what goes by groups: 293 to 1, 19 % of foreach's time and 10 % of fused's


@rule("OP01")
def unfused_optimizer(
    optimizer_steps: tuple[OptimizerSteps, ...], steps: Steps, manifest: RankManifest | None = None
) -> Verdicts:
    made = {one.optimizer: _made_with(one.optimizer, manifest) for one in optimizer_steps}
    unfused = [one for one in optimizer_steps if "fused=True" not in made[one.optimizer]]
    many = [one for one in unfused if one.implementation in IN_PIECES and (one.launches >= LAUNCHES or one.on_cpu)]
    expensive = WORTH_SHARE * steps.mean_ns
    slow = [one for one in many if not one.on_cpu or (one.optimizer in ON_CPU.split() and one.host_ns >= expensive)]
    grouped = [found for one in optimizer_steps if (found := _merged(one, _of_class(one.optimizer, manifest)))]
    yield from grouped
    if not slow and not grouped:
        forms = [(one, ", ".join([one.implementation.value, *made[one.optimizer]])) for one in optimizer_steps]
        yield Clean("; ".join(f"{one.optimizer} is {form}, {one.launches} launches" for one, form in forms))
    for one in slow:
        arguments = ", ".join(["model.parameters()", *made[one.optimizer]])
        single = one.implementation is Implementation.SINGLE_TENSOR
        has_fused = one.optimizer in (ON_CPU if one.on_cpu else FUSED).split()
        has_foreach = single and not one.on_cpu and one.optimizer in FOREACH.split()
        form = "fused" if has_fused else "foreach" if has_foreach else ""
        times = () if one.on_cpu else one.times
        on_host = [Shorten(Times(*time), ONE_BY_ONE if single else HOST) for time in times]
        yield Finding(
            title=f"{one.optimizer} {'updates parameters one by one' if form == 'foreach' else 'is not fused'}",
            evidence=(_evidence(one, single),),
            edits=(updated_at_once(one, form, _of_class(one.optimizer, manifest)), *on_host),
            fixes=(
                Fix.of(
                    fixes.OptimizerArgument(form, True),
                    f"Use the {form} {one.optimizer}.",
                    before=f"torch.optim.{one.optimizer}({arguments})",
                    after=f"torch.optim.{one.optimizer}(model.parameters(), {form}=True)",
                )
                if form
                else Fix(
                    f"Update lists of parameters in {one.optimizer} with `torch._foreach_*`.",
                    safety=Safety.ROUNDING,
                    link="https://docs.pytorch.org/docs/stable/optim.html",
                ),
            ),
            confidence=Confidence(
                Level.HIGH if single and has_fused else Level.MEDIUM,
                "the optimizer's own ops are recorded" if has_fused else "whether it has a fused form is not known",
            ),
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )


def _merged(one: OptimizerSteps, made: list[Optimizer]) -> Finding | None:
    """What groups with equal settings cost; None if there are few groups, or none are alike."""
    groups, distinct = sum(known.groups or 0 for known in made), sum(known.distinct_groups or 0 for known in made)
    if groups < MANY_GROUPS or not 0 < distinct < groups:
        return None
    left = Between(*LEFT_OF_GROUPS).of_share(1 - distinct / groups)
    text = (
        f"{groups} parameter groups have {distinct} different setting{'s' * (distinct > 1)};"
        f" {one.optimizer} takes {ms(one.host_ns)}/step."
    )
    return Finding(
        title=f"{one.optimizer} has {groups} parameter groups, many with equal settings",
        evidence=(Evidence(text, one.host_ns, "ns"),),
        edits=tuple(Shorten(Times(*time), left) for time in one.times),
        fixes=(
            Fix(
                f"Merge parameter groups with equal settings into {distinct}.",
                after='group = {"params": list(model.parameters()), "lr": 0.001}  # one for each different setting',
            ),
        ),
        confidence=Confidence(Level.MEDIUM, "groups are counted; what each costs is an estimate"),
        site=next((known.made.site for known in made if known.made), None),
        basis=Basis.RULE_OF_THUMB,
        host_bound=True,
    )


def _evidence(one: OptimizerSteps, single: bool) -> Evidence:
    how = "per-parameter" if single else "foreach"
    what = f"{one.ops:,} ops" if one.on_cpu else f"{one.launches:,} kernels"
    cost = ms(one.host_ns) + f" of CPU time, {ms(one.device_ns)} of GPU time" * (not one.on_cpu)
    text = f"{one.optimizer} ({how}): {what} per step, {cost}."
    return Evidence(text, one.host_ns if one.on_cpu else one.device_ns, "ns")


def _of_class(optimizer: str, manifest: RankManifest | None) -> list[Optimizer]:
    return [one for one in manifest.optimizers if one.name == optimizer] if manifest else []


def _made_with(optimizer: str, manifest: RankManifest | None) -> list[str]:
    """Settings that all optimizers of this class are known to share."""
    made = _of_class(optimizer, manifest)
    values = {"foreach": {one.foreach for one in made}, "fused": {one.fused for one in made}}
    return [f"{name}={value}" for name, some in values.items() if len(some) == 1 for value in some - {None}]


EXAMPLES = [
    Fires(
        """
        4 steps of 40
        cpu  aten::mm 0-0.1 | optimizer 1-31 | aten::addcmul_ 1-1.09 x300 every 0.1
        gpu  bf16_gemm 0.1-0.9 @0.05 | pointwise 1.05-1.06 @1.03 x300 every 0.1
        """,
        saving_ms=(18, 28.8),  # 30 ms in the call, of which 60 to 96 % go
    ),
    Silent("""
        4 steps of 40
        cpu  aten::mm 0-0.1 | optimizer 1-1.5 | aten::_fused_adamw_ 1.1-1.4 | sync 2-39.5
        gpu  bf16_gemm 0.1-37 @0.05 | adam 37-39 @1.2
    """),
    # many launches, all hidden behind the GPU's work
    Silent("""
        4 steps of 40
        cpu  aten::mm 0-0.1 | optimizer 1-4.1 | aten::addcmul_ 1-1.09 x30 every 0.1 | sync 5-39.9
        gpu  bf16_gemm 0.1-39.5 @0.05 | pointwise 39.5-39.503 @1.03 x30 every 0.01
    """),
]
