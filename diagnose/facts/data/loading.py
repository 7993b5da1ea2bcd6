"""What would it take to make batches as fast as the training uses them?"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import fmean

import numpy as np

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.run import HOW, context
from diagnose.facts.core.steps import steps
from diagnose.facts.data.fetches import Input, input_wait
from diagnose.facts.run.timed_steps import Epoch, comparable, epoch, slowdown
from diagnose.trace.manifest import Loader, SampledLine, most_asked

SIBLINGS = 2  # Logical cores that may be one.
MOSTLY = 0.6  # Of the time to make a batch, from which on it is what making batches is about (our choice).
SPLIT = 0.25  # Batches of a step by which the count in a few steps may be off: a step at the edge asks outside of them.
LIE_READY = 0.5  # Of the requests find no batch ready, at most, where batches are said to lie ready (our choice).
SLOWER = 1.1  # Times what workers can do at best, at which steps agree with it (our choice).
BUSY_SHARE = 0.5  # Of the cores: where more of them are busy, a worker may have waited for one (our choice).
HANDED_OVER_NS = 1_000_000
"""What a batch from a worker's queue still costs: 0.3 to 1 ms were measured, more for large ones."""
TENSOR_NS = 100_000
"""What each tensor of it costs, as it comes with a descriptor of its own: 0.6 ms were measured with 16 to 768 of them
on two slow cores, of which this is the least that others may take (our choice)."""
MUCH = 0.3  # Of the time to make a batch, from which on a line is named (our choice).


@dataclass(frozen=True)
class Loading:
    """What it takes to make batches as fast as the training uses them."""

    loader: Loader  # The one that is asked most often.
    step_ns: int  # A step that waits for no batch; without the profiler where that was timed.
    mean_ns: int
    """A step with all its waits: over whole epochs where these were seen, else without the profiler, if known."""
    fetch_ns: int  # Median time to make a batch, on one worker that has a core, as far as is known, or in process.
    batches: float  # That a step takes.
    cpus: int | None  # Cores that there are for each process of the run on this machine; None if that is not known.
    threads: int | None  # That CPU ops run on; None if that is not known.
    epoch: Epoch | None = None

    @property
    def cpu_ns(self) -> int:
        """CPU time of a batch, as far as is known; else all of its time counts."""
        return self.loader.fetch_cpu_ns or self.fetch_ns

    @property
    def workers(self) -> int:
        """The smallest number that makes batches while the training computes, if there are cores for them."""
        return max(ceil(self.fetch_ns * self.batches / self.step_ns), 1)

    @property
    def cores(self) -> int:
        """How many they would keep busy."""
        return max(ceil(self.cpu_ns * self.batches / self.step_ns), 1)

    @property
    def lacks_workers(self) -> bool:
        """Whether it takes more of them, if they find cores."""
        return self.workers > self.loader.num_workers

    @property
    def best(self) -> int:
        """The number of workers that there are cores for, at most `workers`."""
        return min(self.workers, self.cpus or self.workers)

    @property
    def hideable(self) -> bool:
        """Whether there are cores enough, one for each worker."""
        return self.cpus is None or max(self.workers, self.cores) <= self.cpus

    @property
    def best_ns(self) -> int | None:
        """What loading takes of a step at best, with a worker on each core; None if it can be hidden."""
        if self.hideable or self.cpus is None:
            return None
        return round(max(self.fetch_ns, self.cpu_ns) * self.batches / self.cpus)

    @property
    def pace_ns(self) -> int | None:
        """What the k workers that are there take for the batches of a step at best, each on a core: t / k for one that
        takes t. None without any."""
        present = self.loader.num_workers
        return round(self.fetch_ns * self.batches / present) if present else None

    @property
    def from_before(self) -> bool:
        """Whether steps are faster than the workers can be: they use up batches that were made before them."""
        return self.pace_ns is not None and self.pace_ns > SLOWER * self.mean_ns

    @property
    def crowded(self) -> bool:
        """Whether workers that would be enough, with a core each, do not get that: by what they waited for one, or by
        how many cores there are."""
        queued, present = self.loader.fetch_queued_ns or 0, self.loader.num_workers
        waits = (self.fetch_ns + queued) * self.batches > SLOWER * present * self.step_ns
        return waits or (self.cpus is not None and self.cores > self.cpus)

    @property
    def beside_training(self) -> bool | None:
        """Whether there are cores for it beside a training that computes on the CPU, even if each two are one.

        Two logical cores of one (hyper-threading; virtual machines do not tell) are little faster than one: on such a
        machine of two, a worker that hid 7 of 82 ms made the training slower by as much. None if it is not known.
        What waits (`waiting_share`) needs none.
        """
        if self.cpus is None or self.threads is None:
            return None
        return self.cpus >= SIBLINGS * (self.threads + self.cores)

    @property
    def handing_share(self) -> float:
        """Of the time that the training waits for batches what goes into handing over; 0 where that is not known."""
        return self.loader.handing_share or 0.0

    @property
    def handed_over_ns(self) -> int:
        """What handing a batch over from a worker takes: as measured, else by its tensors."""
        return self.loader.handed_ns or max(HANDED_OVER_NS, TENSOR_NS * (self.loader.tensors or 0))

    @property
    def lie_ready(self) -> bool:
        """Whether batches are known to lie ready when they are asked for, most times, in the process itself."""
        empty = self.loader.empty_share
        return empty is not None and empty <= LIE_READY and self.handing_share < LIE_READY

    @property
    def waiting_share(self) -> float:
        """Of the time to make a batch what waits, for storage or a network: no core is busy meanwhile.

        The rest is computed, as far as is known: on several cores in less than its CPU time.
        """
        cpu_ns = self.loader.fetch_cpu_ns
        return 0.0 if cpu_ns is None else max(self.fetch_ns - cpu_ns, 0) / self.fetch_ns

    @property
    def waits_for_storage(self) -> bool:
        """Whether making a batch is known to be mostly waiting, and not for a core."""
        busy = (self.threads or 1) + self.loader.num_workers * (1 - self.waiting_share)
        return self.waiting_share >= MOSTLY and self.cpus is not None and busy <= BUSY_SHARE * self.cpus

    @property
    def computes(self) -> bool:
        """Whether making a batch is known to be mostly computing: decoding, transforms, collation."""
        return self.loader.fetch_cpu_ns is not None and 1 - self.waiting_share >= MOSTLY

    @property
    def sampling_share(self) -> float | None:
        """Of the time until a batch is there what the sampler takes, to say which items come next; None if unknown.

        Without workers all else is making it, if nothing is pinned.
        """
        one = self.loader
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
    def line(self) -> tuple[SampledLine, float] | None:
        """The line of the script that takes most of making a batch in a worker, and its share.

        Lines of a function that call the same function of a library count as one. None if none is known to take MUCH.
        """
        alike = dict[tuple[str, str, str | int], list[SampledLine]]()
        for one in self.loader.lines:  # Most first.
            alike.setdefault((one.file, one.function, one.calls or one.line), []).append(one)
        each = [(some[0], sum(one.share for one in some)) for some in alike.values()]
        line, share = max(each, key=lambda pair: pair[1], default=(None, 0.0))
        return None if line is None or share < MUCH else (line, min(share, 1.0))


