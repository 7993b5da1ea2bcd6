"""What do batches take, and how long is a step with other numbers of workers?"""

from collections import Counter
from math import inf
from statistics import fmean

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.run import HOW, context
from diagnose.facts.core.steps import steps
from diagnose.facts.data.fetches import Input, fetches, input_wait
from diagnose.facts.data.throughput import SHARING, WARMTH, Bound, Throughput
from diagnose.facts.run.timed_steps import Epoch, comparable, epoch, slowdown
from diagnose.trace.manifest import Loader, RankManifest, SampledLine, most_asked

SPLIT = 0.25  # Batches of a step by which the count in a few steps may be off: a step at the edge asks outside of them.
LIE_READY = 0.5  # Of the requests find no batch ready, at most, where batches are said to lie ready (our choice).
UNLIKE = 0.15  # Share by which steps may differ from what the model says of them, for savings to be sure (our choice).
HANDED_OVER_NS = 1_000_000  # What a batch from a worker's queue still costs: 0.3 to 1 ms measured, more for large ones.
TENSOR_NS = 100_000
"""What each tensor of it costs, as it comes with a descriptor of its own: 0.6 ms were measured with 16 to 768 of them
on two slow cores, of which this is the least that others may take (our choice)."""
START_NS = 15_000_000  # To fork a worker (our choice).
MUCH = 0.3  # Of the time to make a batch, from which on a function is named (our choice).
HIDDEN = 0.5  # Of making batches that workers have to hide: cheaper batches save as much (our choice).
MOSTLY = 0.5  # Of its time in one function of a library, from which on that is named with it (our choice).


class Loading(Struct, frozen=True):
    """What batches take, and what steps take by the model of `throughput`, which has times of all batches of a step."""

    loader: Loader  # The one that is asked most often.
    models: tuple[Throughput, Throughput, Throughput]
    """By `Estimate`: what leaves most of the wait (cores that share much, slow storage), what is likely, the least."""
    mean_ns: int  # A step with all its waits: over whole epochs where seen, else without the profiler, if known.
    batches: float  # That a step takes.
    epoch: Epoch | None = None

    @property
    def model(self) -> Throughput:
        """What is likely."""
        return self.models[1]

    @property
    def fetch_ns(self) -> float:
        """ns to make one batch, on a worker that has a core, or in process."""
        return (self.model.computing_ns + self.model.waiting_ns) / self.batches

    @property
    def first_ns(self) -> int:
        """ns until the first batch of workers that have started is made and sent; 0 where only a trace tells."""
        return round(self.model.making_ns / self.batches) if self.loader.dataset else 0

    @property
    def split_known(self) -> bool:
        """Whether it is known how much of making a batch computes, and how much waits."""
        return self.loader.fetch_cpu_ns is not None

    @property
    def waits(self) -> bool:
        """Whether making a batch is known to wait for storage or a network, mostly."""
        return self.split_known and self.model.waiting_ns > self.model.computing_ns

    @property
    def workers(self) -> int:
        """The number to set. It is never less than there are: that is advice on handing batches over."""
        return max(self.model.advised, self.model.workers)

    @property
    def hidden_share(self) -> float:
        """Share of making batches in process that `workers` workers hide."""
        model = self.model
        return max(model.step_ns(0) - model.step_ns(self.workers), 0.0) / (model.computing_ns + model.waiting_ns)

    @property
    def workers_help(self) -> bool:
        """Whether the advice is to have more workers than there are."""
        present = self.model.workers
        return self.workers > present and (present > 0 or self.hidden_share >= HIDDEN)

    @property
    def explained(self) -> bool:
        """Whether steps are as long as the model says of the present workers: else amounts are not sure."""
        return abs(self.model.step_ns(self.model.workers) / max(self.mean_ns, 1) - 1) <= UNLIKE

    def faster(self, workers: int, share: float = 0.0) -> tuple[float, float, float]:
        """By `Estimate`, how many times as fast as now batches come with so many workers, less a share of making them.

        Now they may be made in process or by workers.
        """
        base, now = self.model, self.model.workers
        now_ns = base.delivery_ns(now) if now else base.computing_ns + base.waiting_ns
        low, likely, high = (now_ns / max(one.cheaper(share).delivery_ns(workers), 1.0) for one in self.models)
        return low, likely, high

    def ready_ns(self, workers: int) -> tuple[float, float, float]:
        """By `Estimate`, ns that a batch still costs the training with so many workers: taking it, starting them."""
        less_ns = self.model.training_ns + self.model.beginning_ns(self.model.workers)
        each = (one.paces_ns(workers)[Bound.TRAINING] + one.beginning_ns(workers) - less_ns for one in self.models)
        low, likely, high = (max(ns, 0.0) / self.batches for ns in each)
        return low, likely, high

    @property
    def handing_share(self) -> float:
        """Share of the training's wait for batches that goes into handing them over; 0 where that is not known."""
        return self.loader.handing_share or 0.0

    @property
    def lie_ready(self) -> bool:
        """Whether batches are known to lie ready when they are asked for, most times, in the process itself."""
        empty = self.loader.empty_share
        return empty is not None and empty <= LIE_READY and self.handing_share < LIE_READY

    @property
    def sampling_share(self) -> float | None:
        """Share of the wait for a batch that the sampler takes, to say which items come next; None if unknown.

        If it was not timed, but there are neither workers nor pinning, it is all of the wait but making the batch.
        """
        one = self.loader
        if one.sampling_ns is not None and one.wait_ns:
            return min(one.sampling_ns / one.wait_ns, 1.0)
        if one.num_workers or one.pin_memory or not one.wait_ns or not one.fetch_ns:
            return None
        return max(one.wait_ns - one.fetch_ns, 0) / one.wait_ns

    @property
    def most_in(self) -> str:
        """What takes most of making a batch: "items", "collate", or "" if that is not known."""
        items, collate = self.loader.items_ns, self.loader.collate_ns
        if items is None or collate is None:
            return ""
        return "collate" if collate > items else "items"

    @property
    def function(self) -> tuple[SampledLine, float] | None:
        """The function that takes most of making a batch: its line with most time, and the share of all its lines.

        The line has what takes most of the function, if that is of a library, with its share. What runs outside the
        script's own code counts by what is called. None if none is known to take MUCH.
        """
        lines = dict[tuple[str, str, str], list[SampledLine]]()
        for one in self.loader.lines:  # Most first.
            lines.setdefault((one.file, one.function, "" if one.file else one.calls), []).append(one)
        shares = {key: sum(one.share for one in some) for key, some in lines.items()}
        most = max(shares, key=lambda key: shares[key], default=None)
        if most is None or shares[most] < MUCH:
            return None
        calls = Counter[str]()
        for one in lines[most]:
            calls[one.calls] += one.share  # type: ignore[assignment]
        called, share = calls.most_common(1)[0]
        told = {"calls": called, "share": share} if share > MOSTLY * shares[most] else {"calls": ""}
        return msgspec.structs.replace(lines[most][0], **told), min(shares[most], 1.0)

    @property
    def collating_share(self) -> float:
        """Share of making a batch that a `collate_fn` of the script's own takes, if it takes most; else 0."""
        by_hand = self.most_in == "collate" and self.loader.collate != "default_collate"
        return min((self.loader.collate_ns or 0) / max(self.fetch_ns, 1), 1.0) if by_hand else 0.0


