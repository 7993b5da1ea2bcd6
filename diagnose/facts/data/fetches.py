"""When did the training fetch its batches, how long did each take, and do the waits have a period?"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.spans import NO_SPANS, HostSpans, host_spans, in_used_steps, on_training_threads
from diagnose.facts.core.steps import Steps, steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

MOST_READY_NS = 500_000  # Taken for the cost of a ready batch where none was seen to be ready (0.3 to 1 ms measured).
LONGEST_READY_NS = 1_000_000  # A fetch from workers that took longer waited for its batch.
READY_QUANTILE = 0.1  # A batch that was ready costs the quick fetches' time: p10 of their durations.
SLOW = 5.0  # A fetch of this many times the usual duration is slow (our choice).

RESTART = 10.0
"""A fetch of this many times the median, and of RESTART_NS, waits for new workers (our choice). It must be
that far from nine in ten of the others: workers that cannot keep up make every few fetches wait for 0.1 to 0.7 s."""

RESTART_NS = 500_000_000  # See RESTART.

REPEATS = 0.7
"""Correlation with the fetches W later from which W is their period: of 2000 sequences of random durations 3 % at most
reach it. Measured: 0.73 to 0.89 with 4 workers that could not keep up (public trace param/resnet)."""

LONGEST_PERIOD = 128  # More workers than that were never seen; bounds the time.
MIN_FETCHES = 10  # Of fewer no pattern is told: three periods of 3 workers. Chosen.

_NEW_ITERATOR = re.compile(
    r"\b(DataLoader\.__iter__|_(Single|Multi)Process(ing)?DataLoaderIter\.__init__)\Z"
    r"|(^|/)torch/utils/data/dataloader\.py\(\d+\): (_get_iterator|_reset)\Z"
)
"""What marks the start of an epoch: annotations by qualified name, frames by file and function (they name no class)."""

_SEED = ("aten::random_", "aten::item")  # Every new iterator draws a seed for its workers, though it may have none.

_NEW_WORKERS = re.compile(
    r"\b_MultiProcessingDataLoaderIter\.__init__\Z|(^|/)torch/utils/data/dataloader\.py\(\d+\): _get_iterator\Z"
)
"""What makes a new iterator, and with it new workers. With persistent workers only `_reset` is called again."""


_END_OF_WORKERS = re.compile(
    r"\b_MultiProcessingDataLoaderIter\._shutdown_workers\Z"
    r"|(^|/)torch/utils/data/dataloader\.py\(\d+\): _shutdown_workers\Z"
)
"""What ends them: within the request that finds the epoch over, or when the iterator is dropped."""


class Fetches(Struct, frozen=True):
    """Fetches of batches on the training threads, in order of start. Arrays of shape (fetches,)."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    in_steps: npt.NDArray[np.bool_]  # The host was in a used step when it began.
    first: npt.NDArray[np.bool_]  # The first of an iterator, as far as that was recorded.
    last: npt.NDArray[np.bool_]  # It found the epoch over and ended the workers, as far as that was recorded.
    idle_ns: IntArray | None  # Idle time of the device within each, within the used steps; None without device work.
    in_process: bool | None  # Whether batches are made in the training process (num_workers=0); None if unknown.
    ready_ns: int
    """What a fetch takes when its batch is ready: READY_QUANTILE of all durations; with workers MOST_READY_NS if these
    are no time for that. In process: of making a batch."""
    every: int | None  # The period of slow ones, in fetches of the used steps: each of so many workers is too slow.
    restarts: int  # How often new workers were started in this recording.
    restart_ids: IntArray  # Fetches, frames and annotations that start new workers, and what ends the earlier ones.

    @property
    def dur_ns(self) -> IntArray:
        """Durations. Shape (fetches,)."""
        return self.end_ns - self.start_ns

    @property
    def first_share(self) -> float:
        """Share of the fetches in used steps that are the first of an iterator; 0 without any."""
        return float(self.first[self.in_steps].mean()) if self.in_steps.any() else 0.0

    @property
    def first_ns(self) -> float | None:
        """Mean duration of first fetches; None without any."""
        return float(np.mean(self.dur_ns[self.first])) if self.first.any() else None

    @property
    def between(self) -> IntArray:
        """Ids of those that neither begin nor end an epoch."""
        return self.ids[~(self.first | self.last)]

    def late_ns(self, wait: Input, steps: Steps) -> int:
        """ns per step that the training waits for batches, but for the first and last fetches of epochs."""
        waiting = self.dur_ns if self.idle_ns is None else self.idle_ns
        at_ends_ns = int(waiting[self.in_steps & (self.first | self.last)].sum())
        return max(wait.waited_ns - round_half_up(at_ends_ns, steps.count), 0)