@fact
def loading(facts: Facts) -> Loading:
    """How many workers would hide loading. Raises Missing like input_wait, and if fetches were not timed."""
    wait, used, known = input_wait(facts), steps(facts), context(facts)
    timed = [one for one in known.rank.loaders if one.fetch_ns is not None and one.fetch_ns > 0]
    if not timed:
        raise Missing("what it takes to make a batch", HOW)
    loader = most_asked([one for one in timed if wait.in_process in (None, one.num_workers == 0)] or timed)
    assert loader is not None
    whole, cpus = optional(epoch, facts), known.host.cpus_allowed
    alone, batches = known.rank.unprofiled, wait.fetches / used.count
    mean_ns = used.mean_ns if alone is None or not alone.wall_ns else round(fmean(alone.wall_ns))
    # A whole number of a step, or one in a whole number of steps, where that fits the count.
    each = max(round(batches), 1)
    return Loading(
        loader=loader,
        step_ns=max(_without_wait_ns(facts, wait), 1),
        mean_ns=mean_ns if whole is None else whole.step_ns,
        epoch=whole,
        fetch_ns=_on_a_core_ns(loader),
        batches=float(each) if abs(batches - each) <= SPLIT else batches,
        threads=known.rank.flags.threads,
        cpus=None if not cpus or cpus < 1 else max(cpus // max(known.ranks, 1), 1),
    )


def _on_a_core_ns(loader: Loader) -> int:
    """Time to make a batch, without what a worker waited for a core."""
    fetch_ns = loader.fetch_ns or 0
    least_ns = min(loader.fetch_cpu_ns or fetch_ns, fetch_ns)
    return max(fetch_ns - (loader.fetch_queued_ns or 0), least_ns)


def _without_wait_ns(facts: Facts, wait: Input) -> int:
    """A step that waits for no batch: of those without the profiler what is no wait, and at least the device's work.

    Recorded steps may wait more than others, or less.
    """
    used, time, alone = steps(facts), optional(device_time, facts), context(facts).rank.unprofiled
    waits = () if alone is None else alone.phases_ns.get("loader", ())
    which, known = comparable(facts), optional(slowdown, facts)
    if alone is None or len(waits) != len(alone.wall_ns) or not len(which):
        step_ns = used.mean_ns if known is None else known.unprofiled_ns
        return round(step_ns * (1 - min(wait.waited_ns / max(used.mean_ns, 1), 1.0)))
    busy_ns = 0 if time is None else used.mean_ns - round_half_up(time.idle.total, used.count)
    return max(round(fmean((np.array(alone.wall_ns) - np.array(waits))[which])), busy_ns)
