"""Steps put together in windows that get longer as the run does, so that a log stays small however long it lasts."""

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from .step_times import Interval

COLUMNS = (  # What a window tells of its steps, in ns. Beside these there is "device".
    "step",
    "loader",
    "forward",
    "backward",
    "optimizer",
    "collection",
    "compilation",
    "save",
    "evaluation",
    "evaluation_loader",
    "recording",
    "outside",
)

SKETCHED = ("step", "loader", "device")  # Columns of which quantiles can be told.
PER_OCTAVE = 16  # Buckets to a doubling: quantiles are off by 2.2 % at most, 2^(1/32) (DDSketch, Masson et al. 2019).
SHORTEST_NS = 1_000_000_000
GROWTH = 0.01  # A window takes SHORTEST_NS or this share of the run so far, if longer: 28 hours make some 800 (chosen).
LONG = 3.0  # Times the usual step, from which a step is an outlier, and what is before it not part of it (clocks.LONG).
RECENT = 255  # Steps of which the usual one is the median (chosen).
KEPT_OUTLIERS, KEPT_GAPS, KEPT_EPOCHS = 8, 8, 8  # That a window tells one by one (chosen).
DETAILED = 100  # Steps at the beginning that are told one by one (chosen).


class Column:
    """Sums and a sketch of one kind of time, in ns, over the steps that had any."""

    def __init__(self, sketched: bool) -> None:
        self._count = self._sum = self._most = 0
        self._least = 1 << 62
        self._buckets: Counter[int] | None = Counter() if sketched else None

    def add(self, values: Iterable[int]) -> None:
        """Add one time for each of more steps; those of 0 do not count."""
        some = [value for value in values if value > 0]
        if some:
            self._count += len(some)
            self._sum += sum(some)
            self._least, self._most = min(self._least, min(some)), max(self._most, max(some))
            if self._buckets is not None:
                log2 = math.log2
                self._buckets.update([int(log2(value) * PER_OCTAVE) for value in some])

    def record(self) -> list[object] | None:
        """Count, sum, least, most, and the sketch's buckets as bucket, count, bucket, count, ...; None without any."""
        if not self._count:
            return None
        buckets = [number for pair in sorted((self._buckets or {}).items()) for number in pair]
        return [self._count, self._sum, self._least, self._most, buckets]


class Gauge:
    """Sums of one figure of the process over the looks at it."""

    def __init__(self) -> None:
        self._count, self._sum, self._least, self._most, self._last = 0, 0.0, math.inf, -math.inf, 0.0

    def add(self, value: float) -> None:
        """Add the figure at one look."""
        self._count, self._sum, self._last = self._count + 1, self._sum + value, value
        self._least, self._most = min(self._least, value), max(self._most, value)

    def record(self) -> list[object]:
        """Count, mean, least, most, last; needs one look at least."""
        mean = round(self._sum / self._count, 3)
        return [self._count, mean, self._least, self._most, self._last]


