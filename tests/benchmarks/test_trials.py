"""Trials beside the truth: what is counted of them, which faults have one, and that results are kept one by one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("planted cases need tomllib, which came with Python 3.11", allow_module_level=True)

from benchmarks.planted_cases import Machine, Truth, cases
from benchmarks.trials import equal, planted, tables
from benchmarks.trials.__main__ import done, work
from benchmarks.trials.results import Claim, Equal, Harmful, Measured, Planted, published, write
from benchmarks.verdicts import Figure
from diagnose.advice.equal_runs import CPU
from diagnose.contracts.trials import Baseline, Range, Report, Trial
from diagnose.fixes.catalogue import parsed

MACHINE = Machine("a CPU", 2, 0.1, "2.13.0")
UNTRIED = Planted("case", "medium", "", "fused=True", "a_rule", None, False, "it needs an edit of the script")


def tried(measured: Figure | None, truth: Figure, step_ms: float = 10.0, same: bool = True, fault: str = "") -> Planted:
    return replace(
        UNTRIED,
        fault=fault,
        injection="patch:torch.optim(fused=True)",
        same_change=same,
        why="",
        verdict="keep" if measured and measured.low > 1 else "inconclusive",
        step_ns=step_ms * 1e6,
        predicted=Figure(1.5, 1.4, 1.6),
        measured=measured,
        truth=truth,
        true_step_ns=step_ms * 1e6 / 1.02,
        took_s=40.0,
    )


def healthy(step_ms: float, *verdicts: str, replayed: int = 0, wrong: int = 0) -> Equal:
    claims = tuple(Claim(verdict, "", 3, Figure(1.0, 0.98, 1.029)) for verdict in verdicts)
    return Equal(f"control{step_ms}", (step_ms * 1e6,) * 8, 1.5, claims, replayed, wrong)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_intervals_meet_where_they_have_a_value_in_common() -> None:
    truth = Figure(1.5, 1.4, 1.6)
    assert tables.overlaps(tried(Figure(1.3, 1.2, 1.4), truth))
    assert not tables.overlaps(tried(Figure(1.3, 1.2, 1.39), truth))
    assert not tables.overlaps(tried(Figure(1.8, 1.61, 1.9), truth))
    assert not tables.overlaps(tried(None, truth))


def test_a_verdict_is_contradicted_where_the_truth_lies_on_the_other_side() -> None:
    keep = tried(Figure(1.3, 1.2, 1.4), Figure(0.8, 0.7, 0.99))
    assert tables.contradicted(keep)
    assert not tables.contradicted(replace(keep, truth=Figure(0.8, 0.7, 1.0)))
    assert tables.contradicted(replace(keep, verdict="slower", truth=Figure(1.2, 1.01, 1.3)))
    assert not tables.contradicted(replace(keep, verdict="inconclusive"))


def test_an_error_is_a_share_of_the_truth() -> None:
    assert tables.error(Figure(1.8, 1.0, 2.0), Figure(1.5, 1.4, 1.6)) == pytest.approx(0.2)
    assert tables.error(None, Figure(1.5, 1.4, 1.6)) is None


def test_the_summary_counts_what_it_says() -> None:
    truth = Figure(1.5, 1.4, 1.6)
    rows = (
        UNTRIED,
        tried(Figure(1.65, 1.5, 1.8), truth, fault="a"),  # 10 % too much
        tried(Figure(1.2, 1.1, 1.21), truth, step_ms=4.9, fault="b"),  # does not meet it; 20 % too little
        tried(Figure(1.5, 0.9, 2.5), truth, step_ms=50.0, same=False, fault="c"),
    )
    harm = Harmful("case", "medium", "patch:gc.collect(every=1)", "slower", "", 1e7, Figure(0.6, 0.5, 0.7), truth)
    two = (healthy(4.0, "keep", "inconclusive", replayed=7, wrong=1), healthy(6.0, "no_gain", "slower", replayed=3))
    said = dict(cells(tables.summary(Measured(MACHINE, rows, (harm, replace(harm, verdict="no_gain")), two))))
    assert said == {
        "planted faults whose fix `try` can inject": "3 of 4",
        "verdict keep": "2 of 3",
        "verdicts that the truth contradicts": "1 of 5",
        "the interval meets the true one": "2 of 3",
        "... where the injection makes just the change of the switch": "1 of 2",
        "... where it makes another change, against the same fault": "1 of 1",
        "... where steps are under 5 ms": "0 of 1",
        "width of the interval, median": "20.0%",
        "width of the true interval, median": "14.3%",
        "error of the measured speed-up, median, same change": "15.0%",
        "error of the predicted speed-up, median, all": "0.0%",
        "step as it is, against the true one, median": "+2.0%",
        "harmful fixes reported as slower": "1 of 2",
        "trials of nothing": "4 on 2 healthy controls",
        "... that claim a gain": "1 of 4",
        "... that claim a loss": "1 of 4",
        "trials of nothing, steps under 5 ms": "2 on 1 healthy controls",
        "... that claim a gain, steps under 5 ms": "1 of 2",
        "... that claim a loss, steps under 5 ms": "0 of 2",
        "replayed without a limit of time: claims of either": "1 of 10",
        "a trial of one fix, steps of 30 to 70 ms, takes": "40 to 40 s (1 measured)",
        "an arm takes beyond its timed steps, median": "1.5 s",
    }


def test_the_tables_have_a_line_for_each() -> None:
    row = tried(Figure(1.65, 1.5, 1.8), Figure(1.5, 1.4, 1.6), same=False, fault="a")
    assert cells(tables.planted((UNTRIED, row))) == [
        [
            "`case`, medium, a",
            "`a_rule`",
            "`patch:torch.optim(fused=True)`",
            "fused=True",
            "10.0 ms",
            "1.50x (1.40 to 1.60)",
            "1.65x (1.50 to 1.80)",
            "1.50x (1.40 to 1.60)",
            "yes",
            "+10.0%",
            "keep",
            "40 s",
        ]
    ]
    other = replace(UNTRIED, fault="b", why="no finding names it")
    assert cells(tables.untried((UNTRIED, other, row, UNTRIED))) == [
        ["it needs an edit of the script", "2"],
        ["no finding names it", "1"],
    ]
    assert cells(tables.controls((healthy(6.0, "keep", "slower", "no_gain", "inconclusive", "no_gain"),))) == [
        ["`control6.0`", "6.00 ms", "8", "5.0%", "1", "1", "2", "1"]
    ]
    assert tables.machine(Measured(MACHINE)) == "Machine: a CPU, 2 cores, torch 2.13.0."


def test_a_trial_and_its_truth_make_a_row() -> None:
    trial = Trial(
        rule="a_rule",
        numbers=(2,),
        fix="Do it.",
        trial=("patch:torch.optim(fused=True)",),
        injected="AdamW at train.py:12: fused None -> True",
        predicted=Range(1.1, 1.2, 1.3),
        measured=Range(1.2, 1.25, 1.3),
        pairs=5,
        steps=71,
        losses="same",
        losses_compared=82,
        peak_bytes=None,
        warmup_s=None,
        pays_after_steps=None,
        verdict="keep",
        why="",
    )
    report = Report(
        tool_version="0.1.0",
        baseline=Baseline(Range(9e6, 1e7, 2e7), 0.03, 7),
        trials=(trial,),
        together=None,
        keep=("a_rule",),
        not_tried=(),
        notes=(),
        complete=True,
    )
    known = replace(UNTRIED, injection="patch:torch.optim(fused=True)", same_change=True, why="")
    made = planted.filled(known, report, Truth((150,), (100,), 1.5, 1.4, 1.6, MACHINE), 33.0)
    assert made == replace(
        known,
        verdict="keep",
        step_ns=1e7,
        steps=71,
        arms=12,
        noise_share=0.03,
        predicted=Figure(1.2, 1.1, 1.3),
        measured=Figure(1.25, 1.2, 1.3),
        truth=Figure(1.5, 1.4, 1.6),
        true_step_ns=150.0,
        took_s=33.0,
    )


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
    named = [*equal.HARMFUL.values(), *(one for case in cases() for one in case.injections)]
    assert len(named) > 10
    assert [one for one in named if parsed(one) is None] == []
    assert {case.name for case in cases()} >= set(equal.HARMFUL)


def test_controls_are_healthy_and_the_shortest_steps_come_first() -> None:
    found = equal.controls(cases())
    assert len(found) > 20
    assert all(one.case.is_control and not one.on_gpu for one in found)
    took = [equal._recorded_ns(one) for one in found]
    assert took == sorted(took)
    assert took[2] < tables.SHORT_NS


def test_arms_are_replayed_by_the_protocol() -> None:
    """Where every arm takes just as long, the interval has no width and holds 1."""
    assert [(one.verdict, one.pairs) for one in equal.replay((100.0,) * 26, CPU)] == [("no_gain", 3)] * 12
    # In every pair the second arm takes twice as long. Orders turn, so that no trial may claim that.
    drifting = equal.replay((100.0, 100.0, *(100.0, 200.0) * 12), CPU)
    assert [(one.verdict, one.pairs) for one in drifting] == [("inconclusive", 5)] * 12
    # If that turns with the order, it looks like a gain or a loss.
    turning = equal.replay((100.0, 100.0, *(100.0, 201.0, 200.0, 100.0) * 6), CPU)
    assert {one.verdict for one in turning} <= {"keep", "slower"}
    assert len(turning) == 12
    assert equal.replay((100.0,) * 25, CPU) == []


def test_results_are_kept_one_by_one_and_a_later_one_takes_the_place(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    assert published(path) == Measured()
    row, control = tried(Figure(1.65, 1.5, 1.8), Figure(1.5, 1.4, 1.6)), healthy(4.0, "keep")
    harm = Harmful("case", "medium", "patch:gc.collect(every=1)", "slower", "", 1e7, None, Figure(0.5, 0.4, 0.6))
    found = Measured(MACHINE).with_row(UNTRIED).with_row(control).with_row(harm).with_row(row)
    assert found == Measured(MACHINE, (row,), (harm,), (control,))
    write(found, path)
    assert published(path) == found
    assert [one.name for one in tmp_path.iterdir()] == ["measured.json"]


def test_what_could_not_be_tried_is_looked_at_again() -> None:
    row, control = tried(None, Figure(1.5, 1.4, 1.6), fault="a"), healthy(4.0, "keep")
    assert done(Measured(MACHINE, (UNTRIED, row), (), (control,))) == {row.key, control.key}


def test_work_is_what_is_asked_for() -> None:
    some = [
        case for case in cases() if case.name in ("one_worker_too_few", "healthy_autoencoder", "healthy_on_two_ranks")
    ]
    assert [key for key, _ in work(some, ("planted", "harmful", "equal"), ["strong"], 1)] == [
        ("one_worker_too_few", "medium", ""),
        ("one_worker_too_few", "strong", ""),
        ("one_worker_too_few", "patch:DataLoader(num_workers=1)"),
        "healthy_on_two_ranks",
    ]
