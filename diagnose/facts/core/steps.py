"""How long is a step? From the last device end of one step to the last device end of the next.

The host's `ProfilerStep#N` spans are not step times: the host runs ahead until the launch queue is full (five equal
steps of one public trace show spans of 35 to 96 ms). They only say which launches belong together.
"""

from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.device import device_work
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.steps import is_cut_off

LONG = 3.0  # A step of this many times the median one does something that others do not, or was held up (our choice).
LOST_SHARE = 0.5  # Of the steps with device work: as many have to follow each other to be used alone (our choice).
LITTLE = 0.01  # Of the device's work, before a long wait at the beginning (our choice).
ENOUGH_TIMED = 20  # Steps without the profiler: what none of so many shows is no part of the training (our choice).
HELD_UP = 0.5  # Of the median step: by so much longer a step is that was held up (our choice).
ALIKE = 0.1  # By so much more ops a step may have and still do the same (our choice).


class Measure(str, Enum):
    """What the bounds of steps are."""

    DEVICE = "device"  # Last device end to last device end.
    HOST = "host"  # Start to start of the host's step markers: no device work was recorded.
    ONE_STEP = "one_step"  # The only step: to its last device end, from that of work before it or its host start.
    WINDOW = "window"  # No steps: all recorded work, as if it were one step.


class Steps(Struct, frozen=True):
    """The steps that figures are taken from. They follow each other without gaps."""

    measure: Measure
    numbers: tuple[int, ...]  # Numbers of the used steps, in order; one 0 for a window.
    bounds_ns: IntArray  # Used step k is [bounds_ns[k], bounds_ns[k + 1]). Shape (used + 1,).
    recorded: int  # Steps marked in the recording, used or not.
    dropped: tuple[int, ...]  # Numbers of the recorded steps that are not used.
    held_up: tuple[int, ...] = ()  # Those of `dropped` that something outside of the training seems to have held up.

    @property
    def count(self) -> int:
        """How many steps are used."""
        return len(self.numbers)

    @property
    def start_ns(self) -> int:
        """Start of the first used step."""
        return int(self.bounds_ns[0])

    @property
    def end_ns(self) -> int:
        """End of the last used step."""
        return int(self.bounds_ns[-1])

    @property
    def times_ns(self) -> IntArray:
        """Duration of each used step. Shape (used,)."""
        return np.diff(self.bounds_ns)

    @property
    def mean_ns(self) -> int:
        """Mean duration of the used steps: what shares of the step are shares of."""
        return (2 * self.window_ns + self.count) // (2 * self.count)

    @property
    def window_ns(self) -> int:
        """Duration of all used steps together."""
        return self.end_ns - self.start_ns


@fact
def steps(facts: Facts) -> Steps:
    """The used steps. The first recorded one is not used (when it began on the device is unknown), nor a cut-off last.

    Of a training on the CPU in one process, without a step range: the longest run of steps that nothing held up.

    Raises Missing if the recording holds neither device work nor ops, nothing that takes time, or no step of the asked
    range.
    """
    of_marks = _on_device if len(device_work(facts).ids) else _on_host
    found = of_marks(facts) if facts.rank.steps else None
    if found is not None:
        used = _calm(facts, found) if facts.step_range is None else _selected(found, facts.step_range)
    elif facts.step_range is not None:
        raise Missing("marked steps", "Call prof.step() after each step, or analyse without --steps.")
    else:
        used = _window(facts)
    if not used.window_ns:
        raise Missing("anything that takes time", "Record whole steps.")
    return used


def host_window(facts: Facts) -> tuple[int, int]:
    """(start, end) ns of the used steps on the host, by its step marks: it may be ahead of the device."""
    used = steps(facts)
    if used.measure is Measure.WINDOW:
        return used.start_ns, used.end_ns
    marks = [mark for mark in facts.rank.steps if mark.number in set(used.numbers)]
    return min(mark.start_ns for mark in marks), max(mark.end_ns for mark in marks)


def _on_device(facts: Facts) -> Steps | None:
    """Steps between the last device ends of marked steps (a lone one: ONE_STEP); None if marks launch no work."""
    marks, work = facts.rank.steps, device_work(facts)
    in_step = work.step >= 0
    counts = np.bincount(work.step[in_step], minlength=len(marks))
    if not counts.any():
        return None
    ends = np.full(len(marks), -1, dtype=np.int64)
    np.maximum.at(ends, work.step[in_step], work.end_ns[in_step])
    last = len(marks) - is_cut_off(counts, len(marks) - 1)
    with_work = _with_work(counts[:last])
    if len(with_work) == 1:
        only = with_work[0]
        first = work.start_ns[in_step].min()
        before = work.end_ns[~in_step & (work.start_ns < first)].max(initial=0)
        begin = min(max(marks[only].start_ns, int(min(first, before))), int(ends[only]))
        return _steps_between(facts, Measure.ONE_STEP, [only], np.array([begin, ends[only]], dtype=np.int64))
    return _steps_between(facts, Measure.DEVICE, with_work[1:], np.maximum.accumulate(ends[with_work]))


def _with_work(counts: IntArray) -> list[int]:
    """Positions of steps with device work; if the recording lost some in between, the longest unbroken run.

    Else a step after a lost one would last from the end of the one before that. All are kept if that run has under
    LOST_SHARE of them: then the program marks steps more often than it trains.
    """
    every = np.flatnonzero(counts)
    first, last = _longest_run(counts > 0)
    alone = last > first and last - first + 1 >= LOST_SHARE * len(every)
    return list(range(first, last + 1)) if alone else every.tolist()