@fact
def fetches(facts: Facts) -> Fetches:
    """Every fetch of the recording. Raises Missing if none was recorded on a training thread."""
    found = on_training_threads(facts, host_spans(facts, SpanKind.LOADER)).outermost()
    names = facts.rank.spans["name"]
    if not len(found.ids):
        raise Missing("DataLoader fetches", "Iterate a torch.utils.data.DataLoader inside the profiled region.")
    dur, in_steps = found.end_ns - found.start_ns, in_used_steps(facts, found.ids)
    first, ends = _first_of_iterators(facts, found), _python_or_annotations(facts, _END_OF_WORKERS)
    last = intervals.covered(Intervals(found.start_ns, found.end_ns), ends.times) > 0
    time = optional(device_time, facts)
    in_process = made_in_process({str(name) for name in names.iloc[found.ids].unique()})
    long, starts = _wait_for_workers(dur), NO_SPANS if in_process else _python_or_annotations(facts, _NEW_WORKERS)
    return Fetches(
        ids=found.ids,
        start_ns=found.start_ns,
        end_ns=found.end_ns,
        in_steps=in_steps,
        first=first,
        last=last,
        idle_ns=None if time is None else intervals.covered(Intervals(found.start_ns, found.end_ns), time.idle),
        in_process=in_process,
        ready_ns=_ready_ns(dur if (first | last).all() else dur[~(first | last)], in_process),
        every=_every(dur[in_steps & ~first & ~last]),
        restarts=len(starts.ids) or int(long.sum()),
        restart_ids=np.unique(np.concatenate((found.ids[long], starts.ids, ends.ids))),
    )


def _python_or_annotations(facts: Facts, named: re.Pattern[str]) -> HostSpans:
    found = host_spans(facts, SpanKind.PYTHON, SpanKind.ANNOTATION, named=lambda name: bool(named.search(name)))
    return found.outermost()


def _first_of_iterators(facts: Facts, found: HostSpans) -> npt.NDArray[np.bool_]:
    """Which fetches are the first on their thread since an iterator was made, or follow the ops that make one."""
    made = _python_or_annotations(facts, _NEW_ITERATOR)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    names = facts.rank.spans["name"].iloc[ops.ids].to_numpy()
    first = np.zeros(len(found.ids), dtype=bool)
    for thread in np.unique(found.track):
        mine = np.flatnonzero(found.track == thread)
        following = np.searchsorted(found.start_ns[mine], made.start_ns[made.track == thread])
        first[mine[following[following < len(mine)]]] = True
        on_thread = np.concatenate(([""] * len(_SEED), names[ops.track == thread]))
        before = np.searchsorted(ops.start_ns[ops.track == thread], found.start_ns[mine])
        first[mine] |= np.logical_and.reduce([on_thread[before + k] == name for k, name in enumerate(_SEED)])
    return first


def _wait_for_workers(dur: IntArray) -> npt.NDArray[np.bool_]:
    """Which fetches are so far longer than the others that they wait for new workers."""
    long = (dur >= RESTART * np.quantile(dur, 0.5, method="lower")) & (dur >= RESTART_NS)
    if long.any() and not long.all():
        long &= dur >= RESTART * np.quantile(dur[~long], 1 - READY_QUANTILE)
    return long


def _every(dur_ns: IntArray) -> int | None:
    """The period of these fetches' durations; None if there is none, or not two of them are slow."""
    if len(dur_ns) < MIN_FETCHES:
        return None
    slow = dur_ns >= SLOW * max(float(np.quantile(dur_ns, READY_QUANTILE)), 1.0)
    return _period(np.log(np.maximum(dur_ns, 1))) if slow.sum() > 1 else None


def _period(values: npt.NDArray[np.float64]) -> int | None:
    """The least lag of 2 or more at which values correlate by REPEATS, if they hold it three times; None without."""
    lags = range(2, min(len(values) // 3, LONGEST_PERIOD) + 1)
    alike = np.array([_correlation(values[:-lag], values[lag:]) for lag in lags])
    fits = np.flatnonzero(alike >= REPEATS)
    return lags[int(fits[0])] if len(fits) else None


def _ready_ns(dur_ns: IntArray, in_process: bool | None) -> int:
    """As `Fetches.ready_ns`."""
    usual = int(np.quantile(dur_ns, READY_QUANTILE))
    return MOST_READY_NS if in_process is False and usual > LONGEST_READY_NS else usual


def _correlation(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def made_in_process(names: Iterable[str]) -> bool | None:
    """Whether loaders of these names make their batches in this process; None if that cannot be told."""
    kinds_of = {kind for name in names for kind in ("SingleProcess", "MultiProcessing") if kind in name}
    single, several = "SingleProcess" in kinds_of, "MultiProcessing" in kinds_of
    return single if single != several else None


class Input(Struct, frozen=True):
    """Fetching batches, in the used steps."""

    fetches: int  # In all used steps.
    in_process: bool | None  # Whether batches are made in the training process (num_workers=0); None if unknown.
    host_ns: int  # In fetches, per step. With workers: waiting and unpacking; in process: making the batch.
    exposed_ns: int | None  # Of it, while the device was idle, per step; None without device work.

    @property
    def waited_ns(self) -> int:
        """What the training waits, per step: the device where there is one."""
        return self.host_ns if self.exposed_ns is None else self.exposed_ns


@fact
def input_wait(facts: Facts) -> Input:
    """The loader's part in a step. Raises Missing if no loader fetch was recorded."""
    found, used, time = fetches(facts), steps(facts), optional(device_time, facts)
    pieces = intervals.union(Intervals(found.start_ns, found.end_ns))
    waited = intervals.clip(pieces, used.start_ns, used.end_ns)
    return Input(
        fetches=int(((found.start_ns >= used.start_ns) & (found.start_ns < used.end_ns)).sum()),
        in_process=found.in_process,
        host_ns=round_half_up(waited.total, used.count),
        exposed_ns=None if time is None else round_half_up(intervals.intersect(waited, time.idle).total, used.count),
    )
