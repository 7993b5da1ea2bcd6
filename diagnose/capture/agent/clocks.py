"""How long steps take, without a profiler: the process's clock, and events on the device where there is one."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from .alone import alone, text_of, uses_gpu
from .interruptions import BACKWARD, phases

ON_DEVICE = "device times of steps"  # Their name for `alone`.
_STARTED_NS = time.perf_counter_ns()  # When this process loaded the agent.


class Clock:
    """Times consecutive steps. Costs a few microseconds a step, and waits for nothing until it is read."""

    def __init__(self, first_step: int, by_phase: bool = False) -> None:
        """The step before `first_step` has just ended. `by_phase`: time by phase as well, until `phases` is off."""
        self.first_step = first_step
        if by_phase:
            phases.on()
        self._spent_ns: list[dict[str, int]] = [phases.spent_ns()] if by_phase else []
        self._nodes = [_nodes()]
        self._ns = [time.perf_counter_ns()]
        self._fetched = [fetched_bytes()] * 2
        self._cpu_ns = [time.process_time_ns()]
        self._waited_ns = [_waited_ns()] * 2
        self._events: list[Any] = []
        self._mark()
        # When each step began and the last one ended: our own call, as ranges of recorded steps hold it, is before.
        self.bounds_unix_ns = [time.time_ns()]

    def _mark(self) -> None:
        if uses_gpu() and (event := alone(ON_DEVICE, device_event)) is not None:
            self._events.append(event)

    def tick(self) -> None:
        """A step has ended."""
        self._ns.append(time.perf_counter_ns())
        self._nodes.append(_nodes())
        if self._spent_ns:
            self._spent_ns.append(phases.spent_ns())
        self._fetched[1] = fetched_bytes()
        self._cpu_ns.append(time.process_time_ns())
        self._waited_ns[1] = _waited_ns()
        self._mark()
        self.bounds_unix_ns.append(time.time_ns())

    @property
    def steps(self) -> int:
        """How many steps have been timed."""
        return len(self._ns) - 1

    def wall_ns(self, last: int | None = None) -> list[int]:
        """Wall time of each step, or of the last `last` ones."""
        return _differences(self._ns if last is None else self._ns[-last - 1 :])

    def fitting(self, seconds: float) -> int:
        """How many steps of the median length fit this time."""
        return int(seconds * 1e9 / max(statistics.median(self.wall_ns()), 1))

    @property
    def own_ns(self) -> int:
        """Median time of a step but for backward passes, where it waits for other ranks. All of it if not by phase."""
        waiting = self._phases_ns().get(BACKWARD, [0] * self.steps)
        return int(statistics.median(wall - some for wall, some in zip(self.wall_ns(), waiting, strict=True)))

    @property
    def fetched_bytes(self) -> int:
        """Bytes that the process touched for the first time, per step."""
        return (self._fetched[1] - self._fetched[0]) // max(self.steps, 1)

    def timed(self) -> dict[str, object]:
        """The fields of `Timed` in the manifest. Ends the timing by phase, for all; waits for the device."""
        phases.off()
        device = alone(ON_DEVICE, self._device_ns) if len(self._events) == len(self._ns) else None
        steps = max(self.steps, 1)
        return {
            "first_step": self.first_step,
            "began_s": (self._ns[0] - _STARTED_NS) / 1e9,
            "wall_ns": self.wall_ns(),
            "device_ns": device,
            "nodes": _differences(self._nodes),
            "fetched_bytes": self.fetched_bytes,
            "cpu_ns": (self._cpu_ns[-1] - self._cpu_ns[0]) // steps,
            "cpu_times_ns": _differences(self._cpu_ns),
            "waited_ns": (self._waited_ns[1] - self._waited_ns[0]) // steps,
            "phases_ns": self._phases_ns(),
        }

    def _device_ns(self) -> list[int]:
        self._events[-1].synchronize()
        return [between_ns(before, after) for before, after in pairwise(self._events)]

    def _phases_ns(self) -> dict[str, list[int]]:
        """Of each phase the time in each step; without phases that took none, and empty if not by phase."""
        phases_of_all = self._spent_ns[-1] if self._spent_ns else ()
        found = {phase: _differences([spent[phase] for spent in self._spent_ns]) for phase in phases_of_all}
        return {phase: times for phase, times in found.items() if any(times)}


def _differences(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(values)]


def _waited_ns() -> int:
    """ns that this thread has waited for a core so far (sched-stats.rst of Linux); 0 where that is not known."""
    words = text_of(Path("/proc/thread-self/schedstat")).split()
    return int(words[1]) if len(words) > 1 else 0


def fetched_bytes() -> int:
    """Bytes that this process has touched for the first time so far (minor page faults); 0 if unknown."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()


def device_event(event: Any = None) -> Any:
    """An event that the device passes after all that was queued so far; `event`: an old one, to be used again."""
    import torch

    event = event or torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_ns(before: Any, after: Any) -> int:
    """ns between two events that the device has passed. Raises what torch raises, and ValueError if below zero."""
    passed_ns: int = round(before.elapsed_time(after) * 1e6)
    if passed_ns < 0:
        raise ValueError(f"{passed_ns} ns between two events")
    return passed_ns


def _nodes() -> int:
    """Nodes of autograd's graph that this thread has made; 0 where torch does not say."""
    import torch

    number: Callable[[], int] = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", lambda: 0)
    return int(alone("the nodes of autograd's graph", number, default=0))


