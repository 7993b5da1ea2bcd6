"""The report of trials: what it says of a fix, and the sentence on what to keep."""

from functools import partial

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Baseline, Both, GpuState, NotTried, Numbers, Range, Report, Trial
from diagnose.facts.core.base import Facts, Missing
from diagnose.reports import markdown, terminal, trials
from diagnose.reports.html import cards, page
from diagnose.reports.html.cards import speed_ups, speed_ups_sentence
from tests.diagnoses import of_ranks
from tests.drawing import Drawing

WORKERS = Trial(
    rule="dataloader_starvation",
    numbers=(1,),
    fix="Load in worker processes.",
    trial=("patch:DataLoader(num_workers=4)",),
    injected="DataLoader at train.py:41: num_workers 0 -> 4",
    predicted=Range(1.3, 1.4, 1.5),
    measured=Range(1.2, 1.25, 1.31),
    pairs=3,
    steps=30,
    losses="same",
    losses_compared=42,
    peak_bytes=Both(300e6, 310e6),
    warmup_s=Both(2.0, 5.04),
    pays_after_steps=1200,
    verdict="keep",
    why="",
)
FUSED = replace(
    WORKERS, rule="unfused_optimizer", numbers=(2,), losses="rounding", measured=Range(1.01, 1.1, 1.2), predicted=None
)
BOTH = replace(WORKERS, rule=f"{WORKERS.rule} + {FUSED.rule}", numbers=(1, 2), measured=Range(1.4, 1.6, 1.8))
VOID = replace(
    WORKERS,
    injected=None,
    measured=None,
    pairs=0,
    losses=None,
    peak_bytes=None,
    warmup_s=None,
    verdict="not_injected",
    why="No DataLoader that gave batches has num_workers=4.",
)


def report(*some: Trial, together: Trial | None = None, notes: tuple[str, ...] = ()) -> Report:
    """Of a script whose step takes 80 ms."""
    return Report(
        tool_version="test",
        baseline=Baseline(Range(79e6, 80e6, 82e6), 0.012, 5),
        trials=some,
        together=together,
        keep=tuple(one.rule for one in some if one.verdict == "keep"),
        not_tried=(NotTried("scalar_syncs", 3, "Read the loss less often.", "it needs an edit of the script"),),
        notes=notes,
        complete=True,
    )


def test_a_fix_that_pays() -> None:
    """80 ms by 1.25 is 64 ms."""
    assert trials.render(report(WORKERS, notes=("The machine is busy.",)), details=True) == (
        "Baseline step time: 80.0 ms, 79.0 ms to 82.0 ms (5 runs, noise 1.2 %)\n"
        "\n"
        "1. dataloader_starvation: KEEP\n"
        "   fix        Load in worker processes.\n"
        "   injected   DataLoader at train.py:41: num_workers 0 -> 4\n"
        "   predicted  40 % faster (range 30 to 50 %)\n"
        "   measured   25 % faster (95 % interval 20 to 31 %), 3 pairs of runs of 30 steps\n"
        "   losses     identical for 42 steps\n"
        "   memory     300 MB without, 310 MB with\n"
        "   warm-up    2.0 s without, 5.0 s with; pays off after 1,200 steps\n"
        "\n"
        "Not tried:\n"
        "  3. scalar_syncs: it needs an edit of the script.\n"
        "\n"
        "The machine is busy.\n"
        "Keep 1 (dataloader_starvation): 80.0 ms -> 64.0 ms per step, 25 % faster (95 % interval 20 to 31 %); "
        "predicted 40 % faster.\n"
    )


def test_a_fix_that_was_not_made_says_why_and_no_number() -> None:
    text = trials.render(report(VOID), details=True)
    assert "1. dataloader_starvation: COULD NOT BE INJECTED\n" in text
    assert "because    No DataLoader that gave batches has num_workers=4.\n" in text
    assert "measured" not in text
    assert text.endswith("Keep the script as it is: no tried fix shows a gain.\n")


IN_BLOCKS = replace(
    FUSED,
    injected="AdamW: fused None -> True",
    measured_by="blocks",
    added=Range(1.02, 1.05, 1.08),
    on_top_of=(1,),
    outputs=Numbers(0.0, 0.0, "same"),
    updates=Numbers(1.5e-5, 8.8e-7, "rounding"),
    losses=None,
    peak_bytes=None,
    warmup_s=None,
    pays_after_steps=None,
)


