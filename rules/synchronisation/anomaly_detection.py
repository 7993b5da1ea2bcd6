"""Anomaly detection checks every gradient for NaN.

Anomaly detection checks the results of each op of the backward pass, to find where a NaN comes from. It also keeps the
call stack of every op of the forward pass. Deterministic algorithms fill all new memory, to show what reads it unset.

Why it costs
    Each check reads the whole gradient. On a GPU the CPU waits for the answer before it launches more work.
How to fix
    Remove `torch.autograd.set_detect_anomaly`, `detect_anomaly` and hooks that check for NaN. Enable them once a loss
    is NaN. Set `torch.utils.deterministic.fill_uninitialized_memory = False`: results stay deterministic.
Ignore when
    you are looking for a NaN, or for memory that is read before it is set.
Sources
    https://docs.pytorch.org/docs/stable/autograd.html
    https://docs.pytorch.org/docs/stable/deterministic.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.autograd.backward import NanChecks
from diagnose.facts.core.inputs import Work
from diagnose.rulekit.vocabulary import *

ALL = 0.3  # gradients checked for each node of the backward pass: many nodes have none, or several (our choice)


@rule("SY05")
def anomaly_detection(
    nan_checks: NanChecks, filled_memory: Work, steps: Steps, manifest: RankManifest | None = None
) -> Verdicts:
    if len(filled_memory.ids):
        yield filled(filled_memory)
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


def filled(work: Work) -> Finding:
    text = f"New memory is filled before it is used: {ms(work.longest_ns)}/step."
    return Finding(
        title="Deterministic algorithms fill new memory",
        evidence=(Evidence(text, work.longest_ns, "ns"),),
        edits=(Remove(work.ids), Remove(work.work_ids)),
        fixes=(Fix("Leave new memory as it is.", after="torch.utils.deterministic.fill_uninitialized_memory = False"),),
        confidence=Confidence(Level.HIGH, "only this switch fills memory as it is allocated"),
    )


EXAMPLES = [
    Fires(  # 6 ms of 100
        """
        4 steps of 100
        1 threads, 2 cores
        cpu  aten::linear 0-40 | aten::empty 41-48 | aten::fill_ 42-48
        cpu  "autograd::engine::evaluate_function: AddmmBackward0" 50-99
        """,
        saving_ms=(6, 6),
    ),
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
    CannotTell("4 steps of 100\ncpu  aten::mm 0-10\ngpu  sgemm 1-20 @0.5", because="the backward pass"),
]
