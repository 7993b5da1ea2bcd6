"""What a log of a whole run says: the values of `source/run_log.py`, times in ns, unknown is None."""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from diagnose.trace.manifest import Loader

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 62)]
Number: TypeAlias = Annotated[float, Meta(ge=-1e18, le=1e18)]

COLUMNS = (
    *("step", "loader", "forward", "backward", "optimizer", "collection", "compilation", "save", "evaluation"),
    *("evaluation_loader", "recording", "outside", "device"),
)
"""What is timed of the interval from one step's end to the next.

`step`, `save`, `evaluation`, `recording` and `outside` add up to it. `loader`, `forward`, `backward`, `optimizer`,
`collection` (Python's garbage) and `compilation` are parts of `step`; `evaluation_loader` is one of `evaluation`.
`recording` is all of a step that was made while some were recorded. `device` is the time between both ends on the
device."""


class Column(Struct, frozen=True):
    """One kind of time in the steps of a window that had any."""

    count: int = 0
    sum_ns: int = 0
    least_ns: int = 0
    most_ns: int = 0
    buckets: tuple[tuple[int, int], ...] = ()
    """Numbers of times by bucket, in order; a bucket b holds those from 2^(b/16) to 2^((b+1)/16) ns. Empty: none are
    kept."""


class Gauge(Struct, frozen=True, array_like=True):
    """A figure of the process as it was looked at each second."""

    count: Count
    mean: Number
    least: Number
    most: Number
    last: Number


class EpochTime(Struct, frozen=True, array_like=True):
    """An epoch, or as much of it as there was."""

    first_step: Count
    began_ns: Count  # Since the start of the run.
    steps: Count  # Without the first step of the run.
    step_ns: Count  # All of them, without what is outside, evaluation and saving.
    loader_ns: Count
    first_wait_ns: Count | None = None  # For its first batch, also of the run's first step; older logs lack it.


class OutlierStep(Struct, frozen=True):
    """A step that took over three times the usual one."""

    number: int
    step_ns: int
    loader_ns: int


class Window(Struct, frozen=True):
    """Steps in a row. Times are since the start of the run."""

    first_step: int
    steps: int
    began_ns: int
    ended_ns: int
    columns: dict[str, Column]  # By a name of COLUMNS; those without any time are left out.
    outliers: int  # Steps that took over three times the usual one.
    excess_ns: int  # What these took beyond the usual step.
    gaps: tuple[tuple[int, int], ...]  # How many steps are between two outliers, and how many times; the commonest.
    epochs: tuple[EpochTime, ...]  # Those that ended in it; the run's last window has the last one as well.
    more_epochs: int  # That ended in it as well, and are not told one by one.
    gauges: dict[str, Gauge]
    longest: tuple[OutlierStep, ...] = ()  # Some of the outliers.

    @property
    def timed(self) -> int:
        """Its steps but those that were made while some were recorded."""
        return self.of("step").count

    def of(self, name: str) -> Column:
        """A column; of zeros if there was none of that time."""
        return self.columns.get(name, Column())


class LoadingLog(Struct, frozen=True, array_like=True):
    """The DataLoader that most steps took their batches from, and what there is to make batches with."""

    loader: Loader
    steps: Count  # That it fed.
    batches: Count  # It fed them.
    cores: Count | None = None  # For each rank of the machine.
    threads: Count | None = None  # Of torch's ops.


class RunLog(Struct, frozen=True):
    """The log of one rank."""

    rank: int
    world_size: int
    started_unix_ns: int
    steps_by: str | None  # What steps were found by: optimizer, backward, loader, call.
    ended: str | None  # itself, interrupted, crashed; None: nothing says so, as where it was killed.
    length_ns: int  # From the start of the process to its end, or to the last that is known of it.
    start: dict[str, int]  # Of the interval from the start of the process to the first step's end, by column.
    windows: tuple[Window, ...]  # In order.
    last: dict[str, int]  # Of the time after the last step's end, by column.
    files: tuple[str, ...]  # That the run wrote, relative to its working folder.
    damaged: int  # Places in the file where something could not be read.
    first_steps: tuple[dict[str, int], ...] = ()  # Of the first 100 at most, by column; none of the very first.
    loading: LoadingLog | None = None  # None without a DataLoader, and in older logs.
