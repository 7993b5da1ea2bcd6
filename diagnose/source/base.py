"""What can be wrong with the input, and what every reader tells beside rows."""

from typing import Any

import numpy.typing as npt
from msgspec import Struct, field

from diagnose.trace.job import ProcessGroup
from diagnose.trace.model import Device


class InputError(Exception):
    """Something the user can fix about the input. The message is one or two sentences: what is wrong, what to do."""


class Header(Struct, frozen=True):
    """What a recording says of itself."""

    devices: tuple[Device, ...]
    rank: int | None
    world_size: int | None
    base_ns: int  # Unix time of the moment 0 of its times; 0 if these are Unix times or it is unknown.
    versions: dict[str, str] = {}
    rocm: bool = False
    groups: tuple[ProcessGroup, ...] = ()
    machine: int = -1  # Tells machines apart, without the name of any; -1 unknown.


class Shift(Struct, frozen=True):
    """That the clocks of the host and of a device disagree, and by how much the device's times were moved."""

    device: int
    by_ns: int  # Later; negative: earlier.
    early: int  # Device operations that start before their launching call, as recorded.
    sure_ns: int | None  # Width of the range of possible shifts; None: one of its ends is not known.
    drifts: bool  # The bounds contradict each other: no one shift puts all in order.


class Damage(Struct):
    """What a reader lost or repaired on the way: counts, which become integrity notes afterwards."""

    cut_off: bool = False  # The text ends before the event list does.
    text_after_end: bool = False  # Behind the closing bracket there is another trace, or rubbish. It is not read.
    compressed_data_broken: bool = False  # The compressed stream ends early or fails its checksum.
    lost_events: int = 0  # Events whose text could not be read.
    repaired_events: int = 0  # Read after repair: stray quotes, control characters, NaN, bytes that are not UTF-8.
    without_time: int = 0  # Events with no usable start, and device work at 0 that takes nothing.
    implausible_times: int = 0  # Events more than a day away from the rest.
    negative_durations: int = 0  # Taken as 0.
    duplicates: int = 0  # Identical events, dropped.
    clipped: int = 0  # Events that lasted longer than they can, cut at the next on their row.
    joined: int = 0  # Device work without a correlation, joined to its call by op or order.
    outside_window: int = 0  # Events that start before the recorder's own window or after it.
    unclassified: int = 0  # Events without a category whose name does not tell what they are.
    shifts: list[Shift] = field(default_factory=list)  # Of devices whose clocks disagree with the host's.
    told: list[str] = field(default_factory=list)  # Sentences of the recorder's own on what it lost.
    unread_tables: list[str] = field(default_factory=list)  # Of events, in a database; what they hold is not known.
    header_values_lost: list[str] = field(default_factory=list)  # Named keys whose value is not as the format has it.
    on_device: set[str] = field(default_factory=set)  # Counts that are of device work, or of it too.
    on_host: set[str] = field(default_factory=set)

    def count(self, name: str, rows: npt.NDArray[Any], on_device: npt.NDArray[Any]) -> None:
        """Add how many `rows` are True to the count `name`; note whether device or host rows are among them."""
        setattr(self, name, getattr(self, name) + int(rows.sum()))
        self.on_device |= {name} if (rows & on_device).any() else set()
        self.on_host |= {name} if (rows & ~on_device).any() else set()
