"""What was recorded: benchmarks/noise.json."""

from pathlib import Path

import msgspec

from benchmarks.planted_cases import Machine

RESULTS = Path(__file__).parent.parent / "noise.json"

SLOWDOWNS = (0.02, 0.05, 0.1)  # Shares of the step that every step is made longer by.


class Timed(msgspec.Struct, frozen=True):
    """One recording of one run."""

    control: str
    round: int
    slowdown: float  # 0: the control as it is.
    unprofiled_ns: tuple[int, ...]  # Of steps without the profiler.
    recorded_ns: tuple[int, ...]  # Of the recorded ones, by the same clock.


class Recorded(msgspec.Struct, frozen=True):
    """All of them."""

    machine: Machine | None = None
    rows: tuple[Timed, ...] = ()

    def of(self, control: str, slowdown: float = 0.0) -> list[Timed]:
        """Of one control, in order of rounds."""
        return sorted(
            (row for row in self.rows if (row.control, row.slowdown) == (control, slowdown)), key=lambda one: one.round
        )

    @property
    def controls(self) -> list[str]:
        """Those with a recording."""
        return sorted({row.control for row in self.rows})


def published(path: Path = RESULTS) -> Recorded:
    """What stands there; nothing if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=Recorded) if path.exists() else Recorded()


def write(found: Recorded, path: Path = RESULTS) -> None:
    """All at once, so that a break leaves the file whole. A recording takes a line."""
    rows = b",\n  ".join(map(msgspec.json.encode, found.rows))
    part = path.with_suffix(".part")
    part.write_bytes(b'{"machine": %b,\n "rows": [\n  %b\n]}\n' % (msgspec.json.encode(found.machine), rows))
    part.replace(path)
