"""Can the measurement be trusted? Warm-up in it, what was not recorded, what it costs, and how steps differ."""

from collections.abc import Iterator
from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact, once, optional
from diagnose.facts.core.breakdown import LAUNCHING, TimeCause, breakdown, device_time, launch_table, round_half_up
from diagnose.facts.core.device import device_work, host_recorded
from diagnose.facts.core.host import api_calls, host_activities, host_threads
from diagnose.facts.core.idle import idle
from diagnose.facts.core.run import manifest
from diagnose.facts.core.spans import HostSpans, host_spans, members, on_training_threads, used_step
from diagnose.facts.core.steps import ALIKE, LONG, Measure, steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, ApiKind
from diagnose.trace.measured import EVENT_NS
from diagnose.trace.model import Ground, IntegrityNote, Severity
from diagnose.trace.units import duration, percent

WARM_UP = 1.3  # A step this many times as long as the median of the later ones may be warm-up (our choice).
LATER = 50  # Steps, at most, that a step is compared with. Chosen: enough for a median.

MOST_ALLOCATIONS = 4  # More allocating calls than this, and than twice those of later steps, are a burst. Chosen.

SLOWING = ("memory", "shapes", "stacks", "sync_events")  # Options of the recorder that cost time on the host.

SPAN_NS = 350
"""Host time to record an op, annotation or call: 0.33 to 0.39 us on a fast CPU without a device (torch 2.13, three
models of 460 to 5,300 spans a step, whose steps took 1.4 to 1.6 times as long as without the profiler)."""

SHAPES_NS = 220  # More for an op with its shapes (measured with SPAN_NS: 0.21 to 0.25 us).
FRAME_NS = 300  # Host time to record a Python frame (measured with SPAN_NS: 0.27 to 0.33 us).

EVENTS_NS = (round(EVENT_NS / 2), round(EVENT_NS), round(1.5 * EVENT_NS))
"""Host time to record an op, annotation or call beside a GPU: 1.4 to 2.8 us in four trainings on an H100 whose clock is
slow to read, timed without the profiler as well; about 3.4 us at most in pairs recorded there."""

VIEWS = ("aten::view", "aten::as_strided")  # Ops that only say how memory is read.
ENOUGH_VIEWS = 20  # That a median of them says something (our choice).
DEEP_QUEUE = 900  # With so many launches outstanding the next one waits for room: about 1023 fit a stream's queue.


class Sign(str, Enum):
    """What a step does that steady ones do not."""

    ALLOCATION = "allocation"  # A burst of calls of the driver's allocator.
    MODULE_LOADING = "module_loading"  # The driver loads or compiles kernels.
    COMPILE = "compile"  # torch.compile compiles.
    COMMUNICATOR = "communicator"  # NCCL or RCCL sets up a communicator.
    MORE_KERNELS = "more_kernels"  # WARM_UP times as many kernels as later: trying algorithms, for instance.


class StepCondition(Struct, frozen=True):
    """A used step."""

    number: int
    ns: int
    slowdown: float | None  # Times the median of the later used steps; None for the last.
    signs: frozenset[Sign]


class WarmUp(Struct, frozen=True):
    """How far warm-up reaches into the used steps."""

    steps: tuple[StepCondition, ...]
    warm_up: tuple[int, ...]  # Numbers of the first used steps, as long as each is slow and shows a sign.


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
    return WarmUp(conditions, used.numbers[:cold])


def _signs(facts: Facts) -> dict[Sign, npt.NDArray[np.bool_]]:
    """For each sign of warm-up, which of the used steps show it."""
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
    """Whether a name is of loading kernels: an overhead of CUPTI's (kineto cupti_strings.cpp) or a call that loads."""
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


class Overhead(Struct, frozen=True):
    """Work of the recorder or the driver that the program did not ask for, as CUPTI names it."""

    name: str
    total: int  # How often, in all used steps.
    ns: int  # Per step.


