"""What several rules say alike: of code that could be fused, compiled code that does not fit, the data loader."""

import json
from collections.abc import Sequence

import numpy as np

from diagnose.contracts.finding import Evidence, Fix
from diagnose.costs.changes import Attended, Chained, Recost, Scattered, UpdatedAtOnce
from diagnose.facts.core.base import Missing
from diagnose.facts.core.steps import Steps
from diagnose.facts.data.loading import Loading
from diagnose.facts.data.throughput import Bound
from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.device.fusion import AttentionChain
from diagnose.facts.device.kernels import SortedIndexing
from diagnose.facts.host.compiling import Compiling
from diagnose.facts.host.starvation import Starvation
from diagnose.facts.optimizer.optimizer import Implementation, OptimizerSteps
from diagnose.fixes import catalogue as fixes
from diagnose.fixes.setting import Safety
from diagnose.replay.edits import Between, Edit, Shorten, Times
from diagnose.trace.frames import Site
from diagnose.trace.manifest import FailedGuard, Optimizer, RankManifest
from diagnose.trace.measured import OPTIMIZER, OpSpec
from diagnose.trace.units import duration as ms
from diagnose.trace.units import percent

MOST_SHOWN = 4  # Names of ops in the evidence.
CHEAPER_ITEMS = (0.0, 0.5, 0.9)  # Of their time that can go: how much cheaper they can be is not known (our choice).
CHEAPER_COLLATION = (0.5, 0.9, 0.98)  # Of the script's, which default_collate does as one copy an item (our choice).


def fusing(chains: PointwiseChains) -> tuple[Edit, ...]:
    """Edits that make each chain one kernel; on the CPU, that shorten all chains by the share that fusing saves."""
    if not chains.on_cpu or chains.fused_ns is None:
        return (Recost(chains.ids, Chained(chains.group, chains.bytes.astype(np.float64), chains.stays)),)
    whole = max(int(chains.ns.sum()), 1)
    keep = Between(*(float(level.sum()) / whole for level in chains.fused_ns))
    return tuple(Shorten(Times(*times), keep) for times in chains.times)


GRAPHED = Between(0.5, 0.2, 0.0)
"""Of what the host needs for launches, what is left where CUDA graphs replay them. Of 675 small kernels a step that
took an H100 23.2 ms, and as graphs 7.3 ms, 0.08 was; of simulated trainings 0.4 to 0.5."""
JOINED = (0.6, 1.0, 1.4)
"""Of launches that chains say would go, those that go: low, likely, high. In two trainings compiled on an H100 0.64 and
1.39 of them went. What was left took the host as long for each as before: 34.8 and 36.2 us."""
JOINED_UNKNOWN = Between(0.9, 0.8, 0.7)
"""Of launches, what is left of an eager model's where no chain is known: between a sixth and a quarter went there."""
EITHER = Between(JOINED_UNKNOWN.low, 0.4, GRAPHED.high)
"""Where it is not known whether graphs can replay the step: from one to the other, likely in between (our choice)."""


def launched(found: Starvation, chains: PointwiseChains | None, steps: Steps, replayed: bool) -> tuple[Edit, ...]:
    """Edits that shorten the host's launches: as CUDA graphs do (`replayed`), else as compiled code with fewer does."""
    keep = JOINED_UNKNOWN
    if replayed:
        keep = GRAPHED if found.repeats and not found.reads else EITHER
    elif chains is not None and chains.chains:
        joined = int((np.bincount(chains.group)[chains.in_steps] - 1).sum()) / max(steps.count * found.launches, 1)
        keep = Between(*(max(1 - share * joined, 0.0) for share in JOINED))
    return tuple(Shorten(Times(*time), keep) for time in found.times)


def attended(chain: AttentionChain) -> Recost:
    """An edit that makes attention which is written out one fused op."""
    shape = chain.batch, chain.queries, chain.keys, chain.head_dim
    return Recost(chain.ids, Attended(chain.group, chain.flops, chain.elements, chain.backward, chain.masked, shape))


def unsorted(found: SortedIndexing) -> Recost:
    """An edit that makes each addition at sorted indices one that adds with atomics."""
    return Recost(found.work.work_ids, Scattered(found.call, found.moved_bytes.astype(np.float64)))


_TENSORS = {"Adam": 7, "AdamW": 7, "SGD": 5}
"""That a fused update reads and writes, of the size of the parameters: parameters, gradients, and of each state, too;
SGD with momentum."""
_BYTES = 4  # Of an element: states are kept in fp32.


def updated_at_once(one: OptimizerSteps, form: str, made: Sequence[Optimizer] = ()) -> Recost:
    """An edit that makes each call of an optimizer "fused" or "foreach" (`form`); "": in fewer passes.
    Its device work changes, or where the CPU trains its ops. `made`: the optimizers of its class, as recorded."""
    ids, call = (one.op_ids, one.op_call) if one.on_cpu else (one.work_ids, one.work_call)
    count = int(call.max(initial=-1)) + 1
    moved = _TENSORS.get(one.optimizer, 0) * _BYTES * (one.elements or 0) * (form == "fused")
    spec = _one_call(one, made) if one.parameters else None
    return Recost(ids, UpdatedAtOnce(call, np.full(count, float(moved)), spec, form, one.ids if one.on_cpu else None))


