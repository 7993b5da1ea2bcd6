"""Trials beside the truth: what is counted of them, which faults have one, and that results are kept one by one."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("planted cases need tomllib, which came with Python 3.11", allow_module_level=True)

from benchmarks.planted_cases import Machine, cases
from benchmarks.trials import __main__ as whole
from benchmarks.trials import nothing, planted, tables
from benchmarks.trials.results import Found, Measured, Nothing, Runs, Tried, published, write
from benchmarks.verdicts import Figure
from diagnose.fixes.catalogue import parsed
from diagnose.statistics import CPU

MACHINE = Machine("a CPU", 2, 0.1, "2.13.0")
UNTRIED = Tried("case", "medium", "", "fused=True", "a_rule", None, False, "it needs an edit of the script")
TRUTH = Figure(1.5, 1.4, 1.6)


def found(measured: Figure | None, seconds: float = 40.0, verdict: str = "", pairs: int = 3) -> Found:
    by_interval = "keep" if measured and measured.low > 1 else "inconclusive"
    return Found(verdict or by_interval, "", pairs, measured, seconds)


def tried(
    runs: Figure | None, blocks: Figure | None = None, step_ms: float = 10.0, same: bool = True, fault: str = ""
) -> Tried:
    return replace(
        UNTRIED,
        fault=fault,
        injection="patch:torch.optim(fused=True)",
        same_change=same,
        why="",
        step_ns=step_ms * 1e6,
        predicted=Figure(1.5, 1.4, 1.6),
        blocks=found(blocks, 9.0) if blocks else None,
        runs=found(runs),
        short=found(runs, 12.0),
        truth=TRUTH,
        true_step_ns=step_ms * 1e6 / 1.02,
    )


def healthy(step_ms: float, *verdicts: str) -> Nothing:
    blocks = tuple(found(Figure(1.0, 0.98, 1.029), 8.0, verdict) for verdict in verdicts)
    return Nothing(f"control{step_ms}", step_ms * 1e6, blocks)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_intervals_meet_where_they_have_a_value_in_common() -> None:
    assert tables.overlaps(Figure(1.3, 1.2, 1.4), TRUTH)
    assert not tables.overlaps(Figure(1.3, 1.2, 1.39), TRUTH)
    assert not tables.overlaps(Figure(1.8, 1.61, 1.9), TRUTH)
    assert not tables.overlaps(None, TRUTH)


def test_a_verdict_is_contradicted_where_the_truth_lies_on_the_other_side() -> None:
    assert tables.contradicted("keep", Figure(0.8, 0.7, 0.99))
    assert not tables.contradicted("keep", Figure(0.8, 0.7, 1.0))
    assert tables.contradicted("slower", Figure(1.2, 1.01, 1.3))
    assert not tables.contradicted("inconclusive", Figure(1.2, 1.01, 1.3))


def test_the_summary_counts_what_it_says() -> None:
    rows = (
        UNTRIED,
        # 10 % too much; as a switch it meets the truth, and is 20 % too little.
        tried(Figure(1.65, 1.5, 1.8), blocks=Figure(1.2, 1.0, 1.5), fault="a"),
        # Does not meet the truth, and is 20 % too little; as a switch it is just right, and does not meet the runs.
        tried(Figure(1.2, 1.1, 1.21), blocks=Figure(1.5, 1.4, 1.54), step_ms=4.9, fault="b"),
        tried(Figure(1.5, 0.9, 2.5), step_ms=50.0, same=False, fault="c"),
    )
    slower = found(Figure(0.6, 0.5, 0.7), 12.0, "slower")
    harmful = replace(rows[1], fault="", blocks=slower, runs=slower, truth=Figure(0.6, 0.5, 0.7))
    missed = replace(harmful, fault="d", blocks=None, runs=found(None, 99.0))
    two = (healthy(4.0, "keep", "inconclusive"), healthy(6.0, "no_gain", "slower"))
    runs = Runs("control", 1, (1e7,) * 16, 1.5)
    said = tables.summary(Measured(MACHINE, rows, (harmful, missed), two, (runs,)))
    alone, by_way = said.split("\n\n")
    assert dict(cells(alone)) == {
        "planted faults whose fix `try` can inject": "3 of 4",
        "error of the predicted speed-up, median": "0.0%",
        "width of the true interval, median": "14.3%",
        "step as it is, against the true one, median": "+2.0%",
        "an equal run takes beyond its timed steps, median": "1.5 s",
    }
    assert {name: ways for name, *ways in cells(by_way)} == {
        "decided, where the truth is over 5 %": ["2 of 3", "3 of 5", "4 of 5"],
        "the interval holds the truth": ["3 of 3", "3 of 5", "2 of 5"],
        "verdicts that the truth contradicts": ["0 of 3", "0 of 5", "2 of 5"],
        "the interval meets the true one": ["2 of 2", "2 of 3", "2 of 3"],
        "... where the injection makes just the change of the switch": ["2 of 2", "1 of 2", "1 of 2"],
        "... where it makes another change, against the same fault": ["not measured", "1 of 1", "1 of 1"],
        "... where steps are under 5 ms": ["1 of 1", "0 of 1", "0 of 1"],
        "width of the interval, median": ["30.0%", "20.0%", "20.0%"],
        "error of the measured speed-up, median, same change": ["10.0%", "15.0%", "15.0%"],
        "a decided fix takes, with the start, median": ["10.5 s", "40.0 s", "12.0 s"],
        "... at most": ["12 s", "40 s", "12 s"],
        "harmful fixes reported as slower": ["1 of 1", "1 of 2", "0 of 2"],
        "trials of nothing": ["4 on 2 healthy controls", "8 on 1 healthy controls", "not measured"],
        "... that claim a gain or a loss": ["2 of 4", "0 of 8", "not measured"],
        "... of over 5 %": ["0 of 4", "0 of 8", "not measured"],
        "trials of nothing, steps under 5 ms": ["2 on 1 healthy controls", "not measured", "not measured"],
        "... that claim a gain or a loss, steps under 5 ms": ["1 of 2", "not measured", "not measured"],
        "... of over 5 %, steps under 5 ms": ["0 of 2", "not measured", "not measured"],
    }


def test_the_tables_have_a_line_for_each() -> None:
    row = tried(Figure(1.65, 1.5, 1.8), blocks=Figure(1.2, 0.9, 1.3), same=False, fault="a")
    row = replace(row, blocks=replace(row.blocks, why="Blocks differ by 9.0%.") if row.blocks else None)
    ways = ["1.20x (0.90 to 1.30)", "no", "inconclusive, 9 s: Blocks differ by 9.0%."]
    ways += ["1.65x (1.50 to 1.80)", "yes", "keep, 40 s", "1.65x (1.50 to 1.80)", "yes", "keep, 12 s"]
    truth = "1.50x (1.40 to 1.60)"
    assert cells(tables.planted((UNTRIED, row))) == [
        [
            "`case`, medium, a",
            "`a_rule`",
            "`patch:torch.optim(fused=True)`",
            "fused=True",
            "10.0 ms",
            "1.50x (1.40 to 1.60)",
            truth,
            *ways,
        ]
    ]
    no_switch = [["`case`, medium, a", "`patch:torch.optim(fused=True)`", "10.0 ms", truth, "-", "-", "-"]]
    assert [line[:7] for line in cells(tables.harmful((replace(row, blocks=None),)))] == no_switch
    other = replace(UNTRIED, fault="b", why="no finding names it")
    assert cells(tables.untried((UNTRIED, other, row, UNTRIED))) == [
        ["it needs an edit of the script", "2"],
        ["no finding names it", "1"],
    ]
    assert cells(tables.nothing((healthy(6.0, "keep", "slower", "no_gain", "inconclusive", "no_gain"),))) == [
        ["`control6.0`", "6.00 ms", "5.0%", "1", "1", "2", "1", "8 s"]
    ]
    assert cells(tables.runs((Runs("control", 1, (1e7,) * 16, 1.5),))) == [
        ["`control`", "10.0 ms", "0.0%", "0", "0", "8", "0", "16"]
    ]
    assert tables.machine(Measured(MACHINE)) == "Machine: a CPU, 2 cores, torch 2.13.0."


@pytest.mark.slow
def test_a_fault_is_tried_by_what_the_finding_of_it_says() -> None:
    """Of the recording that is kept, without running anything."""
    some = [
        case for case in cases() if case.name in ("optimizer_one_by_one", "heads_one_by_one", "three_faults_on_the_cpu")
    ]
    said = {target.key: planted.kept(target) for target in planted.targets(some, ())}
    assert {key: fix if isinstance(fix, str) else fix.trial for key, (_, fix) in said.items()} == {
        ("heads_one_by_one", "medium", ""): "it needs an edit of the script",
        ("optimizer_one_by_one", "medium", ""): "patch:torch.optim(fused=True)",
        ("three_faults_on_the_cpu", "medium", "loader"): "patch:DataLoader(num_workers=1)",
        ("three_faults_on_the_cpu", "medium", "logs"): "no finding names it",
        ("three_faults_on_the_cpu", "medium", "optimizer"): "patch:torch.optim(fused=True)",
    }


def test_every_injection_that_cases_and_harmful_fixes_name_is_one() -> None:
    named = [*nothing.HARMFUL.values(), *(one for case in cases() for one in case.injections)]
    assert len(named) > 10
    assert [one for one in named if parsed(one) is None] == []
    assert {case.name for case in cases()} >= set(nothing.HARMFUL)


def test_arms_are_replayed_by_the_protocol() -> None:
    """Where every arm takes just as long, what is known beforehand tells that nothing gains more than 5 %."""
    alike = nothing.replay((100.0,) * 16, CPU)
    assert {one.verdict for one in alike} == {"no_gain"}
    assert len(alike) == 8
    # In every pair the second arm takes twice as long. Orders turn, so that no trial may claim that.
    drifting = nothing.replay((100.0, 200.0) * 8, CPU)
    assert {one.verdict for one in drifting} == {"inconclusive"}
    # If that turns with the order, it looks like a gain or a loss.
    turning = nothing.replay((100.0, 201.0, 200.0, 100.0) * 4, CPU)
    assert {one.verdict for one in turning} <= {"keep", "slower"}
    assert nothing.replay((100.0,) * 15, CPU) == []


def test_results_are_kept_one_by_one_and_a_later_one_takes_the_place(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    assert published(path) == Measured()
    row, control, runs = tried(Figure(1.65, 1.5, 1.8)), healthy(4.0, "keep"), Runs("control", 1, (1.0,), 2.0)
    measured = Measured(MACHINE).with_row("planted", UNTRIED).with_row("nothing", control).with_row("runs", runs)
    measured = measured.with_row("harmful", row).with_row("planted", row)
    assert measured == Measured(MACHINE, (row,), (row,), (control,), (runs,))
    write(measured, path)
    assert published(path) == measured
    assert [one.name for one in tmp_path.iterdir()] == ["measured.json"]


def test_what_could_not_be_tried_is_looked_at_again() -> None:
    row, control = tried(None, fault="a"), healthy(4.0, "keep")
    measured = Measured(MACHINE, (UNTRIED, row), (), (control,))
    keys = [("planted", UNTRIED.key), ("planted", row.key), ("harmful", row.key), ("nothing", control.key)]
    missing = [("planted", UNTRIED.key), ("harmful", row.key)]
    assert [(part, key) for part, key in keys if whole.is_missing(measured, part, key)] == missing


def test_work_is_what_is_asked_for() -> None:
    some = [
        case for case in cases() if case.name in ("one_worker_too_few", "healthy_autoencoder", "healthy_on_two_ranks")
    ]
    assert [(part, key) for part, key, _ in whole.work(some, whole.PARTS, ["strong"], 1)] == [
        ("planted", ("one_worker_too_few", "medium", "")),
        ("planted", ("one_worker_too_few", "strong", "")),
        ("harmful", ("one_worker_too_few", "medium", "")),
        ("nothing", "healthy_on_two_ranks"),
        ("runs", "healthy_on_two_ranks"),
    ]


def test_what_does_nothing_is_measured_as_a_switch_that_no_op_reads() -> None:
    """Under it a training sees the number that it sets, and torch computes with as many threads as before."""
    script = "import torch; torch.set_num_threads(3); print(torch.get_num_threads(), torch._C.get_num_threads())"
    code = f"import sys; sys.argv = ['', 'timeit', '-n1', '-r1', {script!r}]"
    code += "; from benchmarks.trials.switch_of_nothing import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0] == "3 1"
