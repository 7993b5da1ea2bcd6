"""Why the host waits for the device, and what that costs the device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.breakdown import IDLE_CAUSES, TimeCause
from diagnose.facts.core.host import api_calls
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.host.waits import HostWait, Sync, WaitReason, blocked_ns, blocking_launches, host_waits, syncs
from diagnose.source import ranks
from diagnose.trace.frames import Site
from tests.drawing import MAIN, Drawing, names, two_steps
from tests.source.nsight import synthetic

CHECK = "aten::_amp_foreach_non_finite_check_and_unscale_"
OTHER_THREAD = 101


def item(draw: Drawing, at: float, name: str = "aten::item", tid: int = MAIN) -> Drawing:
    """20 us: a read of 4 bytes through pageable memory, as torch did until 2.1."""
    draw.op(name, at, at + 20, tid).op("aten::_local_scalar_dense", at + 1, at + 19, tid)
    draw.copy("DtoH (Device -> Pageable)", (at + 2, at + 12), (at + 9, at + 11), 4, tid=tid)
    return draw.call("cudaStreamSynchronize", at + 13, at + 16, tid)


def only(draw: Drawing) -> HostWait:
    (found,) = host_waits(draw.facts())
    return found


def test_an_item_is_one_wait_with_its_calls_copy_line_and_the_idle_time_it_leaves() -> None:
    draw = two_steps().frame("/home/me/train.py(9): train", -100, 200)
    for at in (0, 100):
        draw.launch("gemm", (at + 1, at + 2), (at + 3, at + 38))
        item(draw, at + 30)  # The device is idle from 41, where the read ends, until `last` at 99.
    facts = draw.facts()
    (found,) = host_waits(facts)
    assert (found.reason, found.call) == (WaitReason.SCALAR_READ, "cudaStreamSynchronize")
    assert (found.asked_by, found.op) == ("aten::item", "aten::_local_scalar_dense")
    assert found.site == Site("/home/me/train.py", 9, "train")
    assert names(facts, found.ids) == ["cudaMemcpyAsync", "cudaStreamSynchronize"] * 2
    assert names(facts, found.op_ids) == ["aten::item"] * 4
    assert names(facts, found.work_ids) == ["Memcpy DtoH (Device -> Pageable)"] * 2
    assert (found.total_calls, found.steps_seen) == (2, 2)
    assert (found.blocked_ns, found.drained_idle_ns) == (13_000, 58_000)


@pytest.mark.parametrize(
    "around", ["aten::linalg_cholesky", "autograd::engine::evaluate_function: CheckpointFunctionBackward"]
)
def test_ops_that_launch_more_than_the_read_do_not_go_with_it(around: str) -> None:
    draw = two_steps()
    for at in (0, 100):
        draw.op(around, at + 1, at + 60).launch("gemm", (at + 2, at + 3), (at + 4, at + 30))
        item(draw, at + 30)
    facts = draw.facts()
    (found,) = host_waits(facts)
    assert found.asked_by == around
    assert names(facts, found.op_ids) == ["aten::item"] * 4


def copying(*ops: str, kind: str, size: int) -> Callable[[Drawing], object]:
    def draw_it(draw: Drawing) -> None:
        for depth, name in enumerate(ops):
            draw.op(name, 20 + depth, 50 - depth)
        draw.copy(kind, (30, 32), (31, 33), size).call("cudaStreamSynchronize", 34, 36)

    return draw_it


PINNED_READ, PINNED_WRITE = "DtoH (Device -> Pinned)", "HtoD (Pinned -> Device)"
TO = ("aten::to", "aten::_to_copy", "aten::copy_")
REASONS = {
    "if tensor": (copying("aten::is_nonzero", "aten::item", kind=PINNED_READ, size=1), WaitReason.SCALAR_READ),
    "a few numbers": (copying(*TO, kind=PINNED_READ, size=64), WaitReason.SCALAR_READ),
    "a tensor": (copying(*TO, kind=PINNED_READ, size=65), WaitReason.TENSOR_READ),
    "a mask": (copying("aten::index", "aten::nonzero", kind=PINNED_READ, size=8), WaitReason.DATA_DEPENDENT_SHAPE),
    "repeats": (
        copying("aten::repeat_interleave", "aten::item", kind=PINNED_READ, size=8),
        WaitReason.DATA_DEPENDENT_SHAPE,
    ),
    "an index on the host": (copying("aten::index", *TO, kind=PINNED_WRITE, size=8), WaitReason.HOST_TO_DEVICE),
    "pageable": (copying(*TO, kind="HtoD (Pageable -> Device)", size=9), WaitReason.HOST_TO_DEVICE),
    "ROCm names no direction": (
        lambda draw: draw.op("aten::item", 20, 50).launch(
            "Memcpy DtoD (Device -> Device)", (30, 35), (31, 33), api="hipMemcpyWithStream", cat="gpu_memcpy", bytes=1
        ),
        WaitReason.SCALAR_READ,
    ),
    "an op of a library": (
        lambda draw: draw.op("aten::conv2d", 20, 50).call("cudaEventSynchronize", 30, 35),
        WaitReason.OTHER,
    ),
    "a device": (lambda draw: draw.call("cudaDeviceSynchronize", 30, 35), WaitReason.EXPLICIT),
    "an event": (lambda draw: draw.call("cudaEventSynchronize", 30, 35), WaitReason.EXPLICIT),
    "a stream": (lambda draw: draw.op("aten::mm", 20, 25).call("hipStreamSynchronize", 30, 35), WaitReason.EXPLICIT),
}


@pytest.mark.parametrize(("what", "reason"), REASONS.values(), ids=REASONS)
def test_the_reason_of_a_wait(what: Callable[[Drawing], object], reason: WaitReason) -> None:
    draw = two_steps().op("aten::relu", 90, 91)
    what(draw)
    assert only(draw).reason is reason


def test_a_copy_of_another_op_is_not_what_a_synchronisation_waits_for() -> None:
    draw = two_steps().op("aten::to", 20, 40).op("aten::conv2d", 50, 70)
    draw.copy(PINNED_READ, (30, 32), (31, 33), 4).call("cudaStreamSynchronize", 60, 65)
    found = only(draw)
    assert (found.reason, found.work_ids.tolist()) == (WaitReason.OTHER, [])


def test_without_ops_nothing_says_that_a_synchronisation_was_explicit() -> None:
    draw = Drawing().launch("a", (0, 1), (2, 50)).call("cudaStreamSynchronize", 10, 51).launch("b", (60, 61), (62, 99))
    assert only(draw).reason is WaitReason.OTHER


def test_after_each_kernel_of_a_cuda_program_the_device_drains(tmp_path: Path) -> None:
    """20 kernels of 0.1 ms, each waited for: until the next one 0.09 ms pass. The last may be the recorder's own."""
    text = "cpu device_sync 0.03-0.125 x20 every 0.19\ngpu mine 0.02-0.12 @0.01 x20 every 0.19"
    path = tmp_path / "report.sqlite"
    synthetic(text).write(path)
    (found,) = host_waits(Facts(ranks.read(path)))
    assert (found.reason, found.total_calls) == (WaitReason.EXPLICIT, 19)
    assert found.drained_idle_ns == 19 * 90_000


