"""Reading logs of whole runs, whole and damaged."""

import random
from pathlib import Path

import pytest

from diagnose.capture.agent.watch import windows
from diagnose.capture.agent.watch.log import HEADER, MAGIC, VERSION, framed
from diagnose.facts.watched import log as sketch
from diagnose.source import recording, run_log
from diagnose.source.base import InputError
from diagnose.source.run_log import logs_in, read
from diagnose.trace.run_log import COLUMNS, Column, EpochTime, Gauge, OutlierStep, RunLog

NAMES = ["step", "loader", "save", "evaluation", "outside"]
BEGIN: list[object] = ["begin", 1, 0, 1, 99, 1_700_000_000_000_000_000, NAMES, [100, 10, 0, 20, 0]]


def window(number: int, began: int, epochs: list[list[int]] | None = None) -> list[object]:
    """Of ten steps of 8 ns each, two of which are for data, and 20 ns of evaluation."""
    columns = {"step": [10, 80, 8, 8, [48, 10]], "loader": [10, 20, 2, 2, []], "evaluation": [1, 20, 20, 20, []]}
    gauges = {"resident_bytes": [1, 5.5, 5, 6, 6]}
    outliers = [1, 30, [[3, 30, 2]], {"7": 2}]
    return ["window", number, 1 + 10 * number, 10, began, began + 100, columns, outliers, epochs or [], 3, gauges]


END: list[object] = ["end", "itself", 350, [30, 0, 0, 0, 0], "optimizer", ["model.pt"]]
WHOLE = [BEGIN, window(0, 120, [[0, 120, 9, 72, 18]]), window(1, 220), END]


def written(folder: Path, *records: list[object], rank: int = 0) -> Path:
    path = folder / f"rank{rank}.watch"
    path.write_bytes(b"".join(map(framed, records)))
    return path


def test_all_of_a_whole_log_is_read(tmp_path: Path) -> None:
    log = read(written(tmp_path, *WHOLE))
    assert (log.rank, log.world_size, log.steps_by, log.ended, log.length_ns) == (0, 1, "optimizer", "itself", 350)
    assert log.start == {"step": 100, "loader": 10, "save": 0, "evaluation": 20, "outside": 0}
    assert log.last == {"step": 30, "loader": 0, "save": 0, "evaluation": 0, "outside": 0}
    first, second = log.windows
    assert (first.first_step, first.steps, first.began_ns, first.ended_ns) == (1, 10, 120, 220)
    assert first.of("step") == Column(10, 80, 8, 8, ((48, 10),))
    assert first.of("save") == Column()
    assert (first.outliers, first.excess_ns, first.gaps) == (1, 30, ((7, 2),))
    assert (first.epochs, first.more_epochs) == ((EpochTime(0, 120, 9, 72, 18),), 3)
    assert first.longest == (OutlierStep(3, 30, 2),)
    assert first.gauges == {"resident_bytes": Gauge(1, 5.5, 5, 6, 6)}
    assert second.first_step == 11
    assert (log.files, log.damaged) == (("model.pt",), 0)


def test_what_newer_logs_tell_and_steps_one_by_one(tmp_path: Path) -> None:
    rows = ["steps", [[1, 8, 2, 0, 0, 0], [2, 9, 3, 0, 0, 0]]]
    short = window(0, 120, [[0, 120, 9, 72, 18, 7]])
    short[7] = [1, 30, [[3, 30]], {}]  # A row that lacks what it waited.
    log = read(written(tmp_path, BEGIN, rows, short, END))
    assert log.windows[0].epochs == (EpochTime(0, 120, 9, 72, 18, 7),)
    assert log.windows[0].longest == ()
    assert [(one["step"], one["loader"]) for one in log.first_steps] == [(8, 2), (9, 3)]


def test_a_log_that_is_cut_off_anywhere_has_what_was_whole(tmp_path: Path) -> None:
    ends = [0]
    for record in WHOLE:
        ends.append(ends[-1] + len(framed(record)))
    content = written(tmp_path, *WHOLE).read_bytes()
    path = tmp_path / "rank0.watch"
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        if length < ends[1]:
            with pytest.raises(InputError, match="its beginning is missing"):
                read(path)
            continue
        log = read(path)
        assert len(log.windows) == (length >= ends[2]) + (length >= ends[3])
        assert log.ended == ("itself" if length == ends[4] else None)


