"""What rules on the data loader say alike: how many workers it takes, and why those that are there are late."""

from __future__ import annotations

from diagnose.contracts.finding import Evidence
from diagnose.facts.data.loading import Loading
from diagnose.trace.units import duration as ms
from diagnose.trace.units import percent

MOSTLY = 0.5  # Of the wait, from which on something is said to be why (our choice).


def loading_evidence(loading: Loading | None) -> tuple[Evidence, ...]:
    """How many workers would hide loading, where that is known; else nothing."""
    if loading is None:
        return ()
    takes, present = f"A batch takes {ms(loading.fetch_ns)} to make, and a step without the wait", loading.loader
    takes = f"{takes} {ms(loading.step_ns)}"
    if present.num_workers >= loading.workers:
        best = f"{present.num_workers} worker{'s' * (present.num_workers > 1)}, with a core each, would be enough"
        return (Evidence(f"{takes}: {best}.", loading.fetch_ns, "ns"), Evidence(why_late(loading)))
    if loading.best_ns is not None:
        need = f"{loading.workers} workers, and there {_are(loading.cpus or 1)}."
        most = f"With a worker on each core loading takes {ms(loading.best_ns)} a step at best"
        also = f"{most}; the training needs cores, too." if loading.computes else f"{most}."
        return (
            Evidence(f"{takes}: hiding it takes {need}", loading.workers, "workers"),
            Evidence(also, loading.best_ns, "ns"),
        )
    text = f"{takes}: {loading.workers} worker{'s' * (loading.workers > 1)} would hide loading."
    return (Evidence(text, loading.workers, "workers"), *_of_those_there(loading))


def _of_those_there(loading: Loading) -> tuple[Evidence, ...]:
    """What too few workers do at best, and where that is at odds with steps."""
    if loading.pace_ns is None:
        return ()
    text = f"The {loading.loader.num_workers} that are there make those of a step in {ms(loading.pace_ns)} at best."
    if loading.from_before:
        text = f"{text[:-1]}: steps of {ms(loading.mean_ns)} use up batches that were made before."
    return (Evidence(text, loading.pace_ns, "ns"),)


def why_late(loading: Loading) -> str:
    """Why the training waits although the workers would be enough: a sentence."""
    epoch, one = loading.epoch, loading.loader
    if loading.crowded:
        queued = f", for which they wait {ms(one.fetch_queued_ns)} a batch" if one.fetch_queued_ns else ""
        return f"They do not have a core each{queued}."
    if loading.handing_share >= MOSTLY:
        return f"Most of the wait is for handing over batches: {ms(one.handed_ns or 0)} each."
    if epoch is not None and epoch.starting_share * epoch.step_ns >= MOSTLY * max(loading.mean_ns - loading.step_ns, 1):
        share = percent(epoch.starting_share)
        return f"Most of the wait is for workers that start: {ms(epoch.starting_ns)} an epoch, {share} of it."
    if loading.lie_ready:
        return "Batches lie ready most times, and some are late."
    return "Why batches are late all the same cannot be told from this recording."


def _are(cores: int) -> str:
    return f"are {cores} cores" if cores > 1 else "is one core"
