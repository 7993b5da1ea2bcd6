"""Can the measurement be trusted? Warm-up in it, what the profiler costs, how steps differ, and in what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from diagnose.facts.base import Facts, fact, optional
from diagnose.facts.breakdown import round_half_up
from diagnose.facts.dispatch import NO_SPANS, HostSpans, host_spans, members, used_step
from diagnose.facts.host import api_calls
from diagnose.facts.launches import launch_table
from diagnose.facts.steps import steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity, ApiKind, Site

WARM_UP = 1.3
"""A step this many times as long as the median of the later ones may be warm-up (rule catalogue MQ01)."""

LATER = 50
"""Steps, at most, that a step is compared with. Chosen: enough for a median."""

MOST_ALLOCATIONS = 4
"""More calls of the driver's allocator than this, and than twice those of the later steps, are a burst. Chosen."""

USUAL_LAUNCH_NS = (3_000, 6_000)
"""Median host time of a kernel launch: 3 us on H800, 5.5 us on H100 (gpu-knowledge 5.3)."""

SLOWING = ("memory", "shapes", "stacks", "sync_events")
"""Options of the recorder that cost time on the host."""

DEEP_QUEUE = 900
"""With so many launches outstanding the next one waits for room: about 1023 fit a stream's queue (replay 0.2)."""


class Sign(str, Enum):
    """What a step does that steady ones do not."""

    ALLOCATION = "allocation"
    """A burst of calls of the driver's allocator."""
    MODULE_LOADING = "module_loading"
    """The driver loads or compiles kernels."""
    COMPILE = "compile"
    """torch.compile compiles."""
    COMMUNICATOR = "communicator"
    """NCCL or RCCL sets up a communicator."""
    MORE_KERNELS = "more_kernels"
    """WARM_UP times as many kernels as later: trying algorithms, for instance."""


@dataclass(frozen=True)
class StepCondition:
    """A used step."""

    number: int
    ns: int
    slowdown: float | None
    """Times the median of the later used steps; None for the last."""
    signs: frozenset[Sign]


@dataclass(frozen=True)
class WarmUp:
    """How far warm-up reaches into the used steps."""

    steps: tuple[StepCondition, ...]
    warm_up: tuple[int, ...]
    """Numbers of the first used steps, as long as each is slow and shows a sign."""
    clean: tuple[int, ...]
    """Numbers of the others."""


@fact
def warm_up(facts: Facts) -> WarmUp:
    """Which used steps are warm-up. With one step nothing is compared, but its signs are told."""
    used, signs = steps(facts), _signs(facts)
    times = used.times_ns
    slowdown = [*(times / np.maximum(_later(times), 1))[:-1].tolist(), None]
    conditions = tuple(
        StepCondition(number, int(ns), ratio, frozenset(sign for sign, there in signs.items() if there[k]))
        for k, (number, ns, ratio) in enumerate(zip(used.numbers, times, slowdown, strict=True))
    )
    cold = next(k for k, one in enumerate(conditions) if not one.signs or (one.slowdown or 0.0) <= WARM_UP)
    return WarmUp(conditions, used.numbers[:cold], used.numbers[cold:])


def _signs(facts: Facts) -> dict[Sign, npt.NDArray[np.bool_]]:
    """For each sign whether each used step shows it."""
    host = (SpanKind.OP, SpanKind.ANNOTATION, SpanKind.COLLECTIVE)
    calls = (SpanKind.RUNTIME, SpanKind.DRIVER)
    compiled = host_spans(facts, *host, named=lambda name: kinds.activity(name) is Activity.COMPILE)
    allocated = _per_step(facts, host_spans(facts, *calls, named=_allocates))
    kernels = _per_step(facts, host_spans(facts, SpanKind.KERNEL))
    return {
        Sign.ALLOCATION: allocated > np.maximum(2 * _later(allocated), MOST_ALLOCATIONS),
        Sign.MODULE_LOADING: _per_step(facts, host_spans(facts, *calls, SpanKind.OVERHEAD, named=_loads)) > 0,
        Sign.COMPILE: _per_step(facts, compiled) > 0,
        Sign.COMMUNICATOR: _per_step(facts, host_spans(facts, *host, named=_sets_up)) > 0,
        Sign.MORE_KERNELS: (kernels > WARM_UP * _later(kernels)) & (_later(kernels) > 0),
    }


