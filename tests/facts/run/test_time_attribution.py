"""Every moment of the step belongs to one row, and two recordings can be compared by them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import breakdown
from diagnose.facts.core.inputs import Tensor
from diagnose.facts.core.steps import steps
from diagnose.facts.run import time_attribution as module
from diagnose.facts.run.time_attribution import AttributedTime, Part, shapes_text, time_attribution
from diagnose.source import recording
from tests.drawing import Drawing, step_to_fill

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pinned -> Device)"


def told(facts: Facts) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for row in time_attribution(facts):
        key = row.part.value, row.op, row.name
        found[key] = found.get(key, 0) + row.ns
    return found


def test_a_moment_belongs_to_the_compute_that_began_first_else_to_communication_else_to_a_copy() -> None:
    draw = step_to_fill().op("aten::mm", 0.5, 2.5)
    draw.launch("gemm", (1, 2), (10, 30))
    draw.launch("add", (1.5, 1.6), (20, 35), stream=8)
    draw.launch(NCCL, (3, 4), (20, 50), stream=20)
    draw.launch(COPY, (5, 6), (40, 60), stream=30, cat="gpu_memcpy")
    found = told(draw.facts())
    assert found[("compute", "aten::mm", "gemm")] == 20_000
    assert found[("compute", "aten::mm", "add")] == 5_000
    assert found[("exposed_communication", "", NCCL)] == 15_000  # 35-50
    assert found[("exposed_copy", "", COPY)] == 10_000  # 50-60
    assert found[("compute", "", "last")] == 1_000
    assert sum(ns for (part, *_), ns in found.items() if part == "idle") == 49_000
    assert sum(found.values()) == 100_000


def test_idle_time_is_told_by_cause_and_line_and_work_by_its_op_s_shapes() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 60)
    shapes = {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"]}
    draw.frame("train.py(7): main", -10, 60).op("aten::mm", 45, 55, **shapes)
    draw.launch("gemm", (50, 51), (90, 100))
    rows = {row.part: row for row in time_attribution(draw.facts())}
    assert set(rows) == {Part.COMPUTE, Part.IDLE}
    work, idle = rows[Part.COMPUTE], rows[Part.IDLE]
    assert (work.kind, work.op, work.name, work.shapes) == ("gemm", "aten::mm", "gemm", "(8, 4) (4, 2)")
    assert (work.ns, work.calls) == (10_000, 1)
    assert (work.site.file, work.site.line) == ("train.py", 7)
    assert (idle.kind, idle.ns, idle.calls) == ("python", 90_000, 1)
    assert idle.site == work.site


def test_without_device_work_it_is_what_the_threads_do_and_ops_count_their_own_time() -> None:
    draw = Drawing().step(0, 0, 100).op("aten::x", 1, 2).step(1, 100, 200)
    draw.op("aten::linear", 110, 150).op("aten::mm", 120, 140).op("aten::mm", 150, 155)
    draw.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 160, 180)
    draw.op("aten::stack", 162, 170).step(2, 200, 300)
    rows = {(row.kind, row.op): (row.ns, row.calls) for row in time_attribution(draw.facts((1, 1)))}
    assert rows == {
        ("ops", "aten::linear"): (20_000, 1),
        ("ops", "aten::mm"): (25_000, 2),
        ("loader", ""): (20_000, 1),
        ("python", ""): (35_000, 3),
    }


def test_small_rows_are_put_together_by_op_and_nothing_is_lost() -> None:
    draw = Drawing().step(0, -50_000, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 60_000)
    draw.op("aten::mm", 0.5, 40)
    for number in range(4):
        draw.launch(f"gemm_{number}", (1 + number, 1.5 + number), (100 + 4 * number, 101 + 4 * number))
    draw.launch("last", (50, 51), (90_000, 100_000))
    small = [row for row in time_attribution(draw.facts()) if row.op == "aten::mm"]
    assert [(row.name, row.calls, row.ns) for row in small] == [("", 4, 4_000)]


def test_ops_whose_shapes_read_the_same_are_one_row() -> None:
    draw = step_to_fill()
    for start, dtype in ((10, "float"), (20, "double")):
        shapes = {"Input Dims": [[8, 4]], "Input type": [dtype]}
        draw.op("aten::relu", start / 10, start / 10 + 0.5, **shapes)
        draw.launch("relu", (start / 10 + 0.1, start / 10 + 0.2), (start, start + 10))
    rows = [row for row in time_attribution(draw.facts()) if row.op == "aten::relu"]
    assert [(row.shapes, row.calls, row.ns) for row in rows] == [("(8, 4)", 2, 20_000)]


def test_beyond_the_most_rows_the_smallest_are_told_by_kind_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    draw = step_to_fill().op("aten::mm", 0.5, 2)
    for name, start, end in (("gemm_a", 10, 40), ("gemm_b", 40, 45), ("gemm_c", 45, 49)):
        draw.launch(name, (1, 1.1), (start, end))
    rows = [row for row in time_attribution(draw.facts()) if row.kind == "gemm"]
    assert [(row.op, row.name, row.ns) for row in rows] == [("aten::mm", "gemm_a", 30_000), ("", "", 9_000)]


work = st.lists(
    st.tuples(st.sampled_from(["gemm", "add", NCCL, COPY]), st.integers(0, 99), st.integers(0, 40), st.integers(1, 3)),
    max_size=12,
)


@given(work)
def test_rows_add_up_to_each_part_of_the_breakdown(pieces: list[tuple[str, int, int, int]]) -> None:
    draw = step_to_fill()
    for name, start, length, stream in pieces:
        run = start, min(start + length, 100)
        draw.launch(name, (-5, -4), run, stream=stream, cat="gpu_memcpy" if name == COPY else "kernel")
    facts = draw.facts()
    whole, sums = breakdown(facts), dict.fromkeys(Part, 0)
    for row in time_attribution(facts):
        sums[row.part] += row.ns
    assert sums[Part.COMPUTE] == whole.compute_ns
    assert sums[Part.EXPOSED_COMMUNICATION] == whole.exposed_communication_ns
    assert sums[Part.EXPOSED_COPY] == whole.exposed_copy_ns
    assert sums[Part.IDLE] == whole.idle_ns


def test_shapes_are_read_as_text_and_bounded() -> None:
    matrix, row = Tensor((2, 3), "float"), Tensor((3,), "float")
    assert shapes_text(((matrix,), (), (row,))) == "(2, 3) (3,)"
    assert shapes_text(((matrix, row), (row,))) == "[(2, 3) (3,)] (3,)"
    assert len(shapes_text(((matrix,),) * 60)) == module.LONGEST


@pytest.mark.exhaustive
def test_rows_of_recorded_traces_add_up_to_their_mean_step(corpus: Path) -> None:
    traces = sorted(corpus.glob("kineto/*/*.json.gz"))
    assert traces
    for trace in traces:
        facts = Facts(recording.read(recording.find([trace]).ranks[0]), None)
        rows: tuple[AttributedTime, ...] = time_attribution(facts)
        assert sum(row.ns for row in rows) == steps(facts).mean_ns, trace.name
        assert all(row.ns > 0 for row in rows), trace.name