def test_what_is_damaged_is_passed_over(tmp_path: Path) -> None:
    content = bytearray(written(tmp_path, *WHOLE).read_bytes())
    content[len(framed(BEGIN)) + 30] ^= 0xFF  # In the first window.
    path = tmp_path / "rank0.watch"
    path.write_bytes(content)
    log = read(path)
    assert [one.first_step for one in log.windows] == [11]
    assert (log.ended, log.length_ns) == ("itself", 350)
    assert log.damaged > 0


def test_any_damage_is_borne(tmp_path: Path) -> None:
    content, path, chance = written(tmp_path, *WHOLE).read_bytes(), tmp_path / "rank0.watch", random.Random(0)
    for _ in range(300):
        some = bytearray(content)
        for _ in range(chance.randrange(1, 8)):
            some[chance.randrange(len(some))] = chance.randrange(256)
        path.write_bytes(some)
        try:
            log = read(path)
        except InputError:
            continue
        assert isinstance(log, RunLog)


def test_the_open_window_is_used_where_the_log_has_no_end(tmp_path: Path) -> None:
    path = written(tmp_path, BEGIN, window(0, 120))
    beside = tmp_path / "rank0.watch.open"
    beside.write_bytes(framed(["open", 333, [7, 0, 0, 3, 0], "backward", window(1, 220)]))
    log = read(path)
    assert (len(log.windows), log.length_ns, log.steps_by, log.last["evaluation"]) == (2, 333, "backward", 3)
    beside.write_bytes(framed(["open", 333, [7, 0, 0, 3, 0], "backward", window(0, 120)]))  # Closed since.
    assert (len(read(path).windows), read(path).last) == (1, {})


def test_windows_that_contradict_each_other_are_left_out(tmp_path: Path) -> None:
    more_than_there_is = window(1, 220)
    more_than_there_is[6] = {"step": [10, 101, 8, 8, []]}
    log = read(written(tmp_path, BEGIN, window(0, 120), more_than_there_is, window(2, 150), window(3, 320)))
    assert [one.began_ns for one in log.windows] == [120, 320]
    assert log.damaged == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (["begin", 2, 0, 1, 99, 5, NAMES, [1]], "has format 2, but this version reads 1"),
        (["begin", 1, -1, 1, 99, 5, NAMES, [1]], "its beginning is missing"),
        (["steps", "no rows"], "its beginning is missing"),
    ],
)
def test_what_is_no_log_of_this_format_is_refused(tmp_path: Path, record: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(written(tmp_path, record))


def test_a_record_that_unpacks_to_very_much_is_left_out(tmp_path: Path) -> None:
    bomb: list[object] = ["begin", 1, 0, 1, 99, 5, ["x" * 4000] * 5000, [1]]
    assert len(framed(bomb)) < 100_000
    with pytest.raises(InputError, match="its beginning is missing"):
        read(written(tmp_path, bomb))


def test_logs_are_found_in_the_order_of_ranks(tmp_path: Path) -> None:
    for rank in (10, 0, 2):
        written(tmp_path, BEGIN, rank=rank)
    (tmp_path / "rank1.watch.open").touch()
    assert [path.name for path in logs_in(tmp_path)] == ["rank0.watch", "rank2.watch", "rank10.watch"]
    assert logs_in(tmp_path / "nothing") == []


def test_a_folder_with_nothing_but_a_log_says_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "rank0.watch").write_bytes(b"")
    with pytest.raises(InputError, match="holds the log of a whole run, and no recorded steps"):
        recording.find([tmp_path])


def test_what_is_beyond_the_bounds_is_told_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, *WHOLE)
    assert read(path).damaged == 0
    monkeypatch.setattr(run_log, "MOST_RECORDS", 3)
    assert (read(path).damaged, read(path).ended) == (1, None)
    monkeypatch.setattr(run_log, "MOST_RECORDS", 100)
    monkeypatch.setattr(run_log, "MOST_FILE_BYTES", path.stat().st_size - 1)
    assert read(path).damaged == 1


def test_the_reader_knows_what_the_recorder_writes() -> None:
    assert {*windows.COLUMNS, "device"} == set(COLUMNS)
    assert (run_log.MAGIC, run_log.HEADER.format, run_log.VERSION) == (MAGIC, HEADER.format, VERSION)
    assert sketch.PER_OCTAVE == windows.PER_OCTAVE