def _allocates(name: str) -> bool:
    return kinds.api_kind(name) in (ApiKind.MALLOC, ApiKind.HOST_MALLOC)


def _loads(name: str) -> bool:
    """CUPTI's overheads (kineto cupti_strings.cpp) and the calls of the runtime and driver that load modules."""
    loading = ("Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler")
    return name in loading or name.startswith(("cuModuleLoad", "cuLibraryLoad", "cudaLibraryLoad", "hipModuleLoad"))


def _sets_up(name: str) -> bool:
    return name.startswith(("ncclCommInit", "ncclCommSplit", "rcclCommInit"))


def _per_step(facts: Facts, spans: HostSpans) -> IntArray:
    """How many of the spans belong to each used step. Shape (used,)."""
    step = used_step(facts, spans.ids)
    return np.bincount(step[step >= 0], minlength=steps(facts).count)


def _later(values: IntArray) -> npt.NDArray[np.float64]:
    """Median of the values of the steps after each; of the last its own, of an only one 0."""
    after = [float(np.median(values[k + 1 : k + 1 + LATER])) for k in range(len(values) - 1)]
    return np.array([*after, float(values[-1]) if after else 0.0])


@dataclass(frozen=True)
class Overhead:
    """Work of the recorder or the driver that the program did not ask for, as CUPTI names it."""

    name: str
    total: int
    """How often, in all used steps."""
    ns: int
    """Per step."""


@dataclass(frozen=True)
class Distortion:
    """What recording itself did to the times on the host; times of kernels stay valid."""

    overhead_ns: int
    """Time with an overhead at least, per step."""
    overhead_share: float
    """Of the step."""
    overheads: tuple[Overhead, ...]
    """Longest first; none where the recorder notes none (ROCm, and CUDA before 2024)."""
    options: tuple[str, ...]
    """Which of SLOWING were on, as far as they left something in the recording."""
    launch_ns: int | None
    """Median host time of kernel launches that found room in the queue; None if none was recorded."""


@fact
def distortion(facts: Facts) -> Distortion:
    """What recording cost in the used steps. Raises Missing like steps."""
    used, names = steps(facts), facts.rank.spans["name"]
    inside = host_spans(facts, SpanKind.OVERHEAD).in_steps(facts)
    codes, label = np.unique(names.cat.codes.to_numpy()[inside.ids], return_inverse=True)
    dur = inside.end_ns - inside.start_ns
    overheads = [
        Overhead(str(names.cat.categories[code]), len(same), round_half_up(int(dur[same].sum()), used.count))
        for code, same in zip(codes, members(label, len(codes)), strict=True)
    ]
    overhead_ns = inside.times.total
    return Distortion(
        overhead_ns=round_half_up(overhead_ns, used.count),
        overhead_share=overhead_ns / max(used.window_ns, 1),
        overheads=tuple(sorted(overheads, key=lambda one: (-one.ns, one.name))),
        options=tuple(option for option in SLOWING if option in facts.rank.provenance.recorded),
        launch_ns=_launch_ns(facts),
    )


def _launch_ns(facts: Facts) -> int | None:
    table, calls = optional(launch_table, facts), optional(api_calls, facts)
    if table is None or calls is None:
        return None
    launching = np.isin(table.call, calls.ids[calls.of(ApiKind.KERNEL_LAUNCH)]) & (table.depth < DEEP_QUEUE)
    dur = facts.rank.spans["dur_ns"].to_numpy()[np.unique(table.call[launching])]
    return int(np.median(dur)) if len(dur) else None


@dataclass(frozen=True)
class Steadiness:
    """How much the used steps can be trusted to stand for the run."""

    count: int
    mean_ns: int
    variation: float | None
    """Standard deviation of their times over the mean; None for one step."""