class Distortion(Struct, frozen=True):
    """What recording itself did to the times on the host; times of kernels stay valid."""

    overhead_share: float  # Of the step: time with an overhead at least.
    overheads: tuple[Overhead, ...]  # Longest first; none where the recorder notes none (ROCm, and CUDA before 2024).
    options: tuple[str, ...]  # Which of SLOWING were on, as far as they left something in the recording.
    recording_ns: int
    """Host time that it takes at least to record what the training threads did, by SPAN_NS, SHAPES_NS and FRAME_NS, per
    step; no part of the overheads."""
    recording_share: float  # Of the step.
    events: int  # Ops, annotations and calls that were recorded of the training threads, per step.
    launching_idle_ns: int | None  # Of the device, for LAUNCHING or the optimizer, per step; None without device work.
    launch_ns: int | None  # Median host time of kernel launches that found room in the queue; None without any.
    view_ns: int | None  # Median host time of VIEWS in the used steps; None with fewer than ENOUGH_VIEWS.


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
    overhead_ns, others = inside.times.total, _recorded(facts, *_OTHERS)
    ops = _recorded(facts, *_OPS) if facts.rank.provenance.timed_by is None else 0
    shapes = SHAPES_NS * ops if "shapes" in facts.rank.provenance.recorded else 0
    recording_ns = SPAN_NS * (ops + others) + shapes + FRAME_NS * _recorded(facts, SpanKind.PYTHON)
    return Distortion(
        overhead_share=overhead_ns / max(used.window_ns, 1),
        overheads=tuple(sorted(overheads, key=lambda overhead: (-overhead.ns, overhead.name))),
        options=tuple(option for option in SLOWING if option in facts.rank.provenance.recorded),
        recording_ns=round_half_up(recording_ns, used.count),
        recording_share=recording_ns / max(used.window_ns, 1),
        events=round_half_up(ops + others, used.count),
        launching_idle_ns=_launching_idle_ns(facts),
        launch_ns=_launch_ns(facts),
        view_ns=_view_ns(facts),
    )


_OPS = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.LOADER)
_OTHERS = (SpanKind.ANNOTATION, SpanKind.RUNTIME, SpanKind.DRIVER)


def _recorded(facts: Facts, *span_kinds: SpanKind) -> int:
    """How many spans of these kinds training threads have in the used steps; 0 without anything of the host."""
    if optional(host_threads, facts) is None:
        return 0
    return len(on_training_threads(facts, host_spans(facts, *span_kinds)).in_steps(facts).ids)


def _launching_idle_ns(facts: Facts) -> int | None:
    found, causes = optional(idle, facts), (*LAUNCHING, TimeCause.OPTIMIZER)
    return None if found is None else sum(one.ns for one in found if one.cause in causes)


def _view_ns(facts: Facts) -> int | None:
    """Median host time of an op of VIEWS in the used steps, ns; None with fewer than ENOUGH_VIEWS."""
    views = host_spans(facts, SpanKind.OP, named=lambda name: name in VIEWS)
    lasted = (views.end_ns - views.start_ns)[used_step(facts, views.ids) >= 0]
    return int(np.median(lasted)) if len(lasted) >= ENOUGH_VIEWS else None


def _launch_ns(facts: Facts) -> int | None:
    """Median ns of a kernel launch call while the queue is short; None if no such call was recorded."""
    table, calls = optional(launch_table, facts), optional(api_calls, facts)
    if table is None or calls is None:
        return None
    launching = np.isin(table.call, calls.ids[calls.of(ApiKind.KERNEL_LAUNCH)]) & (table.depth < DEEP_QUEUE)
    dur = facts.rank.spans["dur_ns"].to_numpy()[np.unique(table.call[launching])]
    return int(np.median(dur)) if len(dur) else None


class Steadiness(Struct, frozen=True):
    """How much the used steps can be trusted to stand for the run."""

    count: int
    mean_ns: int
    variation: float | None
    """Standard deviation of their times over the mean; None for one step. In whole cycles of steps, of which one is
    long, each time is compared with those of its kind: long steps are no accident there."""
    quicker_ns: int | None
    """Host time of a first recorded step that took less than a third of the used ones for as much device work, which
    took less than half of these; None if there is none."""


