"""What is known of the run besides its trace, where `diagnose profile` recorded it."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from math import ceil

import numpy as np

from diagnose.facts.base import Facts, Missing, fact, optional
from diagnose.facts.device import device_work
from diagnose.facts.input import Input, input_wait
from diagnose.facts.steps import LONG, Measure, steps
from diagnose.trace.manifest import Loader, RankManifest, Timed, most_asked
from diagnose.trace.model import Context

SIBLINGS = 2
"""Logical cores that may be one."""

BUSY_SHARE = 0.1
"""Of a core: threads beside the training that compute less hardly hold it up (our choice)."""

_HOW = "Record with diagnose profile, and analyse the recording's folder."


def _context(facts: Facts) -> Context:
    if facts.rank.context is None:
        raise Missing("the run's settings", _HOW)
    return facts.rank.context


@fact
def manifest(facts: Facts) -> RankManifest:
    """What the process knew of itself: settings, loaders, optimizers, step times. Raises Missing if that is nothing."""
    return _context(facts).rank


def marked_ranges(facts: Facts) -> tuple[str, ...]:
    """What is known to have ranges in the recording whenever it happens."""
    return () if facts.rank.context is None else facts.rank.context.rank.marked


@fact
def environment(facts: Facts) -> dict[str, str]:
    """Variables of the run's environment that change speed. Raises Missing if they were not recorded.

    Of variables that `diagnose profile` does not record, such as ROCm's, it cannot say whether they are set.
    """
    if not _context(facts).environment:
        raise Missing("the run's environment", _HOW)
    return _context(facts).environment


@fact
def launch_blocking(facts: Facts) -> bool:
    """Whether CUDA_LAUNCH_BLOCKING was on. Raises Missing like environment, and on ROCm, which has other variables."""
    if facts.rank.provenance.backend == "rocm":
        raise Missing("whether launches were made to wait", "Look at HIP_LAUNCH_BLOCKING and AMD_SERIALIZE_KERNEL.")
    return environment(facts).get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0")


@dataclass(frozen=True)
class Rivals:
    """Threads of Python that compute beside the one that trains. Python runs one thread at a time."""

    names: tuple[str, ...]
    """Most computing first."""
    share: float
    """CPU time of all of them over the time of the steps: 1 is a core."""

    @property
    def busy(self) -> bool:
        """Whether they compute enough to hold up the training."""
        return self.share >= BUSY_SHARE


@fact
def rivals(facts: Facts) -> Rivals:
    """Such threads, as seen in steps without the profiler. Raises Missing if that was not recorded."""
    found = manifest(facts).python_threads
    if found is None:
        raise Missing("how much Python's other threads compute", _HOW)
    return Rivals(tuple(one.name for one in found), sum(one.cpu_share for one in found))


UNRECORDED_SHARE = 0.1
"""Of the time, from which on long steps that were not recorded are said, and left out of the mean (our choice)."""


@dataclass(frozen=True)
class Unrecorded:
    """Steps without the profiler that took LONG times as long as the median one, if none of the used steps did."""

    timed: int
    """All steps without the profiler."""
    long: int
    ratio: float
    """How many times as long as the median step they are, the median; 0 without any."""
    share: float
    """Of the time of all steps without the profiler."""
    every: int | None
    """Steps from one to the next, the median; None with fewer than two."""


@fact
def unrecorded(facts: Facts) -> Unrecorded:
    """Raises Missing if no steps were timed without the profiler, and if the trace marks no steps."""
    alone = manifest(facts).unprofiled
    times = () if alone is None else alone.device_ns or alone.wall_ns
    if not times or min(times) <= 0 or steps(facts).measure is Measure.WINDOW:
        raise Missing("step times without the profiler", _HOW)
    used, usual = steps(facts).times_ns, statistics.median(times)
    seen = bool((used > LONG * np.median(used)).any())
    long = [] if seen else [at for at, ns in enumerate(times) if ns > LONG * usual]
    return Unrecorded(
        timed=len(times),
        long=len(long),
        ratio=statistics.median(times[at] for at in long) / usual if long else 0.0,
        share=sum(times[at] for at in long) / sum(times),
        every=round(statistics.median(b - a for a, b in itertools.pairwise(long))) if len(long) > 1 else None,
    )


@dataclass(frozen=True)
class Slowdown:
    """What recording costs, by the training process's own clock or by events on the device."""

    unprofiled_ns: int
    """Mean time of a step without the profiler: what comes now and then counts, but not steps of a kind that was not
    recorded."""
    ratio: float | None
    """Median time of a step of the timing recording over that, by one clock; None if it was not timed."""


@fact
def slowdown(facts: Facts) -> Slowdown:
    """How much longer recorded steps take. Raises Missing if no steps were timed without the profiler.

    And if the trace marks no steps: then there is nothing to compare.
    """
    alone, recorded, cycle = manifest(facts).unprofiled, manifest(facts).timing, manifest(facts).cycle
    counted = () if alone is None else [_usual(facts, _whole(one, cycle)) for one in (alone.device_ns, alone.wall_ns)]
    unprofiled = next((mean for one in counted if (mean := _mean(one))), None)
    if alone is None or unprofiled is None or steps(facts).measure is Measure.WINDOW:
        raise Missing("step times without the profiler", _HOW)
    ratio = None
    if recorded is not None:
        on_device = _on_device(recorded), _on_device(alone)
        slow, plain = on_device if all(on_device) else (_median(recorded.wall_ns), _median(alone.wall_ns))
        ratio = slow / plain if slow and plain else None
    return Slowdown(unprofiled, ratio)


