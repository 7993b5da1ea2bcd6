"""Epochs begin slowly.

The first epoch is slower than later ones, or each epoch waits longer for its first batch than for others.

Why it costs
    A cold file cache makes the first epoch wait. A DataLoader that starts its workers anew makes each epoch wait.
How to fix
    Copy the data to a local disk before the run. Keep the workers: `persistent_workers=True`.
Ignore when
    the run has few epochs, and they are long.
Sources
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from diagnose.facts.watched.steps import FirstEpoch
from diagnose.facts.watched.steps import epoch_waits as waits_of
from diagnose.rulekit.vocabulary import *

KEPT_WORKERS: Shares = (0.5, 0.9, 0.98)  # Of starting workers, where these are kept (DL05: our choice).


@run_rule("RU02")
def epoch_starts(log: RunLog, facts: RunFacts, first_epoch: FirstEpoch | None = None) -> Verdicts:
    if first_epoch is not None:
        yield _slow_first(log, first_epoch)
    waits = waits_of(facts)
    workers = any("children_resident_bytes" in window.gauges for window in log.windows)
    each = ms(waits.lost_ns / max(waits.epochs, 1))
    said = f"The first batch of an epoch arrives {each} later than others, {number(waits.epochs)} times"
    keep = "Keep the workers between epochs: persistent_workers=True."
    change = keep if workers else "Check what the dataset and its sampler do when an epoch starts."
    shares = KEPT_WORKERS if workers else None
    yield costs(log, waits.lost_ns, said, "Each epoch waits for its first batch", change, shares=shares)


def _slow_first(log: RunLog, found: FirstEpoch) -> RunFinding:
    cold = 2 * found.waiting_ns > found.beyond_ns
    said = f"Steps take {ms(found.step_ns)} in the first epoch and {ms(found.later_step_ns)} later"
    slow = Evidence(f"{said}: {cost(found.beyond_ns, log)}.", found.beyond_ns, "ns", primary=True)
    waits = f"{cost(found.waiting_ns, log)} of this is waiting for data, perhaps with a cold file cache."
    early = "Copy the data to a local disk or into memory before the run, or prefetch with more workers."
    unknown = "Record steps of the first and of a later epoch with `diagnose record`, and compare them."
    saving = saved(found.waiting_ns if cold else found.beyond_ns)
    told = sentences(slow, waits if cold else "")
    return RunFinding("The first epoch is slow", told, saving, early if cold else unknown, "slow_first_epoch")


EXAMPLES = [
    Fires("1000 steps of 20, loader 1, every 50 loader 600, every 50 epoch", saving_ms=(0, 10_800)),
    Silent("1000 steps of 20, loader 1, every 50 epoch"),
    CannotTell("1000 steps of 20, loader 1", because="no second epoch"),
]
