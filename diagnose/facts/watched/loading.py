"""What the steps of a run wait for data, and what they would take with other DataLoader settings."""

from math import inf

from diagnose.facts.core.base import Missing, optional
from diagnose.facts.data.loading import Loading, throughput_of, whole_batches
from diagnose.facts.watched.log import RunFacts, counted, run_fact, total
from diagnose.facts.watched.steps import epoch_waits, first_epoch, outliers
from diagnose.trace.run_log import RunLog


@run_fact
def usual_waits_ns(run: RunFacts) -> int:
    """Waiting for batches in all steps, without slow first epochs, starts of epochs and outlier steps."""
    first, starts, long = optional(first_epoch, run), optional(epoch_waits, run), optional(outliers, run)
    starts_ns = starts.lost_ns if starts else 0
    long_ns = long.excess_ns if long and long.part == "loader" else 0
    of_first_ns = first.waiting_ns if first else 0
    return max(total(run.logs[0].windows, "loader") - of_first_ns - max(starts_ns, long_ns), 0)


@run_fact
def loading(run: RunFacts) -> Loading:
    """What batches take, by the model that recorded steps are judged by; starts of epochs are no part of it.

    Missing in older logs, and where no DataLoader fed the steps.
    """
    log = run.logs[0]
    seen, steps = log.loading, counted(log.windows, "step")
    if seen is None or (seen.loader.fetch_ns or 0) <= 0 or not seen.steps or not steps:
        raise Missing("the log does not tell what a batch takes")
    training_ns = max(total(log.windows, "step") - total(log.windows, "loader"), 1) / steps
    waits_ns = usual_waits_ns(run) / steps
    cpu = _cpu_share(log)
    batches = whole_batches(seen.batches / seen.steps, seen.steps)
    models = throughput_of(
        seen.loader,
        batches,
        training_ns=training_ns,
        step_cpu_ns=None if cpu is None else cpu * (training_ns + waits_ns),
        threads=seen.threads,
        cores=seen.cores,
        epoch_steps=inf,
        on_cpu=not total(log.windows, "device"),
    )
    return Loading(seen.loader, models, round(training_ns + waits_ns), batches)


def _cpu_share(log: RunLog) -> float | None:
    """Cores that the process used on average, from the first window to the last; None if that is not known."""
    looks = [(one.ended_ns, one.gauges["cpu_s"].last) for one in log.windows if "cpu_s" in one.gauges]
    if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
        return None
    return 1e9 * (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])