@fact
def steadiness(facts: Facts) -> Steadiness:
    """How many steps were measured and how equal they are. Raises Missing like steps."""
    used = steps(facts)
    mean = float(used.times_ns.mean())
    spread = float(used.times_ns.std(ddof=1)) / max(mean, 1.0) if used.count > 1 else None
    return Steadiness(used.count, round_half_up(used.window_ns, used.count), spread)


class Filling(str, Enum):
    """What kind of thing fills the time that a step takes more than others."""

    ACTIVITY = "activity"
    """What the training threads do, as in `HostActivity`."""
    ANNOTATION = "annotation"
    OP = "op"
    LINE = "line"
    """Of the user's code, while the device was idle."""


@dataclass(frozen=True)
class Filler:
    """What most fills the time that a step takes more than others, of its kind."""

    filling: Filling
    name: str
    """"" of a LINE."""
    site: Site | None
    """Of a LINE."""
    ns: int
    """How much more of it there is than in the median step that is no spike."""
    ids: IntArray
    """Its spans in the step, of an ANNOTATION or OP."""


@dataclass(frozen=True)
class StepTable:
    """Things of one kind that could make steps longer than others."""

    filling: Filling
    names: list[str]
    sites: list[Site | None]
    spans: HostSpans
    label: IntArray
    """Position in `names` of each span, or -1. Shape (spans,)."""
    excess_ns: npt.NDArray[np.float64]
    """Time in each used step beyond that in the median step that is no spike. Shape (names, used)."""

    def top(self, step: int, bounds_ns: IntArray) -> Filler | None:
        """What a step, by position, has most more of."""
        if not self.names:
            return None
        most = int(self.excess_ns[:, step].argmax())
        inside = (self.spans.start_ns < bounds_ns[step + 1]) & (self.spans.end_ns > bounds_ns[step])
        ids = self.spans.ids[inside & (self.label == most)]
        return Filler(self.filling, self.names[most], self.sites[most], int(self.excess_ns[most, step]), ids)


def step_table(
    facts: Facts,
    spike: npt.NDArray[np.bool_],
    filling: Filling,
    names: list[str],
    label: IntArray,
    times: Intervals,
    *,
    spans: HostSpans = NO_SPANS,
    sites: list[Site | None] | None = None,
    least_ns: int = 1,
) -> StepTable:
    """The table of intervals with labels, of the labels that fill `least_ns` of the used steps that are spikes."""
    bounds = steps(facts).bounds_ns
    within = intervals.covered(times, intervals.union(Intervals(bounds[:-1][spike], bounds[1:][spike])))
    kept = np.flatnonzero(np.bincount(label, weights=within, minlength=len(names)) >= max(least_ns, 1))
    position = np.full(len(names), -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    at = position[label]
    chosen = Intervals(times.starts[at >= 0], times.ends[at >= 0])
    ns = time_by_step(facts, chosen, at[at >= 0], len(kept))
    usual = np.median(ns[:, ~spike], axis=1, keepdims=True)
    of = sites or [None] * len(names)
    labels, places = [names[k] for k in kept], [of[k] for k in kept]
    return StepTable(filling, labels, places, spans, at if len(spans.ids) else position[:0], ns - usual)


def time_by_step(facts: Facts, times: Intervals, label: IntArray, labels: int) -> IntArray:
    """Time in intervals by label (0 to labels - 1) and used step. Shape (labels, used).

    Linear in the intervals and in how often they cross the bounds of steps.
    """
    bounds = steps(facts).bounds_ns
    first = np.clip(np.searchsorted(bounds, times.starts, side="right") - 1, 0, len(bounds) - 2)
    last = np.clip(np.searchsorted(bounds, times.ends, side="left") - 1, 0, len(bounds) - 2)
    pieces = np.maximum(last - first + 1, 0)
    of = np.repeat(np.arange(times.size), pieces)
    step = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    within = np.minimum(times.ends[of], bounds[step + 1]) - np.maximum(times.starts[of], bounds[step])
    found = np.zeros((labels, len(bounds) - 1), dtype=np.int64)
    np.add.at(found, (label[of], step), np.maximum(within, 0))
    return found