@fact
def loading(facts: Facts) -> Loading:
    """What the model says of this loader. Raises Missing like input_wait, and if nobody timed how workers make batches.

    A trace alone tells what a batch takes that the training makes itself, but not how much of that computes.
    """
    wait, used, known = input_wait(facts), steps(facts), optional(context, facts)
    rank = RankManifest(rank=0) if known is None else known.rank
    timed = [one for one in rank.loaders if one.fetch_ns is not None and one.fetch_ns > 0]
    if not timed and wait.in_process and not rank.loaders:
        timed = [Loader(dataset="", fetch_ns=round(fmean(fetches(facts).dur_ns)))]
    if not timed:
        raise Missing("the time to load a batch", HOW)
    loader = most_asked([one for one in timed if wait.in_process in (None, one.num_workers == 0)] or timed)
    assert loader is not None
    whole, alone = optional(epoch, facts), rank.unprofiled
    batches = whole_batches(wait.fetches / used.count, used.count)
    mean_ns = used.mean_ns if alone is None or not alone.wall_ns else round(fmean(alone.wall_ns))
    return Loading(
        loader=loader,
        models=_models(facts, wait, loader, rank, batches),
        mean_ns=mean_ns if whole is None else whole.step_ns,
        batches=batches,
        epoch=whole,
    )


def whole_batches(batches: float, steps: int) -> float:
    """Batches of a step: the mean over so many steps, or a whole number within SPLIT of it; at least one in all."""
    each = max(round(batches), 1)
    return float(each) if abs(batches - each) <= SPLIT else max(batches, 1 / steps)