def test_a_fix_that_was_turned_on_and_off_in_one_run() -> None:
    """It is told what it gains alone, and on top of others; and how far numbers of the same batch are apart."""
    apart = "differ by 8.8e-07 of their spread (max 1.5e-05), within rounding"
    assert dict(trials.rows(IN_BLOCKS)) == {
        "fix": "Load in worker processes.",
        "injected": "AdamW: fused None -> True",
        "measured": "10 % faster (95 % interval 1.0 to 20 %)",
        "on top": "5.0 % faster (95 % interval 2.0 to 8.0 %) on top of 1, 3 pairs of 30-step blocks in one run",
        "outputs": "bit-identical model outputs for the same batch",
        "updates": f"parameter updates in one step {apart}",
    }


def test_one_fix_in_one_run_and_in_separate_runs_says_one_thing() -> None:
    blocks = replace(IN_BLOCKS, added=None, on_top_of=())
    confirmed = replace(blocks, measured=Range(1.05, 1.25, 1.3), measured_by="runs", confirms=True)
    assert trials.conclusion(report(blocks, together=confirmed)) == (
        "Keep 2 (unfused_optimizer): 80.0 ms -> 64.0 ms per step, 25 % faster (95 % interval 5.0 to 30 %)."
    )
    undecided = report(blocks, together=replace(confirmed, measured=Range(0.9, 1.1, 1.3), verdict="inconclusive"))
    assert trials.conclusion(undecided) == (
        "Keep 2 (unfused_optimizer): 80.0 ms -> 72.7 ms per step, 10 % faster (95 % interval 1.0 to 20 %), in one run."
    )
    assert "2 in separate runs: NOT CONFIRMED YET\n" in trials.render(undecided, details=True)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Range(1.36, 1.6, 1.75), "60 % faster (95 % interval 36 to 75 %)"),
        (Range(0.79, 0.85, 0.92), "15 % slower (95 % interval 8.0 to 21 %)"),
        (Range(0.979, 1.003, 1.026), "0.3 % faster (95 % interval 2.1 % slower to 2.6 % faster)"),
        (Range(1.7, 2.1, 2.6), "2.10x faster (95 % interval 1.70x to 2.60x)"),
        (Range(1.5, 1.9, 2.4), "90 % faster (95 % interval 50 to 140 %)"),
    ],
)
def test_a_speed_up_is_a_percentage_and_a_factor_from_two_on(found: Range, said: str) -> None:
    assert trials.factors(found) == said


def test_of_several_fixes_what_they_bring_together_counts() -> None:
    names = "1 (dataloader_starvation) and 2 (unfused_optimizer)"
    assert trials.conclusion(report(WORKERS, FUSED, together=BOTH)) == (
        f"Keep {names}: 80.0 ms -> 50.0 ms per step, 60 % faster (95 % interval 40 to 80 %); predicted 40 % faster."
    )
    alone = f"Keep {names}: each is faster by itself. Together they are not confirmed yet."
    assert trials.conclusion(report(WORKERS, FUSED)) == alone
    slower = (
        "Keep only 1 (dataloader_starvation): together, 1 (dataloader_starvation) and 2 (unfused_optimizer) are slower."
    )
    assert trials.conclusion(report(WORKERS, FUSED, together=replace(BOTH, verdict="slower"))) == slower


def test_a_larger_batch_is_measured_by_the_sample() -> None:
    larger = replace(WORKERS, batch_factor=2, pays_after_steps=None)
    assert dict(trials.rows(larger))["measured"] == (
        "25 % faster (95 % interval 20 to 31 %) per sample (batch 2x as large), 3 pairs of runs of 30 steps"
    )
    assert "80.0 ms -> 64.0 ms for the same samples, " in trials.conclusion(report(larger))


def test_what_is_undecided_is_no_reason_to_leave_the_script_as_it_is() -> None:
    noisy = replace(FUSED, verdict="inconclusive", why="The budget ran out after 2 pairs.")
    said = "Undecided: 2 (unfused_optimizer)."
    assert trials.conclusion(report(noisy, VOID)) == said
    assert trials.conclusion(report(WORKERS, noisy)).endswith(f"; predicted 40 % faster. {said}")


def test_without_details_the_largest_come_first_in_25_lines_at_most() -> None:
    few = trials.render(report(FUSED, VOID, WORKERS, together=BOTH), width=80).splitlines()
    assert [line.split(".")[0].strip() for line in few[3:7]] == ["1 + 2", "1", "2", "1"]
    assert (
        few[4] == "  1. dataloader_starvation                  keep  25 % faster (95 % interval 20 to 31 %)"[:79] + "…"
    )
    assert few[6].endswith("could not be injected: No DataLoade…")
    many = trials.render(report(*[WORKERS, FUSED, VOID] * 9, together=BOTH, notes=("A note on the machine. " * 30,)))
    assert len(many.splitlines()) <= 25
    assert "  16 more fixes\n" in many