def _whole(times_ns: tuple[int, ...] | None, cycle: int) -> tuple[int, ...] | None:
    """The last whole cycles, so that long steps weigh what they weigh; all times if there is none."""
    most = len(times_ns or ()) // max(cycle, 1) * max(cycle, 1)
    return times_ns[-most:] if times_ns and most else times_ns


def _usual(facts: Facts, times_ns: tuple[int, ...] | None) -> tuple[int, ...]:
    """All of them, or if others take much of the time those of a kind that was recorded."""
    other = optional(unrecorded, facts)
    if not times_ns or other is None or other.share < UNRECORDED_SHARE:
        return times_ns or ()
    most = LONG * statistics.median(times_ns)
    return tuple(ns for ns in times_ns if ns <= most)


def _on_device(timed: Timed) -> int | None:
    return _median(timed.device_ns or ())


def _mean(times_ns: tuple[int, ...]) -> int | None:
    """None without times, or if they are no times."""
    return round(statistics.fmean(times_ns)) if times_ns and min(times_ns) > 0 else None


def _median(times_ns: tuple[int, ...]) -> int | None:
    """None without times, or if they are no times."""
    return round(statistics.median(times_ns)) if times_ns and min(times_ns) > 0 else None


def trains_on_cpu(facts: Facts) -> bool:
    """Whether the steps are known to use no device: `diagnose profile` timed them on the host alone.

    Devices other than GPUs of NVIDIA and AMD are neither timed nor recorded: then it is not known.
    """
    known = None if facts.rank.context is None else facts.rank.context.rank
    if known is None or known.unprofiled is None or known.unprofiled.device_ns is not None:
        return False
    on_host = all(device in ("cpu", "meta") for one in known.optimizers for device in one.devices)
    return on_host and not len(device_work(facts).ids)


@dataclass(frozen=True)
class Loading:
    """What it takes to make batches as fast as the training uses them."""

    loader: Loader
    """The one that is asked most often."""
    step_ns: int
    """A step that waits for no batch; without the profiler where that was timed."""
    fetch_ns: int
    """Median time to make a batch, on one worker or in process."""
    workers: int
    """The smallest number that makes batches while the training computes, if there are cores for them."""
    cores: int
    """How many they would keep busy."""
    cpus: int | None
    """Cores that there are for each process of the run on this machine; None if that is not known."""
    threads: int | None
    """That CPU ops run on; None if that is not known."""

    @property
    def hideable(self) -> bool:
        """Whether there are cores enough."""
        return self.cpus is None or self.cores <= self.cpus

    @property
    def waiting_share(self) -> float:
        """Of the time to make a batch what waits, for storage or a network: no core is busy meanwhile.

        The rest is computed, as far as is known: on several cores in less than its CPU time.
        """
        cpu_ns = self.loader.fetch_cpu_ns
        return 0.0 if cpu_ns is None else max(self.fetch_ns - cpu_ns, 0) / self.fetch_ns

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
    def sampling_share(self) -> float | None:
        """Of the time until a batch is there what the sampler takes, to say which items come next; None if unknown.

        Without workers all else is making it, if nothing is pinned.
        """
        one = self.loader
        if one.num_workers or one.pin_memory or not one.wait_ns or not one.fetch_ns:
            return None
        return max(one.wait_ns - one.fetch_ns, 0) / one.wait_ns

    @property
    def best(self) -> int:
        """The number of workers that there are cores for, at most `workers`."""
        return self.workers if self.cpus is None else max(min(self.workers, self.workers * self.cpus // self.cores), 1)

    @property
    def most_in(self) -> str:
        """What takes most of making a batch: "items", "collate", or "" if that is not known."""
        items, collate = self.loader.items_ns, self.loader.collate_ns
        if items is None or collate is None:
            return ""
        return "collate" if collate > items else "items"


@fact
def loading(facts: Facts) -> Loading:
    """How many workers would hide loading. Raises Missing like input_wait, and if fetches were not timed."""
    wait, used, context = input_wait(facts), steps(facts), _context(facts)
    timed = [one for one in context.rank.loaders if one.fetch_ns is not None and one.fetch_ns > 0]
    if not timed:
        raise Missing("what it takes to make a batch", _HOW)
    fitting = [one for one in timed if wait.in_process in (None, one.num_workers == 0)]
    loader = most_asked(fitting or timed)
    assert loader is not None
    fetch_ns = loader.fetch_ns or 0
    step_ns = max(round(_step_ns(facts) * (1 - _waited_share(wait, used.mean_ns))), 1)
    batches = wait.fetches / used.count
    cpus = context.host.cpus_allowed
    return Loading(
        loader=loader,
        step_ns=step_ns,
        fetch_ns=fetch_ns,
        workers=max(ceil(fetch_ns * batches / step_ns), 1),
        cores=max(ceil((loader.fetch_cpu_ns or fetch_ns) * batches / step_ns), 1),
        threads=context.rank.flags.threads,
        cpus=None if not cpus or cpus < 1 else max(cpus // max(context.ranks, 1), 1),
    )


def _step_ns(facts: Facts) -> int:
    known = optional(slowdown, facts)
    return steps(facts).mean_ns if known is None else known.unprofiled_ns


def _waited_share(wait: Input, step_ns: int) -> float:
    waited = wait.waited_ns
    return min(waited / max(step_ns, 1), 1.0)
