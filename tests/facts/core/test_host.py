"""Who trains, what the training threads do, and which op or line asked."""

from diagnose.facts.core.host import HostActivity, asking_ops, enclosing_op, host_threads, host_time
from tests.drawing import MAIN, Drawing


def test_training_threads_are_the_marked_one_and_those_that_launch() -> None:
    draw = Drawing().step(0, 0, 10).launch("a", (1, 2), (3, 4)).step(1, 10, 90)
    draw.launch("b", (20, 21), (30, 40), tid=555).op("aten::copy_", 20, 60, tid=888)
    facts = draw.facts()
    tracks = facts.rank.tracks
    threads = host_threads(facts)
    assert tracks["thread"][threads.main] == str(MAIN)
    assert set(tracks["thread"][threads.training]) == {str(MAIN), "555"}


def test_parts_of_the_host_s_time_add_up_and_inner_activities_come_first() -> None:
    draw = Drawing().step(0, 0, 100).op("aten::x", 1, 2).step(1, 100, 200)
    draw.op("aten::to", 110, 150).call("cudaMalloc", 120, 130).call("cudaStreamSynchronize", 140, 145)
    draw.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 160, 180)
    draw.op("aten::stack", 162, 170)
    found = host_time(draw.facts())
    assert found.step_ns == 100_000
    assert {activity: ns for activity, ns in found.parts.items() if ns} == {
        HostActivity.ALLOCATION: 10_000,
        HostActivity.SYNC: 5_000,
        HostActivity.OPS: 25_000,
        HostActivity.LOADER: 20_000,
        HostActivity.PYTHON: 40_000,
    }


def test_a_collective_on_another_thread_is_a_wait_only_while_no_op_runs() -> None:
    draw = Drawing().step(0, 0, 100).op("aten::x", 1, 2).step(1, 100, 200)
    draw.op("aten::mm", 110, 130).span("user_annotation", "gloo:all_reduce", 120, 170, tid=42)
    parts = host_time(draw.facts()).parts
    assert parts[HostActivity.OPS] == 20_000
    assert parts[HostActivity.OTHER_RANK] == 40_000
    assert parts[HostActivity.PYTHON] == 40_000


def test_nobody_waits_for_gradients_once_the_optimizer_takes_its_step() -> None:
    """The thread that reduced them is through with its call 50 us later."""
    draw = Drawing().step(0, 0, 100).op("aten::x", 1, 2).step(1, 100, 200)
    draw.op("aten::mm", 110, 120).span("user_annotation", "gloo:all_reduce", 115, 190, tid=42)
    draw.span("user_annotation", "Optimizer.step#SGD.step", 140, 150).op("aten::add_", 142, 148)
    parts = host_time(draw.facts()).parts
    assert parts[HostActivity.OTHER_RANK] == 20_000
    assert parts[HostActivity.OPS] == 16_000
    assert parts[HostActivity.PYTHON] == 64_000


def test_the_enclosing_op_is_the_innermost_and_the_asking_op_the_outermost() -> None:
    draw = Drawing().op("aten::item", 0, 50).op("aten::_local_scalar_dense", 5, 45)
    draw.op("aten::elsewhere", 0, 60, tid=7).call("cudaStreamSynchronize", 10, 40).call("cudaStreamSynchronize", 55, 58)
    facts = draw.facts()
    names = facts.rank.spans["name"]
    calls = names.index[names == "cudaStreamSynchronize"].to_numpy()
    assert [names[op] if op >= 0 else None for op in enclosing_op(facts, calls)] == ["aten::_local_scalar_dense", None]
    assert [names[op] if op >= 0 else None for op in asking_ops(facts, calls)] == ["aten::item", None]
