"""Numbers as people read them."""

from pathlib import Path

import numpy as np
import pytest

from diagnose.source import ranks
from diagnose.trace import units
from diagnose.trace.steps import repeated
from tests.drawing import Drawing


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (14_660, "14.7 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (222_390_791, "222 ms"),
        (1_240_000_000, "1.24 s"),
        (75_000_000_000, "75.0 s"),
        (4_000_000_000_000, "4,000 s"),
    ],
)
def test_durations_have_three_digits(ns: int, text: str) -> None:
    assert units.duration(ns) == text
    assert units.durations_ns(f"12 kernels, {text}; 3s") == pytest.approx([ns] if ns else [], rel=5e-3)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0"),
        (999, "1.0 us"),
        (9_960_000, "10 ms"),
        (14_660, "15 us"),
        (222_390_791, "222 ms"),
        (2_390_000, "2.4 ms"),
    ],
)
def test_estimates_have_two_digits(ns: int, text: str) -> None:
    assert units.about(ns) == text


def test_shares_never_show_zero_for_something() -> None:
    assert [units.share(part, 1000) for part in (0, 0.4, 0.5, 173, 1000)] == [
        "0.0 %",
        "<0.1 %",
        "0.1 %",
        "17.3 %",
        "100.0 %",
    ]
    assert units.share(1, 0) == "-"


def test_sizes_are_decimal() -> None:
    assert [units.size(count) for count in (0, 512, 46_700, 19_267_840, 2.63e9, 4e12)] == [
        "0 B",
        "512 B",
        "46.7 kB",
        "19.3 MB",
        "2.63 GB",
        "4.00 TB",
    ]


def test_bars_grow_by_eighths() -> None:
    assert units.bar(0.5, 1, 4) == "██"
    assert units.bar(0.28125, 1, 4) == "█▏"
    assert units.bar(0, 1, 4) == ""
    assert units.bar(1, 0, 4) == ""


def test_clipping_keeps_the_width() -> None:
    assert (units.clipped("abcdef", 4), units.clipped("abcd", 4)) == ("abc…", "abcd")
    assert (units.clipped_left("/a/b/c.py", 5), units.clipped_left("c.py", 5)) == ("…c.py", "c.py")


def test_counts_have_a_decimal_only_if_they_need_one() -> None:
    assert [units.number(count) for count in (0, 1325, 1.6, 1324.75, 0.05, 0.04)] == [
        "0",
        "1,325",
        "1.6",
        "1,324.8",
        "0.1",
        "<0.1",
    ]


def test_ranks_that_follow_each_other_are_one() -> None:
    assert [units.ranks(some) for some in ([3], [3, 0, 1, 2], [8, 0, 1], range(10_000))] == [
        *("rank 3", "ranks 0-3", "ranks 0-1, 8", "ranks 0-9999")
    ]


ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4> >(int)"
LAYER = ["gemm", "gelu", "gemm", "norm"]


def training(steps: int, optimizer: str = ADAM, layers: int = 6, pause: int = 50) -> Drawing:
    """Start-up, then steps of equal layers, a loss and an optimizer; a pause before each step. One launch in 10 us."""
    draw, at = Drawing(), 0
    for name in ["fill", "gemm", "fill", "copy"] * 5 + ([*LAYER * layers, "loss", "loss back", optimizer]) * steps:
        at += pause * (name == "gemm" and draw.events[-1]["name"] == optimizer) if draw.events else 0
        draw.launch(name, (at, at + 2), (at + 4, at + 9))
        at += 10
    return draw


def test_a_period_with_an_optimizer_is_a_step() -> None:
    rank = training(steps=5).rank()
    starts, launches = repeated(rank.spans, rank.links)
    assert launches == 4 * 6 + 3
    assert (
        np.diff(starts).tolist() == [27 * 10_000 + 50_000] * 4 or np.diff(starts).tolist() == [27 * 10_000 + 50_000] * 3
    )
    # They begin after the pause: with the first launch that follows an optimizer.
    first = rank.spans[rank.spans["start_ns"] == starts[1]]
    assert first["name"].astype(str).tolist() == ["cudaLaunchKernel"]
    before = rank.spans[(rank.spans["start_ns"] < starts[1]) & (rank.spans["kind"] == "kernel")]
    assert before["name"].iloc[-1] == ADAM
    assert rank.provenance.step_marker == "launches, which repeat every 27"
    assert [step.end_ns - step.start_ns for step in rank.steps] == np.diff(starts).tolist()


@pytest.mark.parametrize(
    "draw",
    [
        training(steps=1, layers=40),  # layers repeat, but update nothing
        training(steps=8, optimizer="no optimizer"),
        training(steps=2),
        Drawing().launch("gemm", (0, 1), (2, 3)),
        Drawing().op("aten::mm", 0, 10),
    ],
)
def test_what_is_no_period_of_steps(draw: Drawing) -> None:
    rank = draw.rank()
    assert repeated(rank.spans, rank.links)[1] == 0
    assert rank.steps == ()


def test_a_step_of_two_equal_halves_is_not_halved_by_its_layers() -> None:
    """Accumulating two micro-batches repeats the layers, and the optimizer steps once for both."""
    draw, at = Drawing(), 0
    for name in ([*LAYER * 4, "loss"] * 2 + [ADAM]) * 6:
        draw.launch(name, (at, at + 2), (at + 4, at + 9))
        at += 10
    rank = draw.rank()
    assert repeated(rank.spans, rank.links)[1] == 2 * 17 + 1


@pytest.mark.parametrize(
    ("name", "launches"),
    [("hta/resnet_v100_5_steps.json.gz", 870), ("param/linear.json.gz", 220), ("param/resnet.json.gz", 321)],
)
def test_periods_of_real_trainings_are_the_steps_that_they_mark(corpus: Path, name: str, launches: int) -> None:
    rank = ranks.read(corpus / "kineto" / name)
    starts, found = repeated(rank.spans, rank.links)
    kernels = rank.spans[rank.spans["kind"] == "kernel"]
    calls = rank.links[rank.links["to_id"].isin(kernels.index)].set_index("to_id")["from_id"]
    per_step = kernels.assign(call=calls).groupby("step")["call"].nunique().drop(-1, errors="ignore")
    assert found == launches == per_step.median()
    # The first marked step may warm up, and n starts bound n - 1 steps.
    assert 0 <= len(rank.steps) - (len(starts) - 1) <= 2
    within = [sum(step.start_ns <= start < step.end_ns for step in rank.steps) for start in starts]
    assert sum(within) >= len(starts) - 1
