"""Anomaly detection checks every gradient for NaN.

Anomaly detection checks the results of each op of the backward pass, to find where a NaN comes from. It also keeps the
call stack of every op of the forward pass.

Why it costs
    Each check reads the whole gradient. On a GPU the CPU waits for the answer before it launches more work.
How to fix
    Remove `torch.autograd.set_detect_anomaly`, `detect_anomaly` and hooks that check for NaN. Enable them once a loss
    is NaN.
Ignore when
    you are looking for a NaN.
Sources
    https://docs.pytorch.org/docs/stable/autograd.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.autograd.anomaly import NanChecks
from diagnose.rulekit.vocabulary import *

ALL = 0.3  # gradients checked for each node of the backward pass: many nodes have none, or several (our choice)


@rule("SY05")
def anomaly_detection(nan_checks: NanChecks, steps: Steps, manifest: RankManifest | None = None) -> Verdicts:
    found, mode = nan_checks, None if manifest is None else manifest.flags.anomaly_mode
    if found.checked < ALL * found.nodes:
        yield Clean(f"{found.checked} NaN checks for {found.nodes} nodes of the backward pass")
        return
    by_hooks = mode is False
    many = found.checked / steps.count
    text = f"{many:,.3g} gradient{'s' * (many != 1)} checked for NaN per step: {ms(found.host_ns)} of CPU time."
    yield Finding(
        title="Hooks check every gradient for NaN" if by_hooks else "Anomaly detection is on" if mode else "",
        evidence=(Evidence(text, found.host_ns, "ns"),),
        edits=(Remove(found.ids),),
        fixes=(Fix("Remove the hooks, or check only the loss.") if by_hooks else Fix.of(fixes.AnomalyMode()),),
        confidence=Confidence(
            Level.MEDIUM if mode is None else Level.HIGH,
            "the checks are recorded; who asks for them is not"
            if mode is None
            else "the setting and the checks are recorded",
        ),
        host_bound=True,
    )


EXAMPLES = [
    # 20 ms a step of checks go; the GPU waits for each, and works no faster
    Fires("""
        4 steps of 100
        cpu  mm 0-10 | "autograd::engine::evaluate_function: MmBackward0" 20-60 | aten::isnan 30-50 | mm 50-59
        gpu  sgemm 1-20 @0.5 | pointwise 31-40 @30.5 | sgemm 51-99 @50.5
    """),
    Silent("""
        4 steps of 100
        cpu  mm 0-10 | "autograd::engine::evaluate_function: MmBackward0" 20-60 | mm 25-55
        gpu  sgemm 1-20 @0.5 | sgemm 26-99 @25.5
    """),
    CannotTell(
        """
        4 steps of 100
        cpu  aten::mm 0-10
        gpu  sgemm 1-20 @0.5
        """,
        because="the backward pass",
    ),
]
