"""What the operating system did with threads, from Nsight Systems' exports."""

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.host import host_time
from diagnose.facts.core.idle import idle
from diagnose.facts.host.python import python_pauses
from diagnose.source import ranks
from diagnose.trace.model import Rank
from tests.source.nsight import pid, read, synthetic

MS = 1_000_000
# The device idles from 1 to 6.1 ms, as the host launches late; the one step that is used is from 1 to 7 ms.
LATE = """
    2 steps of 6
    cpu  aten::mm 0-0.2
    gpu  sgemm 0.1-1 @0.1
"""


def system_of(rank: Rank) -> list[tuple[str, int, int]]:
    spans = rank.spans[rank.spans["kind"] == "system"]
    return list(zip(spans["name"].astype(str), spans["start_ns"].tolist(), spans["dur_ns"].tolist(), strict=True))


def test_calls_and_times_off_the_processor_of_the_launching_thread_are_read(tmp_path: Path) -> None:
    made = synthetic(LATE).system("poll", 1 * MS, 5 * MS).off_core(2 * MS, 4 * MS)
    assert system_of(read(made, tmp_path)) == [("poll", 1 * MS, 4 * MS), ("off the processor", 2 * MS, 2 * MS)]


def test_short_ones_those_of_helpers_and_those_of_other_times_are_not(tmp_path: Path) -> None:
    made = synthetic(LATE).system("write", 1 * MS, 1 * MS + 9_999).off_core(2 * MS, 2 * MS + 9_999)
    made.system("poll", 1 * MS, 5 * MS, thread=pid() | 77).off_core(1 * MS, 5 * MS, thread=pid() | 77)
    made.system("poll", 900 * MS, 905 * MS)
    rank = read(made, tmp_path)
    assert system_of(rank) == []
    assert int((rank.spans["start_ns"] + rank.spans["dur_ns"]).max()) < 20 * MS


def test_a_call_that_goes_on_when_the_recording_ends_lasts_until_then(tmp_path: Path) -> None:
    made = synthetic(LATE).system("poll", 11 * MS, 900 * MS)
    ((_, start, dur),) = system_of(read(made, tmp_path))
    assert (start, start + dur) == (11 * MS, 12 * MS)


def test_a_switch_whose_other_half_was_not_recorded_is_no_time_off(tmp_path: Path) -> None:
    made = synthetic(LATE)
    for at, on in ((1 * MS, 1), (2 * MS, 0), (3 * MS, 0), (4 * MS, 1), (5 * MS, 0)):
        made.add("SCHED_EVENTS", start=at, cpu=0, isSchedIn=on, globalTid=pid() | 100)
    assert system_of(read(made, tmp_path)) == [("off the processor", 3 * MS, 1 * MS)]


def test_a_device_that_waits_for_a_waiting_host_idles_because_of_that(tmp_path: Path) -> None:
    without = {one.cause: one.ns for one in idle(Facts(read(synthetic(LATE), tmp_path)))}
    facts = Facts(read(synthetic(LATE).system("poll", 1 * MS, 5 * MS).off_core(7 * MS, 11 * MS), tmp_path))
    found = {one.cause: one.ns for one in idle(facts)}
    assert without[TimeCause.PYTHON] == found[TimeCause.BLOCKED] > 0
    assert TimeCause.PYTHON not in found
    assert host_time(facts).parts[TimeCause.BLOCKED] == 4 * MS


def test_it_stays_a_pause_of_python(tmp_path: Path) -> None:
    (python,) = python_pauses(Facts(read(synthetic(LATE), tmp_path)))
    (waiting,) = python_pauses(Facts(read(synthetic(LATE).system("nanosleep", 1 * MS, 5 * MS), tmp_path)))
    assert (waiting.idle_ns, waiting.gaps) == (python.idle_ns, python.gaps)
    assert (python.waiting_ns, waiting.waiting_ns) == (0, 4 * MS)
    assert [pieces.total for _, pieces in waiting.times] == [pieces.total for _, pieces in python.times]


def test_what_a_call_of_cuda_does_within_counts_as_that_call(tmp_path: Path) -> None:
    text = "3 steps of 10\ncpu aten::mm 0-1 | device_sync 2-9\ngpu sgemm 0.5-8 @0.2 x1"
    alone = host_time(Facts(read(synthetic(text), tmp_path)))
    assert host_time(Facts(read(synthetic(text).system("poll", 3 * MS, 8 * MS), tmp_path))) == alone


@pytest.mark.parametrize("thread", [-(1 << 63), (1 << 63) - 1, None, "'; DROP TABLE StringIds"])
def test_hostile_rows_change_nothing(thread: object, tmp_path: Path) -> None:
    made = synthetic(LATE)
    for at in (-(1 << 63), (1 << 63) - 1, None, "soon"):
        made.add("OSRT_API", start=at, end=(1 << 63) - 1, globalTid=thread, nameId=1)
        made.add("SCHED_EVENTS", start=at, isSchedIn=7, globalTid=thread)
    assert system_of(read(made, tmp_path)) == []


def test_the_times_off_the_processor_of_a_real_file(corpus: Path) -> None:
    path = corpus / "nsight" / "saxpy-mpi-cuda_nsys_perlmutter0.sqlite"
    (file,) = ranks.find([path])
    rank = ranks.read(path, file.part)
    found = [one for one in system_of(rank) if one[0] == "off the processor"]
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as db:
        rows = db.execute(
            "SELECT start, isSchedIn, globalTid FROM SCHED_EVENTS WHERE globalTid IN"
            " (SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME) ORDER BY globalTid, start"
        ).fetchall()
        (zero,) = db.execute("SELECT MIN(start) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
    db.close()
    pairs = pairwise(rows)
    spans = rank.spans[rank.spans["kind"] != "system"]
    zero -= int(spans["start_ns"][spans["kind"].isin(["runtime", "driver"])].min())
    low, high = int(spans["start_ns"].min()) + zero, int((spans["start_ns"] + spans["dur_ns"]).max()) + zero
    off = [b[0] - a[0] for a, b in pairs if (a[1], b[1], a[2]) == (0, 1, b[2]) and low <= a[0] and b[0] <= high]
    assert found
    assert sorted(dur for _, _, dur in found) == sorted(dur for dur in off if dur >= 10_000)