def test_the_scalers_flag_is_the_last_read_before_the_optimizer() -> None:
    draw = two_steps().op(CHECK, 10, 12)
    item(draw, 20)  # The norm of the gradients, for the log.
    item(draw, 45).span("user_annotation", "Optimizer.step#AdamW.step", 66, 70)
    item(draw, 47, tid=OTHER_THREAD)
    item(draw, 110)  # The loss of the second step, which has no check.
    facts = draw.facts()
    start = facts.rank.spans["start_ns"].to_numpy()
    found = {wait.reason: wait for wait in host_waits(facts)}
    zero = start[found[WaitReason.SCALER].ids[0]] - 47_000
    assert (start[found[WaitReason.SCALER].ids] - zero).tolist() == [47_000, 58_000]
    # The other thread launches nothing but the copy, so it is a training thread too.
    assert (start[found[WaitReason.SCALAR_READ].ids[::2]] - zero).tolist() == [22_000, 49_000, 112_000]


def test_without_the_optimizers_mark_the_scalers_flag_is_the_first_read() -> None:
    draw = two_steps().op(CHECK, 10, 12).op(CHECK, 13, 14)
    item(draw, 20)
    item(draw, 45)
    assert {wait.reason: wait.total_calls for wait in host_waits(draw.facts())} == {
        WaitReason.SCALER: 1,
        WaitReason.SCALAR_READ: 1,
    }


