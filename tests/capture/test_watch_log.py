"""Steps put together in windows, the files that they are written to, and what befalls a watched run: a full disk,
clocks that are set, children that train, very many steps.
"""

import resource
import signal
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.capture.agent.watch.log import Figures, Log, LogFile
from diagnose.capture.agent.watch.step_times import Interval, recorded
from diagnose.capture.agent.watch.windows import COLUMNS, DETAILED, Windows
from diagnose.facts.watched.log import steps_of
from diagnose.source.run_log import read
from diagnose.watched.assembly import parts
from tests.capture.scripts import STEP, plain, script
from tests.exhaustive import some_of

pytest.importorskip("torch")

MS = 1_000_000


def watch(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return plain(folder, "-m", "diagnose", "watch", "-q", "--no-analyze", "-o", out, "train.py")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], check=False, stderr=-3)
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", folder], check=True)


FULL = """
for at in range(800):
    loss = step()
    time.sleep(0.005)
    if at == 400:
        with open("disk/full", "wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError:
                pass
    if at == {freed}:
        os.remove("disk/full")
print(loss.hex())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("freed", some_of([-1, 700], [-1]), ids=["to the end", "for a while"])
def test_a_disk_that_is_full(tmp_path: Path, disk: Path, freed: int) -> None:
    script(tmp_path, STEP + FULL.format(freed=freed))
    alone = plain(tmp_path, "train.py")
    (disk / "full").unlink(missing_ok=True)
    done = watch(tmp_path, disk / "out")
    assert done.stdout == alone.stdout
    log = read(disk / "out" / "rank0.watch")
    assert log.damaged == 0
    assert sum(part.ns for part in parts(log)) == log.length_ns
    if freed > 0:
        assert (done.returncode, done.stderr) == (0, "")
        assert (steps_of(log), log.ended) == (800, "itself")
    else:  # The last page may take what is left to be written.
        said = f"Error: Cannot write to {disk / 'out'}: No space left on device. Its contents may be incomplete.\n"
        assert (done.returncode, done.stderr) in [(0, ""), (2, said)]


SET = """
began, clocks, set_by = time.perf_counter_ns(), (time.time, time.time_ns), 0
time.time, time.time_ns = lambda: clocks[0]() + set_by, lambda: clocks[1]() + set_by * 10**9
for at in range(400):
    if at in (0, 100, 200):
        set_by = {0: -3600, 100: 86_400, 200: -86_400}[at]
    step()
    time.sleep(0.005)
print(time.perf_counter_ns() - began)
"""


@pytest.mark.slow
def test_a_wall_clock_that_is_set(tmp_path: Path) -> None:
    script(tmp_path, STEP + SET)
    begun_ns, begun_unix_ns = time.perf_counter_ns(), time.time_ns()
    done = watch(tmp_path, tmp_path / "out")
    took_ns = time.perf_counter_ns() - begun_ns
    assert done.returncode == 0, done.stderr
    log = read(tmp_path / "out" / "rank0.watch")
    assert int(done.stdout) <= log.length_ns <= took_ns
    assert sum(part.ns for part in parts(log)) == log.length_ns
    assert (steps_of(log), log.ended, log.damaged) == (400, "itself", 0)
    assert log.started_unix_ns < begun_unix_ns - 3500 * 10**9  # As its clock was an hour late when it began.


CHILD = """
import multiprocessing

def train():
    {work}

if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=train)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", some_of(["fork", "spawn", "forkserver"], ["fork"]))
def test_a_child_that_trains(tmp_path: Path, method: str) -> None:
    work = (STEP + "for _ in range(40):\n    step()\n").replace("\n", "\n    ")
    script(tmp_path, CHILD.format(work=work, method=method))
    done = watch(tmp_path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    log = read(tmp_path / "out" / "rank0.watch")
    assert (steps_of(log), log.ended, log.damaged) == (40, "itself", 0)


LOADED = """
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, at):
        time.sleep(0.01)
        return torch.ones(4)
model.__class__ = type("Own", (torch.nn.Sequential,), {{"train": lambda self, data, *, rounds: None}})
for epoch in range(3):
    for batch in DataLoader(Slow(), batch_size=2, num_workers={workers}):
        step()
    list(DataLoader(range(100)))
model.train([], rounds=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_what_batches_take_is_told_of_the_loader_that_feeds_the_steps(tmp_path: Path, workers: int) -> None:
    script(tmp_path, STEP + LOADED.format(workers=workers))
    assert watch(tmp_path, tmp_path / "out").returncode == 0
    seen = read(tmp_path / "out" / "rank0.watch").loading
    assert seen is not None
    one, fetch_ns = seen.loader, seen.loader.fetch_ns or 0
    assert (seen.steps, seen.batches, one.dataset, one.batch_size, one.num_workers) == (4, 4, "Slow", 2, workers)
    assert fetch_ns >= 20 * MS  # Two items, each of which sleeps for 10 ms.


@pytest.fixture
def limits() -> Iterator[None]:
    """Those of this process, as they were before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, earlier)


@pytest.mark.exhaustive
@pytest.mark.parametrize("full", some_of([False, True], [True]), ids=["", "full disk"])
@pytest.mark.parametrize("steps", some_of(["300_000", "10_000_000"], ["300_000"]))
def test_very_many_steps_take_bounded_memory(tmp_path: Path, steps: str, full: bool, limits: None) -> None:
    """As fast as they can be told, by the thread that trains and the one that writes."""
    wanted, clock = int(steps), 10 * MS
    first = Interval(clock, clock, *(0,) * 10)
    log = Log(tmp_path, 0, 1, 0, lambda: first._replace(ended=clock, step=0), Figures())
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    log.begin(first)
    tracemalloc.start()
    for at in range(1, wanted):
        step = 20 * MS + (at * 7919) % MS + 80 * MS * (at % 97 == 0)
        clock += step
        log.add(Interval(clock, step, 0, step // 10, *(0,) * 8, epoch=at % 500 == 0), [])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)
    log.end("itself", [])
    assert peak < 8_000_000  # Two thousand steps that wait to be put together are most of it.
    path = tmp_path / "rank0.watch"
    assert path.stat().st_size < 1_000_000
    found = read(path)
    assert (steps_of(found), found.length_ns, found.ended, found.damaged) == (wanted, clock, "itself", 0)
    assert sum(window.of("step").sum_ns for window in found.windows) == clock - first.ended


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


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, limits: None) -> None:
    file = LogFile(tmp_path, 0)
    assert file.append(["begin", 1, 0, 1, 1, 1, ["step"], [5]])
    before = (tmp_path / "rank0.watch").read_bytes()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    noise = [(k * k * 7919) % 104729 for k in range(400)]
    assert not file.append(["steps", [noise]])
    assert not file.replace_open(["steps", [noise]])
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
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