WINDOW = 5  # Steps that are compared with as many before them (chosen).
ALIKE = 0.1  # Share by which their medians may differ (chosen).
MOST_WARMUP = 5  # Times the asked-for warm-up after which unsteady steps are recorded all the same (chosen).
MOST_WARMUP_S = 120.0  # The same in time (chosen).
TIMED = 30  # Steps that are timed without a profiler, at most (chosen).
TIMED_PER_WARMUP = 3  # Times the asked-for warm-up that are timed, at most: who asks for less has a short run (chosen).
TIMED_S = 10.0  # Time for that, in which at least as many steps are timed as are recorded, if TIMED allows (chosen).


SETTLED = 0.05  # Share by which the last steps of a recording may be faster than those before them (chosen).
MOST_SETTLING, MOST_SETTLING_S = 9, 3.0  # Steps and time after which a recorder is taken as it is (chosen).


def settling(clock: Clock, steps: int) -> bool:
    """Whether the last `steps` steps still get faster, so that a recorder should wait for one more."""
    if clock.steps >= steps + MOST_SETTLING or sum(clock.wall_ns()) > MOST_SETTLING_S * 1e9:
        return False
    times = clock.wall_ns(last=steps)
    half = (len(times) + 1) // 2
    return statistics.median(times[-half:]) < (1 - SETTLED) * statistics.median(times[:half])


def long_enough(clock: Clock, warmup: int) -> bool:
    """Whether the warm-up has been so long that it ends although steps are not steady."""
    return clock.steps >= MOST_WARMUP * warmup or sum(clock.wall_ns()) > MOST_WARMUP_S * 1e9


def to_be_timed(clock: Clock, warmup: int, recorded: int) -> int:
    """How many steps to time without a profiler after this warm-up, if `recorded` are to be recorded later."""
    usual = sorted(clock.wall_ns())[clock.steps // 2]
    return min(_most_timed(warmup, recorded), max(recorded, int(TIMED_S * 1e9 / max(usual, 1))))


def _most_timed(warmup: int, recorded: int) -> int:
    return min(TIMED, max(recorded, TIMED_PER_WARMUP * warmup))


def needed(warmup: int, recorded: int) -> int:
    """How many steps a run makes until `recorded` are recorded, if they are short and become steady at once.

    The first step begins the clock. Between timed and recorded ones is one that tells the size of a trace, with one
    before and one after it that keep recordings apart. The first that is recorded is not used.
    """
    return 1 + max(warmup, min(2 * WINDOW, MOST_WARMUP * warmup)) + _most_timed(warmup, recorded) + 3 + recorded + 1


def steady(clock: Clock) -> bool:
    """Whether the last WINDOW steps took as long as those before, by their medians; False if there are too few."""
    if clock.steps < 2 * WINDOW:
        return False
    times = clock.wall_ns(last=2 * WINDOW)
    before, after = sorted(times[:WINDOW])[WINDOW // 2], sorted(times[WINDOW:])[WINDOW // 2]
    return abs(after - before) <= ALIKE * before


LONG = 3.0  # Times the median step from which a step counts as long (as in facts/steps.py).


@dataclass(frozen=True)
class Cycle:
    """Long steps come at a period: the training collects experience, validates or writes now and then."""

    every: int = 1  # Steps from one long step to the next; 1: all are alike, or long ones in no order.
    number: int = 0  # Of one long step.
    ratio: float = 1.0  # How many times as long as the others they are.
    epoch: bool = False  # It is an epoch: its first step is long, as the pause before the epoch is part of it.

    @property
    def said(self) -> str:
        """A sentence to the user, as more steps may be recorded than were asked for."""
        if self.epoch:
            return (
                f"An epoch has {self.every} steps, with long pauses between epochs. Recording whole epochs if they fit."
            )
        return f"One step in {self.every} takes {self.ratio:.0f} times as long. Recording whole cycles if they fit."

    def whole(self, steps: int) -> int:
        """`steps` rounded up to whole cycles, so that long ones have their usual share."""
        return self.every * ceil(steps / self.every)

    def wait(self, number: int) -> int:
        """Steps to wait if a recording could begin with this one, so that its second is long: its first is not used."""
        return (self.number - 1 - number) % self.every


def cycle(first_step: int, wall_ns: Sequence[int], epochs: Mapping[str, Any] | None = None) -> Cycle:
    """The cycle in steps that were timed: of one step if fewer than two long ones are among them, or if these are not
    evenly apart (by one step more or less). Short epochs are cycles by themselves, and the first steps of known ones
    are in no other. `epochs`: as in the manifest.
    """
    if (epoch := whole_epoch(epochs, len(wall_ns))) is not None:
        return epoch
    firsts = epochs["began"] if epochs is not None and epochs.get("step_ns") else ()
    usual = statistics.median(wall_ns)
    long = [k for k, ns in enumerate(wall_ns) if ns > LONG * usual and first_step + k not in firsts]
    gaps = [after - before for before, after in pairwise(long)]
    if not gaps or max(gaps) - min(gaps) > 1:
        return Cycle()
    return Cycle(max(gaps), first_step + long[-1], statistics.median(wall_ns[k] for k in long) / usual)


def whole_epoch(epochs: Mapping[str, Any] | None, most: int) -> Cycle | None:
    """An epoch as a cycle, if it has at most `most` steps and pauses take over ALIKE of its time; else None."""
    known = epochs or {}
    steps, step_ns, first_ns = known.get("steps"), known.get("step_ns"), known.get("first_step_ns")
    if not steps or not step_ns or not first_ns or not 1 < steps <= most:
        return None
    other_ns = (steps * step_ns - first_ns) / (steps - 1)
    if first_ns - other_ns <= ALIKE * steps * step_ns:
        return None
    return Cycle(steps, known["began"][-1], first_ns / max(other_ns, 1), epoch=True)
