"""Steps put together in windows, and the files that they are written to."""

import resource
import signal
import tracemalloc
from pathlib import Path

import pytest

from diagnose.capture.agent.watch.log import LogFile
from diagnose.capture.agent.watch.step_times import Interval, recorded
from diagnose.capture.agent.watch.windows import COLUMNS, DETAILED, Windows
from diagnose.source.run_log import read

MS = 1_000_000
FIRST = Interval(10 * MS, 10 * MS, *(0,) * 10)


def interval(ended: int, step: int, **others: int) -> Interval:
    names = Interval._fields
    return Interval(**dict.fromkeys(names, 0) | {"ended": ended, "step": step} | others)  # type: ignore[arg-type]


def columns(windows: Windows) -> dict[str, list[object]]:
    found = windows.record()[6]
    assert isinstance(found, dict)
    return found


def test_sums_are_exact_and_only_steps_with_some_are_counted() -> None:
    windows = Windows(0)
    windows.started(FIRST)
    windows.take([interval(13 * MS, 3 * MS, loader=MS), interval(18 * MS, 4 * MS, save=MS)])
    found = columns(windows)
    assert found["step"][:4] == [2, 7 * MS, 3 * MS, 4 * MS]
    assert found["loader"][:4] == [1, MS, MS, MS]
    assert found["save"] == [1, MS, MS, MS, []]
    assert set(found) == {"step", "loader", "save"}
    # 2^(344/16) ns is 2.97 ms, and 2^(345/16) 3.10; 2^(350/16) is 3.85, and 2^(351/16) 4.02.
    assert found["step"][4] == [344, 1, 350, 1]


def test_a_long_time_between_steps_is_no_part_of_them() -> None:
    windows = Windows(0)
    windows.started(FIRST)
    steps = [interval(10 * MS + k, 2 * MS, between=MS) for k in range(1, 9)]
    windows.take([*steps, interval(11 * MS, 9 * MS, between=7 * MS)])
    found = columns(windows)
    assert found["step"][1] == (8 * 2 + 2) * MS
    assert found["outside"][:3] == [1, 7 * MS, 7 * MS]


def test_outliers_are_counted_with_the_steps_between_them() -> None:
    windows = Windows(0)
    windows.started(FIRST)
    windows.take([interval(k, 50 * MS if k % 10 == 0 else 10 * MS) for k in range(1, 41)])
    count, excess_ns, longest, gaps = windows.record()[7]  # type: ignore[misc]
    assert (count, excess_ns, gaps) == (4, 4 * 40 * MS, {10: 3})
    assert [one[0] for one in longest] == [10, 20, 30, 40]


def test_epochs_begin_with_the_step_that_has_their_first_batch() -> None:
    windows = Windows(0)
    windows.started(FIRST._replace(epoch=True))
    some = [interval((10 + k) * MS, MS, loader=k, epoch=k % 4 == 0) for k in range(1, 10)]
    windows.take(some[:3])
    windows.take(some[3:])
    # The first epoch has the run's first step, which is not counted, and steps 1 to 3; the second 4 to 7.
    # At last there is what its first batch was waited for.
    assert windows.record()[8] == [[0, 10 * MS, 3, 3 * MS, 6, 0], [4, 13 * MS, 4, 4 * MS, 22, 4]]
    assert windows.record(last=True)[8][2] == [8, 17 * MS, 2, 2 * MS, 17, 8]  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_million_steps_take_bounded_memory_and_disk(tmp_path: Path) -> None:
    windows, file, clock, kept = Windows(0), LogFile(tmp_path, 0), FIRST.ended, 0
    windows.started(FIRST)
    file.append(["begin", 1, 0, 1, 1, 1, [*COLUMNS], [10 * MS] + [0] * 10])
    tracemalloc.start()
    for batch in range(1000):
        some = []
        for k in range(1000):
            step = 20 * MS + (k * 7919) % MS + 80 * MS * (k % 97 == 0)
            clock += step
            some.append(interval(clock, step, loader=step // 10, forward=step // 5, epoch=k % 500 == 0))
        windows.take(some)
        windows.detailed.clear()
        windows.looked({"resident_bytes": 1e9 + batch, "cpu_s": float(batch)})
        if windows.long_enough(clock):
            assert file.append(windows.record())
            windows.next()
            kept += 1
    assert file.append(windows.record())
    assert tracemalloc.get_traced_memory()[1] < 5_000_000  # Of which most is the thousand steps of this test.
    tracemalloc.stop()
    log = read(tmp_path / "rank0.watch")
    assert len(log.windows) == kept + 1
    assert sum(window.of("step").count for window in log.windows) == 1_000_000
    assert log.length_ns == clock
    assert sum(window.of("step").sum_ns for window in log.windows) == clock - FIRST.ended
    assert log.damaged == 0
    assert file.bytes < 1_000_000


def test_of_the_first_steps_each_is_told() -> None:
    windows = Windows(0)
    windows.started(FIRST)
    windows.take([interval(k, k) for k in range(1, 61)])
    windows.take([interval(k, k) for k in range(61, 200)])
    assert [row[:2] for row in windows.detailed] == [[k, k] for k in range(1, DETAILED + 1)]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    file = LogFile(tmp_path, 0)
    assert file.append(["begin", 1, 0, 1, 1, 1, ["step"], [5]])
    before = (tmp_path / "rank0.watch").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        noise = [(k * k * 7919) % 104729 for k in range(400)]
        assert not file.append(["steps", [noise]])
        assert not file.replace_open(["steps", [noise]])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, earlier)
    assert (tmp_path / "rank0.watch").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.watch"]
    assert file.append(["end", "itself", 7, [2], None, []])
    assert read(tmp_path / "rank0.watch").length_ns == 7


def test_a_rank_has_one_log(tmp_path: Path) -> None:
    LogFile(tmp_path, 3)
    with pytest.raises(FileExistsError):
        LogFile(tmp_path, 3)


def test_steps_that_are_recorded_are_no_measure_of_others() -> None:
    """Of four steps of 10 ms two are followed by ones that took 100 ms while something was recorded."""
    windows = Windows(0)
    windows.started(FIRST._replace(epoch=True))
    steps = [interval(20 * MS, 10 * MS), interval(30 * MS, 10 * MS), recorded(30 * MS, 130 * MS)]
    windows.take([*steps, recorded(130 * MS, 230 * MS), interval(240 * MS, 10 * MS), interval(250 * MS, 10 * MS)])
    found = windows.record(last=True)
    assert found[3] == 6
    assert columns(windows)["step"][:4] == [4, 40 * MS, 10 * MS, 10 * MS]
    assert columns(windows)["recording"][:4] == [2, 200 * MS, 100 * MS, 100 * MS]
    assert found[7] == [0, 0, [], {}]
    assert (found[8], found[9]) == ([], 1)  # How long the epoch would have been is not known.
