"""What rules on the data loader say alike: what the model of `facts.data.throughput` says of this training."""

from __future__ import annotations

from diagnose.contracts.finding import Evidence
from diagnose.facts.data.loading import Loading
from diagnose.facts.data.throughput import Bound
from diagnose.trace.units import duration as ms
from diagnose.trace.units import percent

MOSTLY = 0.5  # Of the wait, from which on something is said to be why (our choice).


def loading_evidence(loading: Loading) -> tuple[Evidence, ...]:
    """What batches take, what the advised number of workers does, and what sets the pace then."""
    model, count, present = loading.model, loading.workers, loading.model.workers
    takes = f"A batch takes {ms(loading.fetch_ns)} to make"
    if loading.split_known and model.waiting_ns:
        takes += f", of which {ms(model.waiting_ns / loading.batches)} wait for storage or a network"
    said = [Evidence(f"{takes}. A step takes {ms(model.training_ns)} when its batch is ready.", loading.fetch_ns, "ns")]
    if present:
        pace_ns = model.making_ns / present
        text = f"{_workers(present)} deliver{'s' * (present == 1)} the batches of a step every {ms(pace_ns)} at best."
        said.append(Evidence(text, pace_ns, "ns"))
    if count == present:
        return (*said, Evidence(why_late(loading))) if present else tuple(said)
    step_ns, bound = model.step_ns(count), model.bound(count).value
    sets = f"With {_workers(count)} a step takes {ms(step_ns)}, at the pace of {bound}"
    deliver = f"{sets}; {'it delivers' if count == 1 else 'they deliver'} every {ms(model.making_ns / count)}."
    said.append(Evidence(deliver, count, "workers"))
    others = {str(one): ms(step_ns) for one, step_ns in model.table().items() if one != present}
    said.append(Evidence(f"Predicted step with {', '.join(others)} workers: {', '.join(others.values())}."))
    if not loading.split_known:
        said.append(Evidence("How much of making a batch needs a core is not recorded."))
    return tuple(said)


def why_late(loading: Loading) -> str:
    """Why the training waits although more workers would not help: a sentence."""
    model, epoch, one = loading.model, loading.epoch, loading.loader
    if model.bound(model.workers) is Bound.CORES:
        return f"The cores set the pace: a step needs {ms(model.cpu_ns)} of CPU time, on {model.cores} cores."
    if model.bound(model.workers) is Bound.WORKERS:
        return f"The workers set the pace; more of them need more cores than {model.cores}."
    if loading.handing_share >= MOSTLY:
        return f"Most of the wait is for handing over batches: {ms(one.handed_ns or 0)} each."
    waited_ns = max(loading.mean_ns - model.training_ns, 1)
    if epoch is not None and epoch.starting_share * epoch.step_ns >= MOSTLY * waited_ns:
        share = percent(epoch.starting_share)
        return f"Most of the wait is for workers that start: {ms(epoch.starting_ns)} an epoch, {share} of it."
    if loading.lie_ready:
        return "Batches lie ready most times, and some are late."
    return "Not recorded: why batches are late although the workers are fast enough."


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"
