"""Steps wait for their batches throughout the run.

The part that has no reason of its own: no slow first epoch, no starts of epochs, no outlier steps.

Why it costs
    The training computes nothing while it waits.
How to fix
    Use more workers (num_workers, prefetch_factor), or make batches cheaper.
Ignore when
    other findings of data loading are fixed first: workers that start late are also waited for later.
Sources
    https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
"""

from diagnose.facts.data.loading import Loading
from diagnose.facts.data.throughput import Bound
from diagnose.rulekit.vocabulary import *


@run_rule("RU01")
def waiting_for_data(log: RunLog, usual_waits_ns: int, loading: Loading | None = None) -> Verdicts:
    steps = max(sum(window.steps for window in log.windows), 1)
    wait_ns = usual_waits_ns / steps
    said = f"Steps wait {ms(wait_ns)} on average for their batch"
    if loading is None:
        change = "Use more workers (num_workers, prefetch_factor), or make batches cheaper."
        change += " `diagnose profile` shows how long a batch takes."
        yield costs(log, usual_waits_ns, said, "Steps wait for data", change, _ready(log), kind="data_wait")
        return
    more, present = loading.workers_help, loading.model.workers
    fix = set_workers(loading.workers, present) if more else cheaper_batches(loading)
    change = f"{fix.do} `{fix.after}`" if fix.after else fix.do
    first = Evidence(f"{said}: {cost(usual_waits_ns, log)}.", usual_waits_ns, "ns", primary=True)
    told = (first, *sentences(_ready(log)), *loading_evidence(loading), *parts_evidence(loading))
    if not more and loading.model.bound(present) is Bound.TRAINING:  # By the model no batch is late.
        yield RunFinding("Steps wait for data", told, saved(usual_waits_ns), change, "data_wait")
        return
    advised, gone = (loading.workers, (0.0, 0.0, 0.0)) if more else (present, avoidable(loading))
    steps_ns = [one.cheaper(share).step_ns(advised) for one, share in zip(loading.models, gone, strict=True)]
    shares = sorted(min(max(1 - one / loading.mean_ns, 0.0), wait_ns / loading.mean_ns) for one in steps_ns)
    whole_ns = steps * loading.mean_ns
    low, likely, high = (min(int(one * whole_ns), usual_waits_ns) for one in (widened(*shares) if more else shares))
    basis = RunBasis.MODELLED if more and loading.explained else RunBasis.RULE_OF_THUMB
    yield RunFinding("Steps wait for data", told, RunSaving(low, likely, high, basis), change, "data_wait")


def _ready(log: RunLog) -> str:
    """How many batches lie ready, as a sentence; empty where the run has no workers."""
    looks = [window.gauges["batches_ready"] for window in log.windows if "batches_ready" in window.gauges]
    ready = sum(one.mean * one.count for one in looks) / max(sum(one.count for one in looks), 1)
    return f"The workers have {ready:.1f} batches ready on average (sampled every second)." if looks else ""


EXAMPLES = [
    # 8 ms of training and 12 of loading; by two workers 0.88 x 8 + 1 to take a batch, + 0 to 0.3 / 7 x 12 beside them
    Fires("1000 steps of 20, loader 12\nbatches made in 12 by 0 workers, 8 cores", saving_ms=(9_342, 12_000)),
    # one core: batches have to get cheaper, by 0 to 90 %
    Fires("1000 steps of 20, loader 12\nbatches made in 12 by 0 workers, 1 cores", saving_ms=(0, 10_800)),
    Fires("1000 steps of 20, loader 8", saving_ms=(0, 7200)),  # no DataLoader: what is needed of it is not known
    Silent("1000 steps of 20, loader 0.1"),
]
