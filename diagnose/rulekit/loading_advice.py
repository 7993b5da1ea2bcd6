"""What rules on the data loader say alike: how many workers it takes, and what to do where workers find no cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level
from diagnose.facts.core.base import Missing
from diagnose.facts.data.fetches import Fetches
from diagnose.facts.data.input import Input
from diagnose.facts.data.loading import Loading
from diagnose.fixes.loaders import LoaderArgument
from diagnose.fixes.setting import Safety
from diagnose.replay.edits import Between, Estimate, Shorten, at
from diagnose.replay.saving import Basis
from diagnose.trace.manifest import Loader, RankManifest, SampledLine
from diagnose.trace.units import duration as ms
from diagnose.trace.units import percent


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


def cores_for_workers(wait: Input, loading: Loading | None) -> bool:
    """Whether more loader workers find cores. A training on a GPU leaves some; one on the CPU may not.

    Raises Missing if that is not known.
    """
    if wait.exposed_ns is not None:
        return True
    free = None if loading is None else loading.beside_training
    if free is None:
        raise Missing("how many cores a training on the CPU leaves for workers", "Record with diagnose profile.")
    return free


def left_with_workers(loading: Loading) -> Between:
    """Of the time to make a batch, what it still takes from a training that computes on the cores of the workers.

    What waits is hidden whatever the cores do. What computes comes out of the training's time, or half of it where two
    threads share a core well (our choice); handing a batch over takes some time at least.
    """
    computing, least = 1 - loading.waiting_share, min(handed_over_ns(loading) / loading.fetch_ns, 1.0)
    return Between(*(max(share, least) for share in (computing, computing, computing / 2)))


def in_workers(count: int) -> Fix:
    """Load in so many worker processes, where there are none."""
    setting = LoaderArgument("num_workers", count)
    return Fix.of(setting, "Load in worker processes. Random transforms draw other numbers there.")


def what_takes_it(loading: Loading | None) -> tuple[Evidence, ...]:
    """That making a batch waits, or that it computes and there are no cores for that; nothing of what is not known."""
    if loading is not None and loading.waits_for_storage:
        waiting_ns = round(loading.waiting_share * loading.fetch_ns)
        what = f"For {ms(waiting_ns)} of making it a worker waits for storage or a network."
        return (Evidence(what, waiting_ns, "ns"),)
    if loading is not None and loading.computes and not loading.hideable:
        cpu_ns = loading.loader.fetch_cpu_ns or 0
        part = {"items": ", mostly to read, decode and transform items", "collate": ", mostly in collation", "": ""}
        return (Evidence(f"That takes {ms(cpu_ns)} of CPU time{part[loading.most_in]}.", cpu_ns, "ns"),)
    return ()


CLOSER = Fix(
    "Read from nearer storage: copy the data to a local disk or into memory once, or read large shards in order.",
    after="# for instance webdataset: samples in tar files of some 100 MB\n"
    'dataset = wds.WebDataset("/local/train-{000000..000099}.tar", shardshuffle=100).shuffle(1000).decode("pil")',
    effort=2,
    link="https://github.com/webdataset/webdataset",
)
ON_GPU = Fix(
    "Decode and augment on the GPU: workers only read, and the GPU transforms a whole batch at once.",
    before="transforms.Compose([RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(mean, std)])",
    after='# in the loop; for JPEG files torchvision.io.decode_jpeg(data, device="cuda"), or NVIDIA DALI\n'
    "augment = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(),\n"
    "    v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])\n"
    'images = augment(images.to("cuda", non_blocking=True))',
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/vision/stable/transforms.html",
)


def more_batches(loading: Loading | None, on_gpu: bool = False) -> Iterator[Fix]:
    """What to do where workers do not keep up; of unknown loaders as torch has them by default.

    `on_gpu`: the training computes on one, which can take over what items compute.
    """
    if loading is None:
        yield _raised(8, 0)
        return
    present = loading.loader.num_workers
    if loading.best > present:
        yield _raised(loading.best, present)
    elif loading.hideable and loading.lie_ready:
        queued = loading.loader.prefetch_factor or 2
        yield Fix.of(
            LoaderArgument("prefetch_factor", 4 * queued),
            "Keep more batches ready: the workers are fast enough, but some batches are late.",
        )
    if not loading.hideable and on_gpu and loading.computes and loading.most_in != "collate":
        yield ON_GPU
    if not loading.hideable or (loading.best <= present and not loading.lie_ready):
        yield cheaper_batches(loading)
    if loading.waits_for_storage:
        yield CLOSER


def _raised(count: int, present: int) -> Fix:
    do = "Raise the number of workers, up to the cores there are for this process."
    now = f"DataLoader(dataset, batch_size, num_workers={present})" if present else None
    return Fix.of(LoaderArgument("num_workers", count), do, now)


def batches_that_wait(fetches: Fetches, waited_ns: int, loading: Loading) -> Finding:
    """What to say of batches that wait for storage or a network while the training computes on all cores."""
    what = f"The training waits {ms(waited_ns)} a step while its own process makes the next batch."
    waiting_ns = round(loading.waiting_share * loading.fetch_ns)
    why = f"Of the {ms(loading.fetch_ns)} to make a batch, {ms(waiting_ns)} wait for storage or a network."
    return Finding(
        evidence=(Evidence(what, waited_ns, "ns"), Evidence(why, waiting_ns, "ns")),
        edits=(Shorten(fetches.ids, left_with_workers(loading)),),
        fixes=(in_workers(loading.best),),
        confidence=Confidence(Level.MEDIUM, "wall and CPU time of making batches were measured without the profiler"),
    )


def epoch_batches(manifest: RankManifest, loader: Loader) -> int | None:
    """Of an epoch, as torch's samplers make them."""
    if not loader.dataset_length or not loader.batch_size:
        return None
    ranks = manifest.world_size if loader.sampler == "DistributedSampler" else 1
    items = -(-loader.dataset_length // ranks)
    return max(items // loader.batch_size if loader.drop_last else -(-items // loader.batch_size), 1)


MOSTLY = 0.5
"""Of the time until a batch is there (our choice)."""


def mostly_sampling(loading: Loading | None) -> bool:
    """Whether the sampler is known to take most of it: no worker does its work."""
    return loading is not None and (loading.sampling_share or 0.0) > MOSTLY


HANDED_OVER_NS = 1_000_000
"""What a batch from a worker's queue still costs: 0.3 to 1 ms were measured, more for large ones."""

TENSOR_NS = 100_000
"""What each tensor of it costs, as it comes with a descriptor of its own: 0.6 ms were measured with 16 to 768 of them
on two slow cores, of which this is the least that others may take (our choice)."""


def handed_over_ns(loading: Loading) -> int:
    """What handing a batch over from a worker takes: as measured, else by its tensors."""
    one = loading.loader
    return one.handed_ns or max(HANDED_OVER_NS, TENSOR_NS * (one.tensors or 0))


DEAR_SHARE, DEAR_NS = 0.05, 300_000
"""Of the step, and of a batch, from which on making them is worth looking at although no worker can take it over: one
that a worker has made takes 0.3 ms to hand over at least (the share is our choice)."""

LEFT_OF_ITEMS, LEFT_OF_COLLATION = Between(1.0, 0.5, 0.1), Between(0.5, 0.1, 0.02)
"""Of the time to make items, how much cheaper they can be is not known; of collation by the script, which
default_collate does as one copy for each item (our choices)."""


def expensive(loading: Loading | None, waited_ns: int, step_ns: int) -> TypeGuard[Loading]:
    """Whether making batches is worth looking at although no worker can take it over."""
    return loading is not None and waited_ns >= DEAR_SHARE * step_ns and loading.fetch_ns >= DEAR_NS


def expensive_batches(fetches: Fetches, waited_ns: int, loading: Loading) -> Finding:
    """What to say of batches that the training makes itself, and that workers would not make cheaper."""
    collation = 0.0
    if loading.most_in == "collate" and loading.loader.collate != "default_collate":
        collation = min((loading.loader.collate_ns or 0) / max(loading.fetch_ns, 1), 1.0)
    left = (at(LEFT_OF_ITEMS, level) * (1 - collation) + at(LEFT_OF_COLLATION, level) * collation for level in Estimate)
    what = f"Nothing is computed for {ms(waited_ns)} a step while the training process makes the next batch."
    spent = f"`{loading.loader.collate}` takes {percent(collation)} of that." if collation else ""
    return Finding(
        title="Making batches takes time from computing",
        evidence=(
            Evidence(what, waited_ns, "ns"),
            *((Evidence(spent, collation, "share"),) if spent else ()),
            Evidence(
                "Workers would not help: handing one over takes as long as making it."
                if loading.fetch_ns <= handed_over_ns(loading)
                else "Workers would not help: the training computes on the cores that they would need."
            ),
        ),
        edits=(Shorten(fetches.ids, Between(*left)),),
        fixes=(cheaper_batches(loading),),
        confidence=Confidence(Level.MEDIUM, "torch's own collation copies each item once, without Python")
        if collation
        else Confidence(Level.LOW, "how much cheaper batches can be is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        host_bound=True,
    )


def items_line(loading: Loading) -> tuple[SampledLine, float] | None:
    """The line of the script that takes most of making a batch in a worker, and its share.

    Lines of a function that call the same function of a library count as one. None if no line is known to take much.
    """
    shares: dict[tuple[str, str, str | int], float] = {}
    lines: dict[tuple[str, str, str | int], SampledLine] = {}
    for one in loading.loader.lines:  # Most first.
        key = (one.file, one.function, one.calls or one.line)
        shares[key] = shares.get(key, 0.0) + one.share
        lines.setdefault(key, one)
    if not shares:
        return None
    most = max(shares, key=lambda key: shares[key])
    return (lines[most], min(shares[most], 1.0)) if shares[most] >= MUCH else None


MUCH = 0.3
"""Of the time to make a batch, from which on a line is named (our choice)."""


def cheaper_batches(loading: Loading) -> Fix:
    """What to do about loading that no number of workers hides."""
    longest = {
        "items": "Make the data set's items cheaper, or store them as they are used: they take most of a batch's time.",
        "collate": "Make collation cheaper: it takes most of a batch's time.",
        "": "Make batches cheaper: read, decode and copy less for each.",
    }
    return Fix(longest[loading.most_in], effort=2)
