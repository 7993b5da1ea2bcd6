"""What is said of a whole run, from logs that are written down here."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose.contracts.watched_run import RunPartKind
from diagnose.facts.watched.log import quantile_ns
from diagnose.reports import markdown, terminal, watched_run
from diagnose.synthetic.notation import DrawingError
from diagnose.synthetic.run_notation import run_of
from diagnose.trace.run_log import Column
from diagnose.trace.units import long_duration
from diagnose.watched.assembly import over_time, parts, rank_run
from diagnose.watched.assembly import watched_run as of_logs
from tests.watched.logs import MS, S, column, interval, log, recorded, windows, with_columns, with_gauges


def test_parts_add_up_to_the_run() -> None:
    (window,) = windows([10 * MS], steps=100)  # 1 s of steps.
    window = replace(
        with_columns(
            window,
            loader=column(100, 300 * MS),
            collection=column(2, 50 * MS),
            compilation=column(1, 150 * MS),
            evaluation=column(3, 600 * MS),
            save=column(2, 200 * MS),
            outside=column(1, 100 * MS),
        ),
        ended_ns=2 * S + 900 * MS,
    )
    last = {"step": 10 * MS, "evaluation": 40 * MS, "save": 20 * MS}
    found = parts(log((window,), last=last, length_ns=3 * S))
    assert {one.kind: (one.ns // MS, one.count) for one in found} == {
        RunPartKind.START: (1150, None),
        RunPartKind.EVALUATION: (640, 4),
        RunPartKind.TRAINING: (500, 100),
        RunPartKind.LOADER: (300, None),
        RunPartKind.SAVE: (220, 3),
        RunPartKind.OUTSIDE: (110, None),
        RunPartKind.COLLECTION: (50, None),
        RunPartKind.LOST: (30, None),
    }
    assert sum(one.ns for one in found) == 3 * S
    assert [one.ns for one in found] == sorted((one.ns for one in found), reverse=True)


def test_forward_passes_without_gradients_in_most_steps_are_part_of_them() -> None:
    (window,) = windows([10 * MS], steps=100)
    window = replace(with_columns(window, evaluation=column(100, 500 * MS)), ended_ns=2 * S + 500 * MS)
    found = {one.kind: one.ns for one in parts(log((window,)))}
    assert found == {RunPartKind.TRAINING: 1500 * MS, RunPartKind.START: S}


def test_a_quantile_is_in_its_bucket() -> None:
    # Buckets of 2^(48/16) = 8 to 8.35 ns and of 2^(64/16) = 16 to 16.7 ns.
    columns = [Column(3, 24, 8, 8, ((48, 3),)), Column(2, 32, 16, 16, ((64, 2),))]
    assert quantile_ns(columns, 0.5) == 8
    assert quantile_ns(columns, 0.99) == 16
    assert quantile_ns([Column(2, 5, 2, 3)], 0.5) is None


def test_stretches_of_the_run_add_up_to_it() -> None:
    some = with_gauges(windows([100 * MS] * 200), cpu_s=[float(k) for k in range(200)], temperature_c=[50.0] * 200)
    some = tuple(with_columns(one, loader=column(10, 300 * MS)) for one in some)
    found = over_time(log(some))
    assert len(found) == 96
    assert (found[0].began_ns, found[-1].ended_ns, sum(one.steps for one in found)) == (S, 201 * S, 2000)
    assert all(sum(one.parts.values()) == one.ended_ns - one.began_ns for one in found)
    # 200 windows of a second: a stretch has two or three, the last one ends with the 200th.
    assert found[0].parts == {RunPartKind.LOADER: 600 * MS, RunPartKind.TRAINING: 1400 * MS}
    assert (found[0].step_ns, found[-1].figures) == (100 * MS, {"cpu_s": 199.0, "temperature_c": 50.0})


def test_evaluation_in_most_steps_is_part_of_them_over_time_as_well() -> None:
    (window,) = windows([10 * MS], steps=100)
    window = replace(with_columns(window, evaluation=column(100, 500 * MS)), ended_ns=2 * S + 500 * MS)
    (found,) = rank_run(log((window,))).over_time
    assert found.parts == {RunPartKind.TRAINING: 1500 * MS}


@pytest.mark.parametrize("text", ["nothing", "100 steps of 20, lunch 8", "100 steps of 20 ms"])
def test_a_drawing_that_is_no_run_is_refused(text: str) -> None:
    with pytest.raises(DrawingError, match="is no line of a run"):
        run_of(text)


def test_the_sentence_adds_up_to_a_hundred_percent() -> None:
    (window,) = windows([10 * MS], steps=100)
    thirds = replace(with_columns(window, evaluation=column(1, S)), ended_ns=3 * S)
    run = rank_run(log((thirds,)))
    assert watched_run.headline(run) == (
        "3.00 s: training steps 33.4 %, evaluation 33.3 %, start-up and compilation 33.3 %"
    )


@pytest.mark.parametrize(
    ("ns", "text"),
    [(59 * S, "59.0 s"), (723 * S, "12 min 3 s"), (11_520 * S, "3 h 12 min"), (3_599_900 * MS, "1 h 0 min")],
)
def test_long_times_are_told_as_people_do(ns: int, text: str) -> None:
    assert long_duration(ns) == text


def test_a_run_that_was_killed_says_so() -> None:
    found = of_logs([log(windows([100 * MS] * 2), ended=None, damaged=2)])
    text = terminal.watched(found)
    assert "21 steps (counted by optimizer steps), killed or still running" in text
    assert "The log is damaged in 2 places; their contents are missing here." in text


def test_without_details_it_has_22_lines_at_most(tmp_path: Path) -> None:
    often = {"loader": 8 * MS, "collection": 9 * MS, "compilation": 9 * MS}
    pauses = {"evaluation": 2 * S, "evaluation_loader": S, "save": S, "between": S}
    some = [interval((30 + k // 50) * MS, **often, **(pauses if k % 100 == 99 else {})) for k in range(1000)]
    found = of_logs([recorded(tmp_path, some)])
    assert len(found.findings) > watched_run.MOST_IN_FULL
    for width in (80, 100):
        lines = terminal.watched(found, width).splitlines()
        assert len(lines) <= 22
        assert max(map(len, lines)) <= width
        assert any(line.startswith("1. ") for line in lines)
        assert lines[-1].startswith("Next: diagnose analyze ... --details")


def test_findings_are_told_alike_in_the_terminal_and_in_markdown() -> None:
    some = windows([100 * MS] * 10)
    some = tuple(replace(with_columns(one, save=column(1, S)), ended_ns=one.ended_ns) for one in some)
    found = of_logs([log(some, length_ns=31 * S)])
    text, page = terminal.watched(found, 100, details=True), markdown.watched(found)
    # 10 s of 31 s; half to 96 % of it would be saved, 90 % likely.
    assert "  1. Training stops while a checkpoint is saved  saves 9.0 s (5.0 s to 9.6 s), 29 %" in text
    assert "     10 checkpoints, one every 10 steps, 1.00 s each (up to 1.00 s): 10.0 s (32.3 % of the run)." in text
    assert "Saving: this fix alone, assumes a typical saving for this fix." in text
    assert "1. **Training stops while a checkpoint is saved** saves **9.0 s (5.0 s to 9.6 s), 29 %**" in page
