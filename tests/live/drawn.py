"""Logs of runs that go on, drawn."""

from pathlib import Path

from msgspec.structs import replace

from diagnose.capture.agent.watch.log import framed
from diagnose.trace.run_log import Column, Gauge, RunLog, Window

S, MS = 1_000_000_000, 1_000_000
BUCKET = 393  # Of 25 ms: 2^(393/16) ns are 24.83 ms, and 2^(394/16) ns 25.93 ms.


def window(number: int, *, waits_ns: int = 5 * MS, **figures: float) -> Window:
    """A second: 40 steps of 25 ms each, of which so much is waiting for data, and figures that rise by 2 in it."""
    columns = {
        "step": Column(40, S, 25 * MS, 25 * MS, ((BUCKET, 40),)),
        "loader": Column(40, 40 * waits_ns, waits_ns, waits_ns),
        "forward": Column(40, 40 * 4 * MS, 4 * MS, 4 * MS),
    }
    gauges = {name: Gauge(2, value, value - 1, value + 1, value + 1) for name, value in figures.items()}
    return Window(1 + 40 * number, 40, (2 + number) * S, (3 + number) * S, columns, 0, 0, (), (), 0, gauges)


def log(*windows: Window, rank: int = 0, world_size: int = 1, after_ns: int = 0) -> RunLog:
    """Two seconds of start, then the windows, then so much after the last step."""
    began = RunLog(rank, world_size, 1_700_000_000 * S, "optimizer", None, 2 * S, {"step": 2 * S}, (), {}, (), 0)
    ended_ns = windows[-1].ended_ns if windows else 2 * S
    return replace(began, windows=windows, length_ns=ended_ns + after_ns, last={"step": after_ns})


def written(folder: Path, *, windows: int, opened: bool = False, rank: int = 0) -> Path:
    """The files of a log of that many windows, of ten steps in 100 ns each; `opened`: the last one is not complete."""

    def record(number: int) -> list[object]:
        began, columns = 100 + 100 * number, {"step": [10, 80, 8, 8, [48, 10]]}
        return ["window", number, 1 + 10 * number, 10, began, began + 100, columns, [0, 0, [], {}], [], 0, {}]

    begin = ["begin", 1, rank, 1, 99, 1_700_000_000 * S, ["step"], [100]]
    path = folder / f"rank{rank}.watch"
    path.write_bytes(b"".join(map(framed, [begin, *map(record, range(windows - opened))])))
    if opened:
        now = ["open", 200 + 100 * windows, [100], "optimizer", record(windows - 1)]
        path.with_name(f"{path.name}.open").write_bytes(framed(now))
    return path
