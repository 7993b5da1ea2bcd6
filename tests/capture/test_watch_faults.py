"""What befalls a watched run: a disk that is full, clocks that are set, children that train, very many steps."""

import resource
import signal
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.capture.agent.watch.figures import Figures
from diagnose.capture.agent.watch.log import Log
from diagnose.capture.agent.watch.step_times import Interval
from diagnose.facts.watched.log import steps_of
from diagnose.source.run_log import read
from diagnose.watched.assembly import parts
from tests.capture.scripts import STEP, plain, script
from tests.exhaustive import some_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

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


FULL = (
    STEP
    + """
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
)


@pytest.mark.parametrize("freed", some_of([-1, 700], [-1]), ids=["to the end", "for a while"])
def test_a_disk_that_is_full(tmp_path: Path, disk: Path, freed: int) -> None:
    script(tmp_path, FULL.format(freed=freed))
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


SET = (
    STEP
    + """
began, clocks, set_by = time.perf_counter_ns(), (time.time, time.time_ns), 0
time.time, time.time_ns = lambda: clocks[0]() + set_by, lambda: clocks[1]() + set_by * 10**9
for at in range(400):
    if at in (0, 100, 200):
        set_by = {0: -3600, 100: 86_400, 200: -86_400}[at]
    step()
    time.sleep(0.005)
print(time.perf_counter_ns() - began)
"""
)


def test_a_wall_clock_that_is_set(tmp_path: Path) -> None:
    script(tmp_path, SET)
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


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_that_trains(tmp_path: Path, method: str) -> None:
    work = (STEP + "for _ in range(40):\n    step()\n").replace("\n", "\n    ")
    script(tmp_path, CHILD.format(work=work, method=method))
    done = watch(tmp_path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    log = read(tmp_path / "out" / "rank0.watch")
    assert (steps_of(log), log.ended, log.damaged) == (40, "itself", 0)


@pytest.fixture
def limits() -> Iterator[None]:
    """Those of this process, as they were before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, earlier)


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