def _models(
    facts: Facts, wait: Input, loader: Loader, rank: RankManifest, batches: float
) -> tuple[Throughput, Throughput, Throughput]:
    """The models of `Loading`, by `Estimate`, from what the recording and the manifest tell."""
    known, whole, alone = optional(context, facts), optional(epoch, facts), rank.unprofiled
    cpus = None if known is None else known.host.cpus_allowed
    return throughput_of(
        loader,
        batches,
        training_ns=_training_ns(facts, wait, 0 if loader.num_workers else (loader.fetch_ns or 0) * batches),
        step_cpu_ns=None if alone is None else alone.cpu_ns,
        threads=rank.flags.threads if wait.exposed_ns is None else 1,
        cores=None if known is None or not cpus or cpus < 1 else max(cpus // max(known.ranks, 1), 1),
        epoch_steps=inf if loader.persistent_workers else _epoch_steps(rank, loader, whole, batches),
        on_cpu=wait.exposed_ns is None,
    )


def throughput_of(
    loader: Loader,
    batches: float,
    *,
    training_ns: float,
    step_cpu_ns: float | None,
    threads: int | None,
    cores: int | None,
    epoch_steps: float,
    on_cpu: bool,
) -> tuple[Throughput, Throughput, Throughput]:
    """The models of `Loading`, of so many batches a step. `step_cpu_ns`: of all threads of the process."""
    made_ns = loader.fetch_ns or 0
    cpu_ns = loader.fetch_cpu_ns or made_ns  # Unknown: all of it.
    blocked_ns = max(made_ns - (loader.fetch_queued_ns or 0) - cpu_ns, 0)
    blocked_ns = blocked_ns if loader.blocked_ns is None else loader.blocked_ns
    # Several threads may have made it here, which a worker does not have.
    computing_ns = min(cpu_ns, made_ns) if loader.num_workers else made_ns - blocked_ns
    if step_cpu_ns is None and threads is None:
        cores = None  # How many the training leaves is not known.
    likely = Throughput(
        training_ns=training_ns,
        training_cpu_ns=training_ns * (threads or 1)
        if step_cpu_ns is None
        else max(step_cpu_ns - (0.0 if loader.num_workers else cpu_ns * batches), 0.0),
        computing_ns=computing_ns * batches,
        waiting_ns=blocked_ns * batches,
        handing_ns=(loader.handed_ns or max(HANDED_OVER_NS, TENSOR_NS * (loader.tensors or 0))) * batches,
        sending_ns=(loader.sending_ns or 0) * batches,
        cores=cores,
        workers=loader.num_workers,
        prefetch=loader.prefetch_factor or 2,
        epoch_steps=epoch_steps,
        start_ns=START_NS,
        warmth=WARMTH if on_cpu else 0.0,
    )
    least, usual, most = (1.0, *SHARING[:2]) if loader.num_workers else SHARING  # Workers that are there share already.
    slow, likely, fast = (replace(likely, sharing=one) for one in (most, usual, least))
    slow_ns = max(loader.blocked_most_ns or 0, blocked_ns)
    slow = replace(slow, waiting_ns=slow_ns * batches, computing_ns=cpu_ns * batches)
    if loader.fetch_cpu_ns is None:
        fast = replace(fast, computing_ns=0.0, waiting_ns=likely.computing_ns)
    return slow, likely, fast


def _training_ns(facts: Facts, wait: Input, making_ns: float) -> float:
    """A step without waiting for batches and without making them, which takes `making_ns` of the training's thread.

    From steps timed without the profiler, and at least the device's work, as recorded steps may wait more than others,
    or less. Where waits were not timed, the step less the recorded share of waiting.
    """
    used, time, known = steps(facts), optional(device_time, facts), optional(slowdown, facts)
    alone = facts.rank.context.rank.unprofiled if facts.rank.context else None
    waits = () if alone is None else alone.phases_ns.get("loader", ())
    step_ns = used.mean_ns if known is None else known.unprofiled_ns
    by_share_ns = max(step_ns * (1 - min(wait.waited_ns / max(used.mean_ns, 1), 1.0)), 1.0)
    if alone is None or len(waits) != len(alone.wall_ns) or not len(which := comparable(facts)):
        return by_share_ns
    busy_ns = 0 if time is None else used.mean_ns - round_half_up(time.idle.total, used.count)
    walls_ns = np.array(alone.wall_ns)[which]
    without_ns = fmean(walls_ns) - making_ns if making_ns else fmean(walls_ns - np.array(waits)[which])
    return float(max(without_ns, busy_ns)) if max(without_ns, busy_ns) > 0 else by_share_ns


def _epoch_steps(rank: RankManifest, loader: Loader, whole: Epoch | None, batches: float) -> float:
    length = epoch_batches(rank, loader)
    return float(whole.steps) if whole is not None else inf if length is None else max(length / batches, 1.0)


def epoch_batches(rank: RankManifest, loader: Loader) -> int | None:
    """Batches of one rank in an epoch, as torch's samplers make them; None if that is not known."""
    if not loader.dataset_length or not loader.batch_size:
        return None
    ranks = rank.world_size if loader.sampler == "DistributedSampler" else 1
    items = -(-loader.dataset_length // ranks)
    return max(items // loader.batch_size if loader.drop_last else -(-items // loader.batch_size), 1)
