"""Anomaly detection checks every gradient for NaN.

After each operation of the backward pass its results are looked through, as anomaly detection does to find where a NaN
comes from. In the forward pass it also keeps the call stack of every operation.

Why it costs
    Each check reads the whole gradient, and on a GPU the host waits for the answer before it launches anything more.

How to fix
    Switch off `torch.autograd.set_detect_anomaly`, `detect_anomaly` and hooks that look for NaN; switch them on again
    when a loss has become NaN.

Ignore when
    a NaN is being looked for.

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
        yield Clean(f"{found.checked} checks for NaN between {found.nodes} nodes of the backward pass")
        return
    by_hooks = mode is False
    text = f"The backward pass checks {found.checked / steps.count:,.3g} gradients a step for NaN"
    yield Finding(
        title="Hooks check every gradient for NaN" if by_hooks else "Anomaly detection is on" if mode else "",
        evidence=(Evidence(f"{text}, which takes {ms(found.host_ns)}.", found.host_ns, "ns"),),
        edits=(Remove(found.ids),),
        fixes=(Fix("Take out the hooks, or check the loss alone.") if by_hooks else Fix.of(fixes.AnomalyMode()),),
        confidence=Confidence(
            Level.MEDIUM if mode is None else Level.HIGH,
            "the checks are recorded, but not who asks for them"
            if mode is None
            else "the setting is known, and the checks are recorded",
        ),
        host_bound=True,
    )


EXAMPLES = [
    Fires(  # 20 ms a step of checks go; the GPU waits for each, and works no faster
        """
        4 steps of 100
        cpu  mm 0-10 | "autograd::engine::evaluate_function: MmBackward0" 20-60 | aten::isnan 30-50 | mm 50-59
        gpu  sgemm 1-20 @0.5 | pointwise 31-40 @30.5 | sgemm 51-99 @50.5
        """
    ),
    Silent(
        """
        4 steps of 100
        cpu  mm 0-10 | "autograd::engine::evaluate_function: MmBackward0" 20-60 | mm 25-55
        gpu  sgemm 1-20 @0.5 | sgemm 26-99 @25.5
        """
    ),
    CannotTell(
        """
        4 steps of 100
        cpu  aten::mm 0-10
        gpu  sgemm 1-20 @0.5
        """,
        because="the backward pass",
    ),
]
