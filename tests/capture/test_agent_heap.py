"""Memory that is fetched before a recording."""

import mmap
import platform
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from diagnose.capture.agent import recordings
from diagnose.capture.agent.place import Place
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.agent.session import Session
from tests.capture.scripts import profile

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
GLIBC = platform.libc_ver()[0] == "glibc"

FILLS = """
import torch
from diagnose.capture.agent import clocks, recordings
made = recordings.make_room({recorded}, {usual}, 4)
before = clocks.fetched_bytes()
kept = [torch.ones(300_000) for _ in range(64)]  # 77 MB
print(made, clocks.fetched_bytes() - before)
"""


def filled(recorded: int, usual: int = 0) -> tuple[int, int]:
    """What room was made, and what 77 MB of tensors took from the system after that."""
    run = [sys.executable, "-c", FILLS.format(recorded=recorded, usual=usual)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    made, fetched = map(int, done.stdout.split())
    return made, fetched


def fetch(size: int) -> None:
    """From the system, page by page: a huge page would count as one."""
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.write(b"x" * size)


@pytest.mark.skipif(not GLIBC, reason="only glibc is told what to keep")
def test_what_was_fetched_before_is_used() -> None:
    """Twice what four steps need, in blocks of 25.2 MB."""
    made, fetched = filled(31_000_000, 1_000_000)
    assert made == 10 * recordings.BLOCK_BYTES
    assert fetched < 20_000_000


@pytest.mark.parametrize(
    ("recorded", "usual"), [(recordings.LEAST_BYTES // 4 - 1, 0), (100_000_000, 20_000_000), (0, 0)]
)
def test_no_room_is_made_where_it_is_little_or_steps_fetch_memory_anyway(recorded: int, usual: int) -> None:
    assert recordings.make_room(recorded, usual, 4) == 0


def test_without_room_all_is_fetched() -> None:
    made, fetched = filled(0)
    assert made == 0
    assert fetched > 70_000_000


def test_not_more_than_a_part_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "free_bytes", lambda: 50_000_000)
    assert recordings.make_room(10_000_000_000, 0, 1) == 0


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "3000\n", "memory.current": "1000\n"}, 2000),
        ({"memory.max": "3000\n", "memory.current": "2000\n", "memory.stat": "anon 7\ninactive_file 500\n"}, 1500),
        ({"memory/memory.limit_in_bytes": "5000\n", "memory/memory.usage_in_bytes": "1000\n"}, 4000),
        ({"memory.max": "3000\n", "memory.current": "4000\n"}, 0),
        ({"a/memory.max": "250\n", "a/memory.current": "100\n", "../../../proc/self/cgroup": "0::/a/b\n"}, 150),
        ({"memory.max": "max\n", "memory.current": "1000\n"}, 6 << 20),
        ({}, 6 << 20),
    ],
)
def test_what_a_machine_and_its_control_group_leave(tmp_path: Path, files: dict[str, str], left: int) -> None:
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (groups | {"proc/meminfo": "MemFree: 9 kB\nMemAvailable:    6144 kB\n"}).items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert recordings.free_bytes(tmp_path) == left


@pytest.mark.skipif(not GLIBC, reason="only glibc is told what to keep")
def test_a_recording_that_took_memory_as_it_went_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where glibc keeps what is freed, records of the first recording part it, and 45 MB a step are fetched anew."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(recordings.LARGEST_THRESHOLD))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str((1 << 31) - 1))
    case = ["-m", "sample_traces.planted.launch.heads_one_by_one.make", "--level", "strong", "--steps", 1_000_000]
    rank = profile(tmp_path, *case).rank
    assert max(rank.unprofiled.fetched_bytes or 0, rank.timing.fetched_bytes or 0) < 10_000_000


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Whose recordings are thought to take memory as they go."""
    monkeypatch.setattr("diagnose.capture.agent.session.make_room", lambda *_: 1)
    Part(tmp_path).work.mkdir(parents=True)
    made = Session(Part(tmp_path), Plan(warmup=2, steps=3), Place(0, 1, 1))
    assert made.join()
    return made


def test_a_recording_that_took_more_memory_than_the_one_before_is_not_kept(session: Session) -> None:
    first, numbers = None, count()
    while "attribution" not in session.recordings.kept:
        if "timing" in session.recordings.kept:
            first = first or session.found["timing"]
            fetch(32_000_000)
        torch.ones(8).sum()
        assert not session.step_ended(next(numbers))
    assert session.found["timing"] == first
    session.stop()


def test_the_first_recording_stays_if_the_training_ends_during_the_second(session: Session, tmp_path: Path) -> None:
    recordings, numbers = session.recordings, count()
    while "timing" not in recordings.kept or recordings.open is None or recordings.open.clock.steps < 2:
        torch.ones(8).sum()
        assert not session.step_ended(next(numbers))
    first = session.found["timing"]
    session.stop()
    assert (session.found["timing"], list(recordings.kept)) == (first, ["timing"])
    assert (tmp_path / "rank0.trace.json.gz").is_file()