def test_nothing_tried() -> None:
    assert trials.render(replace(report(), baseline=None), details=True) == (
        "Not tried:\n  3. scalar_syncs: it needs an edit of the script.\n\nNo fix was tried.\n"
    )


def test_one_line_while_others_are_tried() -> None:
    assert trials.brief(WORKERS) == "dataloader_starvation: 25 % faster (95 % interval 20 to 31 %), keep"
    assert trials.brief(VOID) == "dataloader_starvation: could not be injected"


def test_what_a_gpu_did_stands_with_its_units() -> None:
    state = GpuState(sm_clock_mhz=Both(1980, 1965), temperature_c=None, power_w=Both(402.4, 610.6))
    assert dict(trials.rows(replace(WORKERS, gpu=state)))["GPU"] == (
        "1,980 MHz without, 1,965 MHz with; 402 W without, 611 W with"
    )


def test_markdown_for_a_pull_request() -> None:
    lines = markdown.tried(report(WORKERS, VOID, notes=("The machine is busy.",))).splitlines()
    measured = "25 % faster (95 % interval 20 to 31 %)"
    told = f"80.0 ms -\\> 64.0 ms per step, {measured}; predicted 40 % faster.**"
    assert lines[0] == f"**Keep 1 (dataloader\\_starvation): {told}"
    assert lines[2:6] == [
        "| Fix | Predicted | Measured | Losses | Verdict |",
        "|---|---|---|---|---|",
        f"| 1. dataloader\\_starvation | 40 % faster (range 30 to 50 %) | {measured} | identical for 42 steps | keep |",
        "| 1. dataloader\\_starvation | 40 % faster (range 30 to 50 %) |  |  | could not be injected |",
    ]
    assert "- injected: DataLoader at train.py:41: num\\_workers 0 -\\> 4" in lines
    assert "- 3. scalar\\_syncs: it needs an edit of the script." in lines
    assert lines[-1] == "The machine is busy."


def of_a_run(found: Report | None) -> Diagnosis:
    draw = Drawing().step(0, 0, 10).step(1, 10, 30)
    return replace(of_ranks(pipeline.present(Facts(draw.rank()), [])), trials=found)


def test_the_report_of_the_run_has_a_section_only_if_something_was_tried() -> None:
    said, nothing = of_a_run(report(WORKERS)), of_a_run(None)
    for render in (partial(terminal.render, details=True), partial(markdown.render, details=True), page.render):
        assert trials.TITLE in render(said)
        assert trials.TITLE not in render(nothing)
    assert 'id="panel-speed_ups"' in page.render(said)
    assert "25 % faster" in terminal.render(said, details=True)
    assert "  Measured: dataloader_starvation: 25 % faster (95 % interval 20 to 31 %), keep\n" in terminal.render(said)
    assert "Measured" not in terminal.render(nothing)


def test_what_trials_say_is_text() -> None:
    """Their file lies beside the trace, and may come from anywhere."""
    evil = replace(WORKERS, rule="<script>alert(1)</script>", fix="<img src=x>", injected="[bold]x")
    text = page.render(of_a_run(report(evil)))
    assert "<script>alert" not in text
    assert "<img" not in text
    text = markdown.tried(report(evil))
    assert text.count("<") == text.count("\\<") + text.count("<details><summary>1. &lt;script") * 2 + 2
    assert "\\<img src=x\\>" in text
    assert "[bold]x" in trials.render(report(evil), details=True)


def test_intervals_are_drawn_side_by_side() -> None:
    """Predicted 1.3 to 1.5 and measured 1.2 to 1.31 overlap; 1.6 to 1.8 and 1.3 to 1.5 do not."""
    slow = replace(FUSED, predicted=Range(1.3, 1.4, 1.5), measured=Range(0.8, 0.9, 0.95), verdict="slower")
    found = of_a_run(report(WORKERS, VOID, slow))
    predicted, other, measured, slower = speed_ups(found).data
    assert (predicted.x, measured.x, slower.x) == ((1.4,), (1.25,), (0.9,))
    assert measured.error_x.array == pytest.approx((0.06,))
    assert measured.error_x.arrayminus == pytest.approx((0.05,))
    assert [one.name for one in (predicted, other, measured, slower)] == ["predicted"] * 2 + ["measured"] * 2
    assert measured.y[0] < 0.5 < slower.y[0]
    assert speed_ups_sentence(found).startswith("1 of 2 predictions agree with what was measured")


def test_without_an_interval_nothing_is_drawn_and_the_page_says_so() -> None:
    with pytest.raises(Missing):
        speed_ups(of_a_run(report(VOID)))
    assert "a measured fix" in page.render(of_a_run(report(VOID)))
    assert cards.view(report(VOID)).fixes[0].verdict == "could not be injected"
