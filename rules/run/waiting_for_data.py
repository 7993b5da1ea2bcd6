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

from diagnose.facts.watched.log import total
from diagnose.facts.watched.steps import EpochWaits, FirstEpoch, Outliers
from diagnose.rulekit.vocabulary import *


@run_rule("RU01")
def waiting_for_data(
    log: RunLog,
    first_epoch: FirstEpoch | None = None,
    epoch_waits: EpochWaits | None = None,
    outliers: Outliers | None = None,
) -> Verdicts:
    first = first_epoch.waiting_ns if first_epoch else 0
    starts = epoch_waits.lost_ns if epoch_waits else 0
    long = outliers.excess_ns if outliers and outliers.part == "loader" else 0
    left = max(total(log.windows, "loader") - first - max(starts, long), 0)
    said = f"Steps wait {ms(left / max(sum(window.steps for window in log.windows), 1))} on average for their batch"
    looks = [window.gauges["batches_ready"] for window in log.windows if "batches_ready" in window.gauges]
    ready = sum(one.mean * one.count for one in looks) / max(sum(one.count for one in looks), 1)
    workers = f"The workers have {ready:.1f} batches ready on average (sampled every second)." if looks else ""
    change = "Use more workers (num_workers, prefetch_factor), or make batches cheaper."
    change += " `diagnose profile` shows how long a batch takes."
    yield costs(log, left, said, "Steps wait for data", change, workers, kind="data_wait")


EXAMPLES = [Fires("1000 steps of 20, loader 8", saving_ms=(0, 7200)), Silent("1000 steps of 20, loader 0.1")]
