"""Who trains, what the training threads do, and which op or line asked."""

from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.host import asking_ops, enclosing_op, host_threads, host_time
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
        TimeCause.ALLOCATION: 10_000,
        TimeCause.SYNC: 5_000,
        TimeCause.OPS: 25_000,
        TimeCause.LOADER: 20_000,
        TimeCause.PYTHON: 40_000,
    }


def test_a_collective_on_another_thread_is_a_wait_only_while_no_op_runs() -> None:
    draw = Drawing().step(0, 0, 100).op("aten::x", 1, 2).step(1, 100, 200)
    draw.op("aten::mm", 110, 130).span("user_annotation", "gloo:all_reduce", 120, 170, tid=42)
    parts = host_time(draw.facts()).parts
    assert parts[TimeCause.OPS] == 20_000
    assert parts[TimeCause.OTHER_RANK] == 40_000
    assert parts[TimeCause.PYTHON] == 40_000


def test_nobody_waits_for_gradients_once_the_optimizer_takes_its_step() -> None:
    """The thread that reduced them is through with its call 50 us later."""
    draw = Drawing().step(0, 0, 100).op("aten::x", 1, 2).step(1, 100, 200)
    draw.op("aten::mm", 110, 120).span("user_annotation", "gloo:all_reduce", 115, 190, tid=42)
    draw.span("user_annotation", "Optimizer.step#SGD.step", 140, 150).op("aten::add_", 142, 148)
    parts = host_time(draw.facts()).parts
    assert parts[TimeCause.OTHER_RANK] == 20_000
    assert parts[TimeCause.OPS] == 16_000
    assert parts[TimeCause.PYTHON] == 64_000


def test_the_enclosing_op_is_the_innermost_and_the_asking_op_the_outermost() -> None:
    draw = Drawing().op("aten::item", 0, 50).op("aten::_local_scalar_dense", 5, 45)
    draw.op("aten::elsewhere", 0, 60, tid=7).call("cudaStreamSynchronize", 10, 40).call("cudaStreamSynchronize", 55, 58)
    facts = draw.facts()
    names = facts.rank.spans["name"]
    calls = names.index[names == "cudaStreamSynchronize"].to_numpy()
    assert [names[op] if op >= 0 else None for op in enclosing_op(facts, calls)] == ["aten::_local_scalar_dense", None]
    assert [names[op] if op >= 0 else None for op in asking_ops(facts, calls)] == ["aten::item", None]


def parts_of(draw: Drawing) -> dict[TimeCause, int]:
    return {activity: ns for activity, ns in host_time(draw.facts()).parts.items() if ns}


def test_time_after_the_last_and_before_the_first_record_of_the_host_is_not_recorded() -> None:
    """The device works from 0 to 400 us, the host is recorded from 100 to 200."""
    draw = Drawing().work("before", (0, 90)).op("aten::mm", 100, 130).launch("k", (110, 112), (120, 190))
    draw.op("aten::mm", 150, 200).launch("k", (160, 162), (200, 300)).work("after", (350, 400))
    assert parts_of(draw) == {
        TimeCause.LAUNCH: 4_000,
        TimeCause.OPS: 76_000,
        TimeCause.PYTHON: 20_000,
        TimeCause.HOST_NOT_RECORDED: 300_000,
    }


def test_a_step_s_marker_and_a_call_that_waits_are_records_of_the_host() -> None:
    draw = Drawing().step(0, 0, 100).launch("a", (10, 11), (20, 100)).step(1, 100, 150).op("aten::mm", 100, 110)
    draw.launch("b", (101, 102), (110, 300)).call("cudaDeviceSynchronize", 170, 301)
    assert parts_of(draw) == {
        TimeCause.LAUNCH: 1_000,
        TimeCause.OPS: 9_000,
        TimeCause.PYTHON: 60_000,
        TimeCause.SYNC: 130_000,
    }


def ops_stop(launched_in_ops: bool) -> Drawing:
    """Thirty launches from 0 to 300 us, in ops or not; thirty more without ops to 600; the device works all the time"""
    draw = Drawing()
    for k in range(60):
        if k < 30 and (launched_in_ops or k in (0, 29)):
            draw.op("aten::mm", 10 * k, 10 * k + 8)
        draw.launch("k", (10 * k + 2, 10 * k + 4), (10 * k + 4, 10 * k + 14))
    return draw


def test_between_launches_after_ops_stop_being_recorded_nothing_is_known_of_the_host() -> None:
    """The window begins with the first kernel, at 4 us."""
    found = parts_of(ops_stop(launched_in_ops=True))
    assert found[TimeCause.LAUNCH] == 118_000
    assert found[TimeCause.PYTHON] == 58_000
    assert found[TimeCause.OPS] == 178_000
    assert found[TimeCause.HOST_NOT_RECORDED] == 600_000 + 4_000 - 298_000 - 60_000


def test_launches_that_never_were_in_ops_do_not_tell_that_these_stopped() -> None:
    assert TimeCause.HOST_NOT_RECORDED not in {
        activity for activity, ns in parts_of(ops_stop(launched_in_ops=False)).items() if ns > 20_000
    }


def test_a_transfer_of_gloo_is_a_wait_only_while_its_thread_is_in_no_op() -> None:
    draw = Drawing().step(0, 0, 100).op("aten::x", 1, 2).step(1, 100, 200)
    draw.span("user_annotation", "gloo:recv", 110, 180)  # from when it was posted until it was waited for
    draw.op("aten::mm", 120, 150).op("aten::mm", 160, 190)
    parts = host_time(draw.facts()).parts
    assert parts[TimeCause.OPS] == 60_000
    assert parts[TimeCause.OTHER_RANK] == 20_000
    assert parts[TimeCause.PYTHON] == 20_000