def _on_host(facts: Facts) -> Steps:
    """Steps between the starts of the host's step marks, without the first step if there are several."""
    marks = facts.rank.steps
    bounds = np.array([*(mark.start_ns for mark in marks), marks[-1].end_ns], dtype=np.int64)
    first = int(len(marks) > 1)
    return _steps_between(facts, Measure.HOST, list(range(first, len(marks))), bounds[first:])


def _steps_between(facts: Facts, measure: Measure, used: list[int], bounds_ns: IntArray) -> Steps:
    """The steps at positions `used` of the marks; `bounds_ns` has the start of the first and the end of each."""
    numbers = [mark.number for mark in facts.rank.steps]
    return Steps(
        measure=measure,
        numbers=tuple(numbers[k] for k in used),
        bounds_ns=bounds_ns,
        recorded=len(numbers),
        dropped=tuple(number for k, number in enumerate(numbers) if k not in set(used)),
    )


def _window(facts: Facts) -> Steps:
    """One step that is the whole recording. Raises Missing without device work and ops."""
    work, spans = device_work(facts), facts.rank.spans
    if len(work.ids):
        bounds = [_begun(facts), int(work.end_ns.max())]
    else:
        ops = spans[spans["kind"].isin([SpanKind.OP.value, SpanKind.LOADER.value, SpanKind.COLLECTIVE.value])]
        if not len(ops):
            raise Missing("device work and ops", "Profile with ProfilerActivity.CPU and ProfilerActivity.CUDA.")
        bounds = [int(ops["start_ns"].min()), int((ops["start_ns"] + ops["dur_ns"]).max())]
    return Steps(Measure.WINDOW, (0,), np.array(bounds, dtype=np.int64), len(facts.rank.steps), ())


def _begun(facts: Facts) -> int:
    """Start of the recorded device work in ns, after any long initial wait for work that was not recorded.

    Such a wait fills over half of that time, has little work before it, and ends with work launched as it began.
    """
    work, launched = device_work(facts), facts.rank.spans["start_ns"].to_numpy()
    busy, begin = work.of(), int(work.start_ns.min())
    if busy.size < 2:
        return begin
    pauses = busy.starts[1:] - busy.ends[:-1]
    last = int(np.argmax(pauses))
    after = int(busy.starts[last + 1])
    next_work = int(np.flatnonzero(work.start_ns == after)[0])
    waited = work.launch[next_work] >= 0 and launched[work.launch[next_work]] < busy.ends[last] + pauses[last] / 10
    little = (busy.ends - busy.starts)[: last + 1].sum() < LITTLE * (busy.ends - busy.starts).sum()
    return after if waited and little and 2 * pauses[last] > busy.ends[-1] - begin else begin


def _calm(facts: Facts, found: Steps) -> Steps:
    """The longest run of steps of which none was held up: none whose ops took LONG times as long without being more.

    The machine then had something else to do, or ran short of memory while recording. All steps are returned unless
    one process trains on the CPU, and ENOUGH_TIMED steps without the profiler have none so long.
    """
    known = facts.rank.context.rank if facts.rank.context is not None else None
    if known is None or known.unprofiled is None or found.measure is not Measure.HOST:
        return found
    times = known.unprofiled.wall_ns  # Of several ranks, steps that not all of them use could not be compared.
    if known.world_size != 1 or len(times) < ENOUGH_TIMED or max(times) > LONG * np.median(times):
        return found
    ops = facts.rank.spans[facts.rank.spans["kind"] == SpanKind.OP.value]
    start = ops["start_ns"].to_numpy()
    pieces = intervals.union(Intervals(start, start + ops["dur_ns"].to_numpy()))
    in_ops = intervals.covered(Intervals(found.bounds_ns[:-1], found.bounds_ns[1:]), pieces)
    number = np.diff(np.searchsorted(np.sort(start), found.bounds_ns))
    usual = np.median(in_ops)
    held_up = (in_ops > LONG * usual) & (in_ops - usual > HELD_UP * np.median(found.times_ns))
    held_up &= number <= (1 + ALIKE) * np.median(number)
    first, last = _longest_run(~held_up)
    return replace(_part(found, first, last), held_up=tuple(np.array(found.numbers)[held_up].tolist()))


def _longest_run(chosen: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Positions of the first and last of the longest run of True, the first of equal ones. One must be True."""
    change = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False]))))
    first, last = change[::2], change[1::2] - 1
    longest = int(np.argmax(last - first))
    return int(first[longest]), int(last[longest])


def _selected(found: Steps, step_range: tuple[int, int]) -> Steps:
    """The steps numbered low to high, both included. Raises Missing if none of them was found."""
    low, high = step_range
    keep = [k for k, number in enumerate(found.numbers) if low <= number <= high]
    if not keep:
        usable = f"{found.numbers[0]}-{found.numbers[-1]}"
        raise Missing(f"steps {low}-{high}", f"The usable steps of this recording are {usable}.")
    return _part(found, keep[0], keep[-1])


def _part(found: Steps, first: int, last: int) -> Steps:
    """`found` with only the used steps at positions `first` to `last`, both included; the others become dropped."""
    left_out = found.numbers[:first] + found.numbers[last + 1 :]
    return replace(
        found,
        numbers=found.numbers[first : last + 1],
        bounds_ns=found.bounds_ns[first : last + 2],
        dropped=tuple(sorted(found.dropped + left_out)),
    )
