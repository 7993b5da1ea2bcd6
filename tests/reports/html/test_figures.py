"""Figures of the page: that they add up to what was drawn, say what is to be seen, and take names as text."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from msgspec.structs import replace

from diagnose.contracts import finding as contract
from diagnose.contracts.diagnosis import Diagnosis, RankSummary, StepTime
from diagnose.contracts.finding import Level, PricedSaving, RankedFinding, ReplayQuality, Together, Where
from diagnose.contracts.timeline import CollectiveBar, MemoryCurve, RooflineOp, RooflinePicture
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import Breakdown, TimeCause
from diagnose.facts.core.idle import IdleShare
from diagnose.facts.core.steps import Measure
from diagnose.replay.saving import Basis
from diagnose.reports.html import run_figures, step_figures, style, work_figures
from diagnose.trace.frames import Site
from tests.drawing import Drawing
from tests.reports.test_reports import of

Draw = Callable[[Diagnosis], go.Figure]
FIGURES: dict[str, tuple[Draw, Callable[[Diagnosis], str]]] = {
    name: (getattr(module, name), getattr(module, f"{name}_sentence"))
    for module, names in (
        (step_figures, ("step_bar", "idle_lines", "savings")),
        (work_figures, ("kernel_tree", "copies", "launches", "roofline")),
        (run_figures, ("communication", "ranks", "memory")),
    )
    for name in names
}
EVIL = ("</script><b>x", "a<b>(c&d)")


def training(op: str = "aten::mm") -> Drawing:
    """Three steps of 1 ms, of which the last two are used, from 950 us after their start on the host.
    In each the GPU waits 470 us, mostly for the loader, copies for 40 us, waits for 40 us though the work is queued,
    computes for 400 us, and communicates for the last 100 us of that and for 50 us more."""
    draw = Drawing(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}])
    for number in range(3):
        at = number * 1000
        draw.step(number, at, at + 1000)
        draw.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, at + 400)
        draw.copy("HtoD (Pinned -> Device)", (at + 400, at + 410), (at + 420, at + 460), 400_000)
        draw.op(op, at + 465, at + 495)
        draw.launch("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_x", (at + 470, at + 480), (at + 500, at + 900))
        draw.launch(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", (at + 485, at + 490), (at + 800, at + 950), stream=20
        )
    return draw


@pytest.fixture(scope="module")
def known() -> Diagnosis:
    return of(training())


@pytest.fixture(scope="module")
def cpu_only() -> Diagnosis:
    return of(Drawing().step(0, 0, 9).op("aten::mm", 1, 5).step(1, 9, 30).op("aten::mm", 10, 15))


def by_name(made: go.Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in made.data}


def test_the_step_bar_is_the_step(known: Diagnosis) -> None:
    made = step_figures.step_bar(known)
    assert {trace.name: trace.x[0] for trace in made.data} == {
        "compute, 40.0 %": 0.4,
        "exposed communication, 5.0 %": 0.05,
        "exposed copies, 4.0 %": 0.04,
        "data loading, 47.0 %": 0.47,
        "waiting for another stream, 4.0 %": 0.04,
    }
    assert made.layout.xaxis.range == (0, 1.0)
    assert step_figures.step_bar_sentence(known) == (
        "The GPU computes 40.0 % of the step; most of the rest (470 us) is data loading."
    )


def test_the_step_bar_of_very_short_parts_of_nothing_and_of_unknown_causes(known: Diagnosis) -> None:
    breakdown = Breakdown(1_000_000, 999_000, 1_000, 999_000, 0, 0, Measure.DEVICE)
    small = replace(known, breakdown=breakdown, idle=(IdleShare(TimeCause.SYNC, None, 1_000, 0.001, 2),))
    shown = {trace.marker.color: (trace.x[0], trace.showlegend) for trace in step_figures.step_bar(small).data}
    assert shown == {style.COMPUTE: (0.999, True), style.RED: (0.001, False)}
    empty = replace(known, breakdown=Breakdown(0, 0, 0, 0, 0, 0, Measure.WINDOW), idle=())
    for make in FIGURES["step_bar"]:
        with pytest.raises(Missing, match="time in these steps"):
            make(empty)
    unknown = step_figures.step_bar(replace(known, idle=None))
    assert by_name(unknown)["idle, 51.0 %"].x == (0.51,)


def test_without_a_gpu_the_step_bar_is_of_the_host(cpu_only: Diagnosis) -> None:
    """The used step takes 21 us, 5 of them in ops."""
    made = step_figures.step_bar(cpu_only)
    assert {trace.name: trace.x[0] for trace in made.data} == {
        "Python overhead, 76.2 %": 0.016,
        "op dispatch, 23.8 %": 0.005,
    }
    said = step_figures.step_bar_sentence(cpu_only)
    assert said == "The launching threads spend 76.2 % of the step on Python overhead."


def test_idle_lines_are_the_longest_and_named_by_line_or_cause(known: Diagnosis) -> None:
    site = Site("pack/train.py", 12, "main")
    idle = (IdleShare(TimeCause.SYNC, site, 3_000_000, 0.3, 4), IdleShare(TimeCause.LOADER, None, 1_000_000, 0.1, 2))
    found = replace(known, idle=idle)
    made = step_figures.idle_lines(found)
    assert made.data[0].x == (3.0, 1.0)
    assert made.data[0].marker.color == (style.RED, style.ORANGE)
    assert [note.text for note in made.layout.annotations] == [
        'pack/train.py:12 (main)<br><span style="font-size:10px">host synchronisation</span>',
        "3.00 ms",
        "data loading",
        "1.00 ms",
    ]
    assert step_figures.idle_lines_sentence(found) == (
        "The most idle time, 3.00 ms of 4.00 ms in the step, is at pack/train.py:12 (main): host synchronisation."
    )
    many = tuple(IdleShare(TimeCause.OPS, Site("a.py", k, "f"), 1000 - k, 0.1, 1) for k in range(40))
    assert len(step_figures.idle_lines(replace(known, idle=many)).data[0].x) == 12


def finding(
    title: str, likely_ns: int, added_ns: int | None, minor: bool = False, rank_order: int = 1
) -> RankedFinding:
    return RankedFinding(
        rule="r",
        code="RR01",
        title=title,
        kind=contract.Kind.FAULT,
        rank_order=rank_order,
        where=Where((0,), (1, 2)),
        evidence=(),
        saving=PricedSaving(likely_ns // 2, likely_ns, 2 * likely_ns, Basis.REPLAYED, added_ns, None),
        share_of_step=likely_ns / 1e6,
        confidence=contract.Confidence(Level.HIGH, "measured"),
        fixes=(),
        site=None,
        minor=minor,
        hidden=None,
        changes=(),
        spots=(),
        spot_count=0,
    )


def with_fixes(found: Diagnosis, *fixes: RankedFinding) -> Diagnosis:
    saved = sum(one.saving.after_above_ns or 0 for one in fixes if not one.minor)
    every = Together(0, saved, saved)
    return replace(found, findings=fixes, replay=ReplayQuality(1_000_000, 0.0, 0.0, every, every))


def test_savings_end_at_what_all_of_them_leave(known: Diagnosis) -> None:
    """1 ms - 300 us - 100 us = 600 us; what is minor does not count. The third would save 200 us alone."""
    minor = finding("B", 9_000, 4_000, minor=True, rank_order=2)
    fixes = finding("A", 300_000, 300_000), minor, finding("C", 200_000, 100_000, rank_order=3)
    found = with_fixes(known, *fixes)
    whole, taken = step_figures.savings(found).data
    assert whole.x == (1.0, 0.6)
    assert taken.x == (0.3, 0.1)
    assert taken.base == pytest.approx((0.7, 0.6))
    assert taken.hovertext[1] == "3. C<br>after those above: 100 us (10.0 %)<br>alone: 100 us to 400 us, likely 200 us"
    assert step_figures.savings_sentence(found).endswith(' The first, "A", saves 300 us.')
    # What was not replayed after the others takes nothing away.
    whole, taken = step_figures.savings(with_fixes(known, finding("A", 300_000, None))).data
    assert (whole.x, taken.x) == ((1.0, 1.0), (0.0,))


def test_the_tree_adds_up(known: Diagnosis) -> None:
    tree = work_figures.kernel_tree(known).data[0]
    assert dict(zip(tree.labels, tree.values.tolist(), strict=True)) == {
        "all kernels": 550_000,
        "gemm": 400_000,
        "communication": 150_000,
        "aten::mm": 150_000,
        "sm90_xmma_gemm_bf16bf16_bf1…": 400_000,
        "ncclDevKernel_AllReduce_Sum…": 150_000,
    }
    sums = dict.fromkeys(tree.ids, 0)
    for parent, value in zip(tree.parents, tree.values.tolist(), strict=True):
        if parent:
            sums[parent] += value
    inner = {one: value for one, value in zip(tree.ids, tree.values.tolist(), strict=True) if sums[one]}
    assert inner == {one: total for one, total in sums.items() if total}
    # Kernels that were left out are in it.
    tree = work_figures.kernel_tree(replace(known, kernels=(known.kernels or ())[:1])).data[0]
    values = dict(zip(tree.labels, tree.values.tolist(), strict=True))
    assert values["shorter kernels"] == 150_000
    assert values["all kernels"] == 550_000


def test_without_a_gpu_the_tree_is_of_ops(cpu_only: Diagnosis) -> None:
    tree = work_figures.kernel_tree(cpu_only).data[0]
    assert (tree.labels, tree.parents, tree.values.tolist()) == (("aten::mm",), ("",), [5000])
    assert work_figures.kernel_tree_sentence(cpu_only) == "Of 5.00 us in ops per step, 100.0 % go to aten::mm."


def test_copies_by_size_and_rate(known: Diagnosis) -> None:
    """400 kB in 40 us are 10 GB/s; an H100 is connected by PCIe 5, which has 63 GB/s."""
    copies, link = work_figures.copies(known).data
    assert (copies.name, copies.x.tolist(), copies.y.tolist()) == ("HtoD (pinned memory)", [400_000], [1e10])
    assert link.y == (63e9, 63e9)
    assert work_figures.copies_sentence(known) == (
        "The copies that take longest together, HtoD (pinned memory) of 400 kB, run at 10.0 GB/s, "
        "15.9 % of the link's 63.0 GB/s."
    )


def test_launches_are_drawn_where_they_are(known: Diagnosis) -> None:
    """The timeline begins at 950 us; the six launches are 450, 520 and 535 us later, and 1000 us after that again."""
    band, depth, delay = work_figures.launches(known).data
    assert depth.x == pytest.approx([0.45, 0.52, 0.535, 1.45, 1.52, 1.535], abs=0.01)
    assert depth.y.tolist() == [0, 0, 0, 0, 0, 0]
    assert delay.y.tolist() == [20, 30, 315, 20, 30, 315]
    assert (band.y + band.base).tolist() == depth.y.tolist()
    assert work_figures.launches_sentence(known) == (
        "The launch queue runs empty in 100.0 % of the 6 moments drawn; half of the time work starts within 30.0 us "
        "of its launch."
    )


def roofed(found: Diagnosis, name: str = "aten::mm") -> Diagnosis:
    ops = (RooflineOp(name, (64, -1, 32), "bf16", 4, 20_000, 2_000_000_000, 10_000_000, 1e14),)
    picture = RooflinePicture(ops, "H100 SXM", 2e12, {"bf16": 1e15})
    return replace(found, pictures=replace(found.pictures, roofline=picture))


def test_roofs_meet_where_memory_is_as_fast_as_arithmetic(known: Diagnosis) -> None:
    """2 GFLOP over 10 MB are 200 FLOP/B; 1 PFLOP/s over 2 TB/s are 500. 200 FLOP/B times 2 TB/s are 400 TFLOP/s."""
    found = roofed(known)
    slope, roof, ops = work_figures.roofline(found).data
    assert (slope.x, slope.y) == ((100.0, 500.0), (2e14, 1e15))
    assert (roof.x, roof.y) == ((500.0, 2000.0), (1e15, 1e15))
    assert (ops.x.tolist(), ops.y.tolist()) == ([200.0], [1e14])
    assert ops.hovertext[0].endswith("100 TFLOP/s, 25.0 % of the roof over it")
    assert work_figures.roofline_sentence(found) == (
        "The op that takes longest, aten::mm (64 x ? x 32), reaches 100 TFLOP/s, 25.0 % of the roof over it (H100 SXM);"
        " bytes are the least that can move: each operand once, by its shape."
    )


def test_collectives_are_hidden_and_exposed(known: Diagnosis) -> None:
    hidden, exposed = run_figures.communication(known).data
    assert (hidden.y.tolist(), exposed.y.tolist()) == ([0.1, 0.1], [0.05, 0.05])
    assert exposed.x.tolist() == [1, 2]
    assert run_figures.communication_sentence(known) == (
        "33.3 % of 300 us in 2 collectives of 2 steps is exposed; the longest exposed time is 50.0 us, in all_reduce."
    )


def test_only_the_longest_collectives_are_drawn_in_order_of_time(known: Diagnosis) -> None:
    """Of 100 that grow longer, the last 80."""
    bars = tuple(CollectiveBar("allreduce", 1000 * k, 10_000 + k, 0, None) for k in range(100))
    found = replace(known, pictures=replace(known.pictures, collectives=bars))
    hidden = run_figures.communication(found).data[0]
    assert (hidden.y * 1e6).round().astype(int).tolist() == list(range(10_020, 10_100))
    assert run_figures.communication_sentence(found) == "Compute hides all of 805 us in 80 collectives of 2 steps."


def several(found: Diagnosis, count: int, times_ns: Callable[[int], tuple[int, ...]]) -> Diagnosis:
    def one(rank: int) -> RankSummary:
        times = times_ns(rank)
        longest = max(times)
        part = Breakdown(longest, longest - 5, 5, longest - 12, 4, 3, Measure.DEVICE)
        return RankSummary(rank, StepTime(longest, longest, min(times), longest), part, times)

    return replace(found, ranks=tuple(map(one, range(count))))


def test_ranks_side_by_side(known: Diagnosis) -> None:
    found = several(known, 2, lambda rank: (1_000_000, 2_000_000 + 500_000 * rank))
    heat, *bars = run_figures.ranks(found).data
    assert heat.z.tolist() == [[1.0, 1.0], [2.0, 2.5]]
    assert heat.x == ("0", "1")
    assert {bar.name: bar.y for bar in bars} == {
        "compute": (1.999988, 2.499988),
        "communication": (4e-6, 4e-6),
        "copies": (3e-6, 3e-6),
        "idle": (5e-6, 5e-6),
    }
    assert run_figures.ranks_sentence(found) == (
        "Rank 1 is the slowest with a mean step of 2.50 ms, 25.0 % more than that of rank 0, the fastest here."
    )


def test_who_waits_for_the_others_is_said(known: Diagnosis) -> None:
    found = several(known, 3, lambda rank: (2_000_000, 2_000_000))
    assert run_figures.ranks_sentence(found) == "All ranks are equally fast, with a mean step of 2.00 ms."
    waited = [replace(one, waiting_ns=(0, 300_000, 80_000)[one.rank]) for one in found.ranks]
    assert run_figures.ranks_sentence(replace(found, ranks=tuple(waited))) == (
        "All ranks are equally fast, with a mean step of 2.00 ms;"
        " rank 1 waits longest for others to come to collectives, 300 us a step."
    )


def test_with_one_step_there_are_only_bars(known: Diagnosis) -> None:
    """And of many ranks the slowest. Rank k takes k us: of 100 ranks, 36 to 99."""
    made = run_figures.ranks(several(known, 100, lambda rank: (1000 * rank + 1000,)))
    assert [trace.type for trace in made.data] == ["bar"] * 4
    assert made.data[0].x == tuple(str(rank) for rank in range(36, 100))


def remembered(found: Diagnosis) -> Diagnosis:
    curve = MemoryCurve(0, (-500_000, 500_000), (1_000_000_000, 3_000_000_000), (-1, 4_000_000_000))
    return replace(found, pictures=replace(found.pictures, memory=(curve,)))


def test_memory_over_time_with_the_used_steps_shaded(known: Diagnosis) -> None:
    made = run_figures.memory(remembered(known))
    lines = by_name(made)
    assert lines["allocated"].x.tolist() == [-0.5, 0.5]
    assert lines["allocated"].y.tolist() == [1e9, 3e9]
    assert str(lines["reserved"].y.tolist()) == "[nan, 4000000000.0]"
    assert (made.layout.shapes[0].x0, made.layout.shapes[0].x1) == (0.0, 2.0)
    assert [shape.x0 for shape in made.layout.shapes[1:]] == [ns / 1e6 for ns in known.timeline.bounds_ns]
    said = run_figures.memory_sentence(remembered(known))
    assert said == "Tensors take up to 3.00 GB of GPU 0, while up to 4.00 GB are reserved."


def test_memory_that_comes_and_goes_within_a_piece_of_time_is_a_band(known: Diagnosis) -> None:
    curve = MemoryCurve(0, (0, 1_000_000), (300, 500), (600, 600), (100, 500))
    made = run_figures.memory(replace(known, pictures=replace(known.pictures, memory=(curve,))))
    least, most = made.data[:2]
    assert (least.y.tolist(), most.y.tolist(), most.fill) == ([100, 500], [300, 500], "tonexty")


LACKS = {
    **dict.fromkeys(("idle_lines", "copies", "launches", "roofline", "communication"), "device work"),
    "savings": "fixes worth 1 % of a step",
    "ranks": "several ranks",
    "memory": "memory events",
}


@pytest.mark.parametrize(("name", "what"), LACKS.items())
def test_what_a_run_without_a_gpu_lacks(name: str, what: str, cpu_only: Diagnosis) -> None:
    for make in FIGURES[name]:
        with pytest.raises(Missing) as raised:
            make(cpu_only)
        assert raised.value.what == what
        assert raised.value.how_to_record_it.endswith(".")


def test_shapes_are_asked_for_where_only_they_are_missing(known: Diagnosis) -> None:
    with pytest.raises(Missing, match="shapes: Record with record_shapes=True"):
        work_figures.roofline(known)


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_drawn_of_nothing(name: str) -> None:
    nothing = of(Drawing().span("unheard_of", "x", 0, 5))
    assert not nothing.conclusive
    for make in FIGURES[name]:
        with pytest.raises(Missing):
            make(nothing)


def hostile(evil: str) -> Diagnosis:
    found = of(training(op=evil))
    pictures = replace(found.pictures, collectives=(CollectiveBar(evil, 0, 10, 5, 7),))
    idle = (IdleShare(TimeCause.SYNC, Site(evil, 1, evil), 510_000, 0.51, 1),)
    found = with_fixes(replace(found, pictures=pictures, idle=idle), finding(evil, 300_000, 300_000))
    return several(remembered(roofed(found, evil)), 2, lambda rank: (1000, 2000))


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from texts(inside)


OURS = re.compile(r'<br>|<span style="font-size:10px">|</span>|&(amp|lt|gt);')


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("name", FIGURES)
def test_names_are_text(name: str, evil: str) -> None:
    found, (draw, sentence) = hostile(evil), FIGURES[name]
    said = list(texts(json.loads(draw(found).to_json())))
    assert [text for text in said if re.search("[<&]", OURS.sub("", text))] == []
    if name in ("idle_lines", "savings", "kernel_tree", "roofline", "communication"):
        assert any(style.plain(evil) in text for text in said)
        assert name == "kernel_tree" or evil in sentence(found)  # As it is: a sentence is no markup.


@pytest.mark.exhaustive
def test_every_real_trace_is_drawn_or_what_is_missing_is_said(
    corpus: Path, analyzed: Callable[[str], Diagnosis]
) -> None:
    folder = corpus / "kineto"
    paths = [path for path in sorted(folder.glob("*/*")) if "json" in path.name or path.is_dir()]
    drawn: set[str] = set()
    for path in paths:
        found = analyzed(f"kineto/{path.relative_to(folder)}")
        for name, (draw, sentence) in FIGURES.items():
            place = f"{path.relative_to(folder)}: {name}"
            try:
                made = draw(found)
            except Missing:
                with pytest.raises(Missing, match=r": .+\.$"):
                    sentence(found)
                continue
            said = sentence(found)
            assert len(re.findall(r"[.!?](?=\s|$)", said)) == 1, f"{place}: {said}"
            assert not re.search(r"\b(nan|(?<!setting )None|inf)\b", said), f"{place}: {said}"
            assert len(made.to_json()) < 150_000, place
            drawn.add(name)
    assert drawn == set(FIGURES)