def test_after_the_scalers_update_reads_are_the_programs() -> None:
    draw = two_steps().op(CHECK, 10, 12).op("aten::_amp_update_scale_", 30, 32)  # A fused optimizer reads no flag.
    assert only(item(draw, 40)).reason is WaitReason.SCALAR_READ


def test_a_free_is_a_wait_if_the_device_was_busy_until_it_returned() -> None:
    draw = two_steps().launch("gemm", (1, 2), (3, 60)).call("cudaFree", 20, 61).call("cudaFree", 70, 75)
    draw.launch("gemm", (101, 102), (103, 180)).call("cudaFree", 110, 120)
    found = only(draw)
    assert (found.reason, found.total_calls, found.blocked_ns) == (WaitReason.ALLOCATOR, 1, 20_500)
    # The first free is over at 61, the device idle from 60 to 99; the free is less than half of that.
    assert found.drained_idle_ns == 0


def test_idle_time_that_a_free_fills_is_charged_to_it() -> None:
    draw = two_steps().launch("gemm", (1, 2), (3, 60)).call("cudaFree", 20, 95)
    assert only(draw).drained_idle_ns == 19_500  # 60 to 99 in one of two steps.


def test_the_profilers_own_synchronisations_are_left_out() -> None:
    assert host_waits(two_steps().op("aten::mm", 1, 2).call("cudaDeviceSynchronize", 201, 230).facts()) == ()
    unmarked = Drawing().op("aten::mm", 0, 9).launch("a", (1, 2), (3, 50)).call("cudaDeviceSynchronize", 20, 51)
    unmarked.launch("b", (60, 61), (62, 99)).call("cudaDeviceSynchronize", 70, 99)
    assert only(unmarked).ids.tolist() == [3]  # After the op, its launch and the kernel.
    flushed = two_steps().op("aten::mm", 1, 2).call("cudaDeviceSynchronize", 50, 60)
    flushed.call("cudaDeviceSynchronize", 201, 230).launch("flush", (235, 236), (240, 250))
    assert len(only(flushed).ids) == 1


def test_a_last_synchronisation_that_an_op_asked_for_is_the_programs() -> None:
    draw = Drawing().launch("a", (0, 1), (2, 90)).op("mylib::run", 10, 95).call("cudaDeviceSynchronize", 20, 91)
    assert only(draw).asked_by == "mylib::run"


def test_waits_of_steps_that_are_not_used_are_acted_on_but_not_counted() -> None:
    draw = item(item(two_steps(), -80), 110)
    draw.call("cudaDeviceSynchronize", -30, -29)
    found = only(draw)
    assert (found.reason, len(found.ids), found.total_calls, found.steps_seen) == (WaitReason.SCALAR_READ, 4, 1, 1)
    assert found.blocked_ns == 6_500


def test_without_device_work_nobody_knows_what_a_wait_costs() -> None:
    draw = Drawing().op("aten::item", 30, 50).call("cudaStreamSynchronize", 35, 40)
    with pytest.raises(Missing, match="device work"):
        host_waits(draw.facts())


def test_what_was_not_recorded_is_missing() -> None:
    with pytest.raises(Missing, match="runtime calls"):
        host_waits(Drawing().work("k", (0, 5)).op("aten::mm", 0, 2).facts())
    with pytest.raises(Missing, match="device work"):
        host_waits(Drawing().op("aten::mm", 0, 2).facts())