def _one_call(one: OptimizerSteps, made: Sequence[Optimizer]) -> OpSpec:
    """One call of the optimizer as it can be measured; with the settings that all of `made` share."""
    settings: dict[str, bool | float] = {"foreach": one.implementation is Implementation.FOREACH}
    for name in ("momentum", "weight_decay"):
        values = {getattr(optimizer, name) for optimizer in made}
        if len(values) == 1 and None not in values:
            settings[name] = values.pop()
    return OpSpec(
        f"{OPTIMIZER}{one.optimizer}",
        shapes=json.dumps([some.shape for some in one.parameters]),
        dtypes=json.dumps([some.dtype for some in one.parameters]),
        scalars=json.dumps(settings),
    )


def known(chains: PointwiseChains | None) -> PointwiseChains:
    """The chains. Raises Missing where they are not known."""
    if chains is None:
        raise Missing("shapes", "Record with record_shapes=True, or diagnose profile.")
    return chains


def chains_taken(chains: PointwiseChains) -> Evidence:
    """How many chains there are, what they take, and the ops of the longest."""
    work = "ops" if chains.on_cpu else "kernels"
    like = f", such as {', '.join(chains.ops[:MOST_SHOWN])}" if chains.ops else ""
    text = f"{chains.chains} chains of memory-bound {work} take {ms(chains.chains_ns)}/step{like}."
    return Evidence(text, chains.chains_ns, "ns")


def torchs_own(chains: PointwiseChains) -> tuple[Fix, ...]:
    """Fixes that call torch's own function for the longest chain, if its ops look like a loss, norm or activation."""
    ops = {name.removeprefix("aten::").rstrip("_") for name in chains.ops}
    return tuple(
        Fix(f"Call PyTorch's own function, if the chain is {what}.", after=after, safety=Safety.ROUNDING)
        for what, some, others, after in _WHOLES
        if ops & some and ops & others
    )


_WHOLES = (
    (
        "a loss",
        {"log", "exp", "logsumexp"},
        {"sum", "mean", "softmax", "_softmax", "gather"},
        "torch.nn.functional.cross_entropy(scores, labels)",
    ),
    (
        "a norm",
        {"rsqrt", "sqrt", "std"},
        {"mean", "var", "std"},
        "torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)  # PyTorch 2.4; layer_norm",
    ),
    ("an activation", {"tanh", "erf"}, {"mul", "pow", "add"}, "torch.nn.functional.gelu(x)"),
)
"""What it is, ops of which one has to be there, others of which one has to, as torch has it."""


def gave_up(compiling: Compiling) -> bool:
    """Whether code was to be compiled, and nothing compiled runs: nothing fits, and nothing is compiled any more.
    A search with no compiled region after it may also be one for a piece without any op, so no region may be called."""
    return compiling.missed > 0 and not compiling.region_calls


LINK = "https://docs.pytorch.org/docs/stable/torch.compiler_recompilation.html"
PAD = Fix("Or pad to a few sizes, so that each is compiled once.", safety=Safety.ROUNDING, effort=2, link=LINK)
REASONS = Fix("Log which guard fails.", after="TORCH_LOGS=recompiles python train.py", link=LINK)


def why_not(manifest: RankManifest | None) -> FailedGuard | None:
    """The guard by which the most compiled forms of a function failed; None if that was not recorded."""
    return max(manifest.failed_guards, key=lambda one: one.forms, default=None) if manifest else None


def guard_evidence(guard: FailedGuard | None) -> tuple[Evidence, ...]:
    """The guard that failed, in dynamo's words; nothing without one."""
    if guard is None:
        return ()
    versions = "1 compiled version" if guard.forms == 1 else f"{guard.forms} compiled versions"
    return (Evidence(f"{versions} failed the guard `{guard.said}`.", guard.forms),)


def guard_site(guard: FailedGuard | None) -> Site | None:
    """The user's line that the guard is about."""
    return None if guard is None else Site(guard.file, guard.line, guard.function)


def guard_fixes(guard: FailedGuard | None) -> tuple[Fix, ...]:
    """What to do about the guard: dynamic=True and padding if it is on a size, or if it is not known (None)."""
    dynamic = fixes.CompileArgument("dynamic", True)
    if guard is None:
        return REASONS, Fix.of(dynamic, "If the guard is on a size, compile for any size."), PAD
    if guard.is_size:
        return Fix.of(dynamic, "Compile for any size."), PAD
    return (
        Fix(
            f"Move `{guard.source}` out of the compiled function, or make it a tensor.",
            before=guard.said,
            safety=Safety.ROUNDING,
            effort=2,
            link=LINK,
        ),
    )


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


def set_workers(count: int, present: int | None) -> Fix:
    """The fix to have `count` workers. `present`: how many there are; None: some; with 0 in the setting's own words."""
    do = f"Use {count} workers, if this process has that many free cores." if present != 0 else ""
    now = f"DataLoader(dataset, batch_size, num_workers={present})" if present else "" if present is None else None
    return Fix.of(fixes.LoaderArgument("num_workers", count), do, now)


def cheaper_batches(loading: Loading) -> Fix:
    """The fix of loading that no number of workers hides, by what takes most of it."""
    longest = {
        "items": "Make the dataset's items cheaper, or store them preprocessed: items take most of a batch's time.",
        "collate": "Make `collate_fn` cheaper: collation takes most of a batch's time.",
        "": "Make batches cheaper: read, decode and copy less per batch.",
    }
    return Fix(longest[loading.most_in], effort=2)


def avoidable(loading: Loading) -> tuple[float, ...]:
    """Shares of making a batch that cheaper items, and cheaper collation, would save: low, likely, high."""
    share = loading.collating_share
    return tuple((1 - share) * items + share * own for items, own in zip(CHEAPER_ITEMS, CHEAPER_COLLATION, strict=True))


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
    """A sentence on why the training waits for batches although more workers would not help."""
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
