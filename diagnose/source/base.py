"""What every reader promises, and what may go wrong on the way."""

from typing import Any, Protocol

import numpy.typing as npt
from msgspec import Struct, field

from diagnose.storage.remote import Place
from diagnose.trace.model import Rank


class InputError(Exception):
    """Something the user can fix about the input. The message is one or two sentences: what is wrong, what to do."""


class Reader(Protocol):
    """Reads one file format into a Rank."""

    format: str

    def claims(self, path: Place, head: bytes) -> bool:
        """Whether a file that starts with `head` (decompressed) is of this format."""

    def parts(self, path: Place) -> tuple[int, ...]:
        """What to ask `read` for, where a file may hold several ranks; nothing if it holds one. Raises InputError."""

    def read(self, path: Place, part: int | None = None) -> Rank:
        """The rank in the file, or one of them. Raises InputError when nothing sound can be got from it."""


class Shift(Struct, frozen=True):
    """That the clocks of the host and of a device disagree, and by how much the device's times were moved."""

    device: int
    by_ns: int  # Later; negative: earlier.
    early: int  # Device operations that start before their launching call, as recorded.
    sure_ns: int | None
    """How far apart the bounds are of what the clock is off by; None where no call that waits was recorded."""
    drifts: bool  # The bounds contradict each other: no one shift puts all in order.


class Damage(Struct):
    """What a reader lost or repaired on the way: counts, which become integrity notes afterwards."""

    cut_off: bool = False  # The text ends before the event list does.
    text_after_end: bool = False
    """More text follows the trace's closing bracket: another trace, or rubbish. It is not read."""
    compressed_data_broken: bool = False  # The compressed stream ends early or fails its checksum.
    lost_events: int = 0  # Events whose text could not be read.
    repaired_events: int = 0
    """Events read after repair: stray quotes, control characters, NaN, bytes that are not UTF-8."""
    without_time: int = 0  # Events with no usable start, and device work at 0 that takes nothing.
    implausible_times: int = 0  # Events more than a day away from the rest.
    negative_durations: int = 0  # Taken as 0.
    duplicates: int = 0  # Identical events, dropped.
    clipped: int = 0  # Events that lasted longer than they can, cut at the next on their row.
    joined: int = 0  # Device work without a correlation, joined to its call by op or order.
    outside_window: int = 0  # Events that start before the recorder's own window or after it.
    shifts: list[Shift] = field(default_factory=list)  # Of devices whose clocks disagree with the host's.
    told: list[str] = field(default_factory=list)  # Sentences of the recorder's own on what it lost.
    unread_tables: list[str] = field(default_factory=list)  # Of events, in a database; what they hold is not known.
    header_values_lost: list[str] = field(default_factory=list)
    """Named header keys whose value was not what the format promises."""
    unclassified: int = 0  # Events without a category whose name does not tell what they are.
    on_device: set[str] = field(default_factory=set)  # Counts that are of device work, or of it too.
    on_host: set[str] = field(default_factory=set)

    def count(self, name: str, rows: npt.NDArray[Any], on_device: npt.NDArray[Any]) -> None:
        """Add the rows that are set to a count; `on_device` says which rows are of a device."""
        setattr(self, name, getattr(self, name) + int(rows.sum()))
        self.on_device |= {name} if (rows & on_device).any() else set()
        self.on_host |= {name} if (rows & ~on_device).any() else set()
