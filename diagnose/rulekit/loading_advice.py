"""What rules on the data loader say alike: what the model of `facts.data.throughput` says of this training."""

from __future__ import annotations

from diagnose.contracts.finding import Evidence
from diagnose.facts.data.loading import Loading
from diagnose.facts.data.throughput import Bound
from diagnose.trace.units import duration as ms
from diagnose.trace.units import percent

TOLD = 0.01  # Of a batch, that a part takes which is told (our choice).
MOSTLY = 0.5  # Of the wait, from which on something is said to be why (our choice).


def loading_evidence(loading: Loading) -> tuple[Evidence, ...]:
    """What batches take, what the advised number of workers does, and what sets the pace then."""
    model, count, present = loading.model, loading.workers, loading.model.workers
    takes = f"Loading a batch takes {ms(loading.fetch_ns)}"
    if loading.split_known and model.waiting_ns >= TOLD * loading.fetch_ns * loading.batches:
        busy = ", network or a core" if loading.loader.fetch_queued_ns is None else " or network"
        takes += f" ({ms(model.waiting_ns / loading.batches)} of it waits for storage{busy})"
    said = [Evidence(f"{takes}; a step takes {ms(model.training_ns)} if its batch is ready.", loading.fetch_ns, "ns")]
    if present:
        pace_ns = model.making_ns / present
        text = f"{_workers(present)} deliver{'s' * (present == 1)} a step's batches every {ms(pace_ns)} at best."
        said.append(Evidence(text, pace_ns, "ns"))
    if count == present:
        return (*said, Evidence(why_late(loading))) if present else tuple(said)
    step_ns, bound = model.step_ns(count), model.bound(count).value
    deliver = f"{_workers(count)} would deliver a step's batches every {ms(model.making_ns / count)}"
    said.append(Evidence(f"{deliver}; a step would take {ms(step_ns)}, limited by {bound}.", count, "workers"))
    others = {str(one): ms(step_ns) for one, step_ns in model.table().items() if one != present}
    said.append(Evidence(f"Predicted step with {', '.join(others)} workers: {', '.join(others.values())}."))
    return tuple(said)


def parts_evidence(loading: Loading) -> tuple[Evidence, ...]:
    """What takes most of making a batch, by part and by function; none if neither is known."""
    one, said = loading.loader, list[Evidence]()
    sampling_ns = round((loading.sampling_share or 0.0) * (one.wait_ns or 0))
    known = {"items": one.items_ns, "collation": one.collate_ns, "the sampler": sampling_ns}
    shares = {name: (ns or 0) / max(one.fetch_ns or 0, 1) for name, ns in known.items()}
    if parts := [f"{name} {percent(share)}" for name, share in shares.items() if share >= TOLD]:
        said.append(Evidence(f"Of loading a batch: {', '.join(parts)}."))
    if loading.function is not None:
        said.append(Evidence(f"{function_said(loading)}.", loading.function[1], "share"))
    return tuple(said)


def function_said(loading: Loading) -> str:
    """The function that takes most of making a batch, with its share and its longest line; empty if there is none."""
    if loading.function is None:
        return ""
    line, share = loading.function
    name, place = line.function or line.calls, f" (mostly line {line.line})" * bool(line.line)
    calls = f", {percent(line.share)} in `{line.calls}`" * bool(line.function and line.calls)
    return f"`{name}`{place} takes {ms(share * loading.fetch_ns)} per batch, {percent(share)} of loading{calls}"


def why_late(loading: Loading) -> str:
    """Why the training waits although more workers would not help: a sentence."""
    model, epoch, one = loading.model, loading.epoch, loading.loader
    if model.bound(model.workers) is Bound.CORES:
        return f"The cores are the limit: a step needs {ms(model.cpu_ns)} of CPU time on {model.cores} cores."
    if model.bound(model.workers) is Bound.WORKERS:
        return f"The workers are the limit, and more of them need more than {model.cores} cores."
    if loading.handing_share >= MOSTLY:
        return f"Most of the wait is worker-to-main transfer: {ms(one.handed_ns or 0)} per batch."
    waited_ns = max(loading.mean_ns - model.training_ns, 1)
    if epoch is not None and epoch.starting_share * epoch.step_ns >= MOSTLY * waited_ns:
        share = percent(epoch.starting_share)
        return f"Most of the wait is worker start-up: {ms(epoch.starting_ns)} per epoch, {share} of it."
    if loading.lie_ready:
        return "Most batches are ready in time, and some are late."
    return "Not recorded: why batches are late although the workers are fast enough."


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"