def test_launches_that_last_as_long_as_their_kernels() -> None:
    draw = two_steps()
    for at in (0, 100):
        draw.launch("gemm", (at + 1, at + 76), (at + 5, at + 75))
    found = blocking_launches(draw.facts())
    # 75 us of a call for 70 us of a kernel; `first` and both `last` are shorter than 50 us.
    assert len(found.call_ids) == 5
    assert (found.alike_share, found.depth_median, found.empty_queue_share) == (1.0, 0, 1.0)


def test_a_graph_of_kernels_is_no_launch_to_compare() -> None:
    draw = two_steps().launch("a", (1, 60), (3, 58), api="cudaGraphLaunch")
    draw.work("b", (59, 90), correlation=draw.events[-1]["args"]["correlation"])
    with pytest.raises(Missing, match="kernels longer than 50 us"):
        blocking_launches(draw.facts())


WITH_CALLS = (
    *("hta/alexnet_a100_sync_events.json.gz", "hta/event_sync.json.gz", "hta/mi250_rocm62.json.gz"),
    *("hta/nccl_a100_rank0_of_2.json.gz", "hta/simple_a100_sync_events.json.gz"),
    *("param/dlrm_8_ranks/worker1.pt.trace.json.gz", "param/resnet.json.gz"),
    *("tensorboard/resnet50_autograd_0_workers.json.gz", "tracelens/h100_qwen05b.json.gz"),
    *("tracelens/mi300_resnet18.json.gz", "tracelens/sglang_decode_graphs.json.gz"),
)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_all_idle_time_after_a_sync_belongs_to_one_wait(corpus: Path, name: str) -> None:
    facts = Facts(ranks.read(corpus / "kineto" / name))
    found, gaps = host_waits(facts), idle_gaps(facts)
    after_sync = gaps.cause == IDLE_CAUSES.index(TimeCause.SYNC)
    total = int((gaps.gaps.ends - gaps.gaps.starts)[after_sync].sum())
    charged = sum(wait.drained_idle_ns for wait in found if wait.reason is not WaitReason.ALLOCATOR)
    first = facts.rank.spans["start_ns"].to_numpy()[api_calls(facts).ids].min()
    if first < steps(facts).start_ns and steps(facts).measure is Measure.WINDOW:  # Waits before it are not counted.
        assert charged <= total
    else:
        assert abs(charged - total / steps(facts).count) <= len(found)
    ids = np.concatenate([*(wait.ids for wait in found), np.empty(0)])
    assert len(np.unique(ids)) == len(ids)


def test_syncs_are_grouped_by_call_op_and_line() -> None:
    draw = Drawing().step(0, -20, 0).launch("first", (-10, -9), (-5, 0)).step(1, 0, 200)
    draw.frame("/home/me/train.py(9): train", 0, 200)
    for start in (10, 50):
        draw.op("aten::item", start, start + 30).call("cudaStreamSynchronize", start + 5, start + 25)
    draw.call("cudaDeviceSynchronize", 100, 107).call("cudaEventQuery", 120, 180)
    draw.copy("DtoH (Device -> Pageable)", (130, 133), (131, 133), 4)
    draw.copy("DtoH (Device -> Pinned)", (140, 150), (145, 149), 4)
    draw.launch("last", (190, 191), (199, 200))
    facts = draw.facts()
    line = Site("/home/me/train.py", 9, "train")
    assert syncs(facts) == (
        Sync("cudaStreamSynchronize", "aten::item", line, 2, 40_000),
        Sync("cudaDeviceSynchronize", "", line, 1, 7_000),
        Sync("cudaMemcpyAsync", "", line, 1, 3_000),
    )
    assert blocked_ns(facts) == 50_000


def test_without_runtime_calls_syncs_are_missing_not_none() -> None:
    with pytest.raises(Missing, match="runtime calls"):
        syncs(Drawing().work("k", (0, 5)).op("aten::mm", 0, 2).facts())
