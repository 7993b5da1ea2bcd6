"""What torch.compile does during the run."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.host.compiling import compiling
from tests.drawing import Drawing

REGION = "Torch-Compiled Region: "


def compiled() -> Drawing:
    """Three steps of 100 us; each calls 0/0, which after a graph break calls 1/0, and then 0/0 again."""
    draw = Drawing()
    for number in range(3):
        at = 100 * number
        draw.step(number, at, at + 99)
        draw.op("TorchDynamo Cache Lookup", at + 1, at + 3)
        draw.op(REGION + "0/0", at + 3, at + 40).op("## Call CompiledFxGraph abc ##", at + 5, at + 20)
        draw.launch("triton_poi_fused_add_0", (at + 6, at + 8), (at + 10, at + 30))
        draw.op("aten::item", at + 21, at + 24)
        draw.op("TorchDynamo Cache Lookup", at + 24, at + 25)
        draw.op(REGION + "1/0", at + 25, at + 39).op("## Call CompiledFxGraph def ##", at + 26, at + 30)
        draw.launch("ampere_sgemm_128x64_tn", (at + 27, at + 28), (at + 31, at + 41))
        draw.op(REGION + "0/0", at + 41, at + 50)
        draw.op("aten::add", at + 51, at + 55).launch("vectorized_elementwise", (at + 52, at + 53), (at + 60, at + 90))
    return draw


def test_regions_graph_breaks_and_lookups() -> None:
    found = compiling(compiled().facts())
    assert found.used
    assert found.region_calls == 3
    assert found.breaks_per_call == 0.5
    assert (found.lookups, found.lookup_ns, len(found.lookup_ids)) == (2, 3_000, 6)


def test_searches_that_find_nothing() -> None:
    """A search is missed if neither compiled code nor compiling follows before the next one."""
    assert compiling(compiled().facts()).missed == 0
    draw = compiled()
    for number in range(3):
        for at in (60, 70):
            draw.op("TorchDynamo Cache Lookup", 100 * number + at, 100 * number + at + 1)
    draw.op("_compile.compile_inner (dynamo_timed)", 173, 190)  # What the second search of step 1 leads to.
    assert compiling(draw.facts()).missed == 2  # 3 in the two used steps, rounded up.


def test_searches_of_another_thread_do_not_count_for_this_one() -> None:
    draw = Drawing()
    for number in range(3):
        at = 100 * number
        draw.step(number, at, at + 99).op("TorchDynamo Cache Lookup", at + 1, at + 2)
        draw.op(REGION + "0/0", at + 3, at + 9, tid=7)
    assert compiling(draw.facts()).missed == 1


def test_compiling_again_in_a_late_step() -> None:
    draw = compiled().op("_compile.compile_inner (dynamo_timed)", 150, 180)
    draw.op("backend_compile (dynamo_timed)", 155, 175)
    draw.op("Torch-Compiled Region: 0/2", 180, 181)
    draw.op("compile_fx.<locals>.bw_compiler (dynamo_timed)", 182, 184, tid=777)
    found = compiling(draw.facts())
    assert (found.compilations.total, found.compilations.numbers) == (2, (1,))
    assert found.compilations.total_ns == 32_000


def test_compilations_since_a_step() -> None:
    draw = compiled().op("_compile.compile_inner (dynamo_timed)", 56, 58)
    draw.op("_compile.compile_inner (dynamo_timed)", 150, 180).op("_compile.compile_inner (dynamo_timed)", 260, 270)
    made = compiling(draw.facts()).compilations
    assert (made.step.tolist(), made.in_steps.tolist()) == ([0, 1, 2], [False, True, True])
    assert (made.total, made.total_ns, made.numbers) == (2, 40_000, (1, 2))
    late = made.since(2)
    assert (late.ids.tolist(), late.total, late.total_ns, late.numbers) == (made.ids[2:].tolist(), 1, 10_000, (2,))
    assert made.since(3).total == 0


def test_compilations_in_no_step_are_not_late() -> None:
    draw = Drawing().launch("k", (0, 1), (2, 9)).op("_compile.compile_inner (dynamo_timed)", 3, 8)
    made = compiling(draw.facts()).compilations
    assert (made.total, made.total_ns, made.numbers, made.since(0).total) == (1, 5_000, (), 0)


def test_ops_that_run_uncompiled_between_graphs() -> None:
    # In region 0/0, after its graph: aten::item, for 3 us. aten::add is in no region.
    facts = compiled().op("aten::_local_scalar_dense", 121.5, 122).op("aten::mm", 106, 109).facts()
    found = compiling(facts)
    assert (found.between, found.between_ns) == (1, 3_000)
    assert facts.rank.spans["name"].iloc[found.between_ids].tolist() == ["aten::item"] * 3


def test_without_marks_of_graphs_no_op_is_known_to_run_uncompiled() -> None:
    found = compiling(Drawing().op(REGION + "0/0", 0, 20).op("aten::mm", 2, 10).launch("k", (3, 4), (5, 9)).facts())
    assert (len(found.between_ids), found.between, found.between_ns) == (0, 0, 0)


def test_compiling_before_the_used_steps_is_told_but_not_counted() -> None:
    found = compiling(compiled().op("_compile.compile_inner (dynamo_timed)", 56, 58).facts())
    assert (found.compilations.step.tolist(), found.compilations.total) == ([0], 0)


def test_kernels_that_only_inductor_writes_show_that_it_is_used() -> None:
    draw = Drawing().op("aten::add", 0, 9).launch("triton_red_fused_sum_1", (1, 2), (3, 5))
    assert compiling(draw.facts()).used
    draw = Drawing().op("aten::add", 0, 9).launch("create_flashinfer_kv_indices_triton", (1, 2), (3, 5))
    assert not compiling(draw.facts()).used


def test_without_device_or_host() -> None:
    assert compiling(Drawing().op("aten::mm", 0, 10).op(REGION + "0/0", 12, 20).facts()).used
    with pytest.raises(Missing, match="ops and annotations"):
        compiling(Drawing().launch("k", (0, 1), (2, 3)).facts())


def test_pieces_that_hold_nothing_but_fused_code() -> None:
    """A call of compiled code in three pieces; the graph of the second one runs a matrix product too."""
    draw = Drawing().op(REGION + "0/0", 0, 90)
    draw.op("## Call CompiledFxGraph a ##", 5, 20).launch("triton_poi_fused_add_0", (6, 7), (8, 19))
    draw.op(REGION + "1/0", 30, 80).op("## Call CompiledFxGraph b ##", 32, 50).op("aten::mm", 35, 45)
    draw.op(REGION + "2/0", 60, 79).op("## Call CompiledFxGraph c ##", 62, 70)
    draw.op("## Call CompiledFxGraph d ##", 100, 110).launch("triton_poi_fused_mul_0", (101, 102), (103, 109))
    facts = draw.facts()
    found = compiling(facts)
    names = facts.rank.spans["name"]
    assert [str(name)[24] for name in names.iloc[found.fused_ids]] == ["a", "c", "d"]  # d runs backward
    assert names.iloc[found.fused_work_ids].tolist() == ["triton_poi_fused_add_0", "triton_poi_fused_mul_0"]
    assert found.fused_pieces == 2