class Windows:
    """Is given intervals in order, and keeps the current window. Memory does not grow with the run."""

    def __init__(self, began_ns: int) -> None:
        """`began_ns`: when the run began, by `time.perf_counter_ns`, as in intervals."""
        self._run_began_ns = began_ns
        self.number = 0  # Of the current window.
        self.steps = 0  # Intervals so far, without the first, which is the start of the run.
        self.detailed: list[list[int]] = []  # Of the first DETAILED steps those not taken yet: number, then COLUMNS.
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._last_outlier: int | None = None
        self._epoch: list[int] | None = None  # First step, begin, steps, their ns, ns waited, ns its first step waited.
        self._ended_ns = began_ns
        self._begin()

    def _begin(self) -> None:
        self._first, self._began_ns = self.steps, self._ended_ns
        self._columns = {name: Column(name in SKETCHED) for name in (*COLUMNS, "device")}
        self._gauges: dict[str, Gauge] = {}
        self._outliers = self._excess_ns = 0
        self._longest: list[list[int]] = []
        self._gaps: Counter[int] = Counter()
        self._epochs: list[list[int]] = []
        self._more_epochs = 0

    def started(self, first: Interval) -> None:
        """Take the first interval: it is the start of the run, and no step of any window."""
        self._ended_ns = self._began_ns = first.ended
        self._epoch = [0, first.ended - self._run_began_ns, 0, 0, 0, first.loader] if first.epoch else None

    def take(self, some: Sequence[Interval]) -> None:
        """Add intervals, each of one step, in order, to the current window."""
        if not some:
            return
        ended, steps, betweens, *others, epochs = map(list, zip(*some, strict=True))
        by_themselves = [step for step in steps if step]
        if not self._recent:
            self._recent.extend(by_themselves)
        usual = statistics.median(self._recent or (0,))
        outside = [0] * len(some)
        if max(betweens) > LONG * usual:
            outside = [between if between > LONG * usual else 0 for between in betweens]
            steps = [step - one for step, one in zip(steps, outside, strict=True)]
        table = dict(zip(COLUMNS, (steps, *others, outside), strict=True))
        for name, values in table.items():
            self._columns[name].add(values)
        if self.steps < DETAILED:
            rows = zip(*table.values(), strict=True)
            numbered = [[self.steps + 1 + at, *row] for at, row in enumerate(rows)]
            self.detailed += numbered[: DETAILED - self.steps]
        if len(by_themselves) < len(steps):
            self._more_epochs += self._epoch is not None
            self._epoch = None  # A part of it was recorded: how long it is without that nobody knows.
        if max(steps) > LONG * usual:
            self._note_outliers(steps, table["loader"], usual)
        firsts = [at for at, first in enumerate(epochs) if first] if any(epochs) else []
        self._split_by_epochs(ended, steps, table["loader"], firsts)
        self._recent.extend(by_themselves)
        self.steps += len(some)
        self._ended_ns = ended[-1]

    def _note_outliers(self, steps: Sequence[int], waits: Sequence[int], usual: float) -> None:
        """Note steps over LONG times the usual one; `waits`: the ns that each step waited for batches."""
        for at, (step, wait) in enumerate(zip(steps, waits, strict=True)):
            if step > LONG * usual:
                number = self.steps + 1 + at
                self._outliers += 1
                self._excess_ns += int(step - usual)
                self._longest.append([number, step, wait])
                if self._last_outlier is not None:
                    self._gaps[number - self._last_outlier] += 1
                self._last_outlier = number
        self._longest = sorted(self._longest, key=lambda one: -one[1])[:KEPT_OUTLIERS]
        if len(self._gaps) > 8 * KEPT_GAPS:
            self._gaps = Counter(dict(self._gaps.most_common(KEPT_GAPS)))

    def _split_by_epochs(
        self, ended: Sequence[int], steps: Sequence[int], waits: Sequence[int], epochs: Sequence[int]
    ) -> None:
        """Add steps to the current epoch; at each of the positions `epochs` another one begins."""
        ends = [self._ended_ns, *ended]
        for at, (begin, end) in enumerate(pairwise((0, *epochs, len(steps)))):
            if at:
                self._close_epoch()
                self._epoch = [self.steps + 1 + begin, ends[begin] - self._run_began_ns, 0, 0, 0, waits[begin]]
            if self._epoch is not None:
                self._epoch[2] += end - begin
                self._epoch[3] += sum(steps[begin:end])
                self._epoch[4] += sum(waits[begin:end])

    def _close_epoch(self) -> None:
        """Keep the current epoch, which has ended; beyond KEPT_EPOCHS it is only counted."""
        if self._epoch is not None:
            if len(self._epochs) < KEPT_EPOCHS:
                self._epochs.append(self._epoch)
            else:
                self._more_epochs += 1

    def device(self, times_ns: Sequence[int]) -> None:
        """Add times in ns between the ends of consecutive steps on the device."""
        self._columns["device"].add(times_ns)

    def looked(self, figures: dict[str, float]) -> None:
        """Add one look at figures of the process, by name."""
        for name, value in figures.items():
            self._gauges.setdefault(name, Gauge()).add(value)

    def long_enough(self, now_ns: int) -> bool:
        """Whether the current window is long enough to be closed; one without steps never is."""
        length_ns = max(SHORTEST_NS, GROWTH * (now_ns - self._run_began_ns))
        return self.steps > self._first and self._ended_ns - self._began_ns >= length_ns

    def record(self, last: bool = False) -> list[object]:
        """The current window as a record of the log. `last`: with the current epoch, although it has not ended."""
        columns = {name: one for name, column in self._columns.items() if (one := column.record()) is not None}
        epochs = [*self._epochs, self._epoch] if last and self._epoch is not None else self._epochs
        return [
            "window",
            self.number,
            self._first + 1,
            self.steps - self._first,
            self._began_ns - self._run_began_ns,
            self._ended_ns - self._run_began_ns,
            columns,
            [self._outliers, self._excess_ns, self._longest, dict(self._gaps.most_common(KEPT_GAPS))],
            epochs,
            self._more_epochs,
            {name: gauge.record() for name, gauge in self._gauges.items()},
        ]

    def next(self) -> None:
        """Begin another window; `record` must have been kept before."""
        self.number += 1
        self._begin()