@fact
def steadiness(facts: Facts) -> Steadiness:
    """How many steps were measured and how equal they are. Raises Missing like steps."""
    used = steps(facts)
    times, mean = used.times_ns, float(used.times_ns.mean())
    known = optional(manifest, facts)
    in_cycles = known is not None and known.cycle > 1 and used.count % known.cycle == 0
    long = (times > LONG * np.median(times)) & in_cycles
    groups = [times[one] for one in (long, ~long) if one.any()]
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    spread = (squares / (used.count - 1)) ** 0.5 / max(mean, 1.0) if used.count > 1 else None
    return Steadiness(used.count, round_half_up(used.window_ns, used.count), spread, _quicker_ns(facts))


def _quicker_ns(facts: Facts) -> int | None:
    """Host time of the first step, if the used ones took over three times as long for as much device work, while the
    device was mostly idle: what grew is not the training."""
    used, marks, time = steps(facts), facts.rank.steps, optional(breakdown, facts)
    if time is None or not marks or marks[0].number not in used.dropped or used.measure is not Measure.DEVICE:
        return None
    first_ns, usual_ns = marks[0].end_ns - marks[0].start_ns, float(np.median(used.times_ns))
    step = device_work(facts).step
    first, others = int((step == 0).sum()), (step > 0).sum() / max(len(marks) - 1, 1)
    alike = abs(first - others) <= ALIKE * others
    quicker = LONG * first_ns < usual_ns and time.busy_ns < usual_ns / 2
    return first_ns if alike and quicker else None


WORTH_SHARE = 0.01  # Of the used steps: the last kernels always end a little after the host's last call (our choice).


ONLY_BOUNDS = 0.3  # Of the used steps, from which on what is not recorded leaves only bounds (as of the replay).


@once
def not_recorded(facts: Facts) -> tuple[IntegrityNote, ...]:
    """Notes on times of the used steps in which the host, or work of the device, was not recorded."""
    return (*_host(facts), *_device(facts))


def _host(facts: Facts) -> Iterator[IntegrityNote]:
    """A note if the CPU recording begins after or ends before the GPU's used steps; else nothing."""
    activities, used = optional(host_activities, facts), steps(facts)
    if activities is None:
        return
    missing, known = activities[TimeCause.HOST_NOT_RECORDED], host_recorded(facts)
    before = intervals.clip(missing, used.start_ns, known.start_ns).total
    after = intervals.clip(missing, known.end_ns, used.end_ns).total
    says = [
        f"{verb} {duration(ns)} {where}"
        for verb, ns, where in (("begins", before, "after"), ("ends", after, "before"))
        if ns >= WORTH_SHARE * used.window_ns
    ]
    if says:
        how = (
            "Synchronise with the GPU before recording ends." if after >= before else "Start recording a step earlier."
        )
        yield IntegrityNote(
            f"The CPU's recording {' and '.join(says)} the GPU's.",
            f"CPU work in that time is not analysed. {how}",
            Severity.NOTE,
        )


def _device(facts: Facts) -> Iterator[IntegrityNote]:
    """A note if kernels are missing in gaps of the recording; else nothing."""
    time, used = optional(device_time, facts), steps(facts)
    if time is None or not time.work_not_recorded.size:
        return
    holes = time.work_not_recorded
    share = holes.total / used.window_ns
    yield IntegrityNote(
        f"Kernels are missing in {holes.size:,} gap{'s' * (holes.size > 1)} of the recording: "
        f"{duration(holes.total)}, {percent(share)} of the used steps.",
        "This time counts neither as busy nor as idle. Profile with a newer driver and CUPTI, or without graphs.",
        Severity.ERROR if share >= ONLY_BOUNDS else Severity.WARNING,
        (Ground.DEVICE_IDLE,),
    )
