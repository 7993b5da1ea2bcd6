"""Which collectives run, and how many are small; what DistributedDataParallel does around them."""

from typing import Any

import pytest

from diagnose.facts.communication.collectives import collective_table, small_collectives
from diagnose.facts.communication.ddp import DdpWork, ddp_overheads
from diagnose.facts.core.base import Missing
from tests.drawing import Drawing

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
PAIR = {"Process Group Ranks": "[0, 1]", "Group size": 2}


def told(operation: str, elements: int, dtype: str = "Float", out: int | None = None) -> dict[str, Any]:
    size = {"In msg nelems": elements, "Out msg nelems": elements if out is None else out}
    return {"Collective name": operation, "dtype": dtype, **size, **PAIR}


def reducing() -> Drawing:
    """Three steps of 1000 us: two big all-reduces, half hidden by compute, and one small all-gather."""
    draw = Drawing()
    for number in range(3):
        at = 1000 * number
        draw.step(number, at, at + 999).launch("gemm", (at + 1, at + 2), (at + 100, at + 300))
        draw.launch(NCCL, (at + 3, at + 4), (at + 200, at + 400), stream=20, **told("allreduce", 1 << 20))
        draw.launch(NCCL, (at + 5, at + 6), (at + 500, at + 600), stream=20, **told("allreduce", 1 << 20))
        gather = told("_allgather_base", 100, "BFloat16", out=200)
        draw.launch("ncclDevKernel_Generic(x)", (at + 7, at + 8), (at + 900, at + 1000), stream=20, **gather)
    return draw


def test_what_is_told_of_each() -> None:
    table = collective_table(reducing().facts())
    assert table.operation.tolist() == ["allreduce", "allreduce", "_allgather_base"] * 3
    assert table.bytes.tolist() == [4 << 20, 4 << 20, 400] * 3  # of the last 200 elements of 2 bytes
    assert (set(table.group_ranks), set(table.group_size), table.on_host.any()) == ({"[0, 1]"}, {2}, False)
    assert table.plain[2] == "allgatherbase"


def test_the_size_comes_from_the_op_around_the_launch_where_the_kernel_tells_none() -> None:
    draw = Drawing().op("c10d::allreduce_", 0, 20).op("record_param_comms", 1, 19, **told("allreduce", 10, "Half"))
    draw.span("user_annotation", "nccl:all_reduce", 2, 18).launch(NCCL, (3, 5), (30, 40))
    draw.op("record_param_comms", 21, 29, **told("wait", 0, "Byte"))
    table = collective_table(draw.facts())
    assert (table.operation.tolist(), table.bytes.tolist(), table.group_size.tolist()) == (["allreduce"], [20], [2])


def test_what_a_kernel_that_sends_and_receives_does_is_told_by_the_collective_that_launched_it() -> None:
    sends = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
    draw = Drawing().span("user_annotation", "nccl:all_to_all", 0, 20).launch(sends, (3, 5), (30, 40))
    draw.launch(sends, (50, 51), (60, 70))
    assert collective_table(draw.facts()).operation.tolist() == ["all_to_all", "send_recv"]


@pytest.mark.parametrize("arguments", [{}, told("allreduce", 10, "QInt4x7"), told("allreduce", 1 << 62)])
def test_an_unknown_size_is_not_zero(arguments: dict[str, Any]) -> None:
    facts = Drawing().launch(NCCL, (3, 5), (30, 40), **arguments).facts()
    table = collective_table(facts)
    assert (table.operation.tolist(), table.bytes.tolist()) == (["allreduce" if arguments else "all_reduce"], [-1])
    with pytest.raises(Missing, match="sizes of collectives"):
        small_collectives(facts)


def test_small_collectives() -> None:
    draw = reducing()
    for number in range(3):
        at = 1000 * number
        draw.launch(NCCL, (at + 9, at + 10), (at + 250, at + 260), stream=21, **told("allreduce", 1))
        draw.launch(NCCL, (at + 11, at + 12), (at + 800, at + 810), stream=21)
    found = small_collectives(draw.facts())
    assert (found.total_calls, found.calls, found.unknown_calls) == (10, 2, 1)


def test_collectives_on_the_host_are_none_of_the_device() -> None:
    draw = reducing()
    for at in (0, 1000, 2000):
        draw.span("user_annotation", "gloo:all_reduce", at + 30, at + 70, tid=555)
    found = small_collectives(draw.facts())
    assert (found.total_calls, found.calls, found.unknown_calls) == (8, 1, 0)


def test_a_megabyte_is_not_small() -> None:
    draw = Drawing().launch(NCCL, (0, 1), (2, 3), **told("allreduce", 1 << 18))
    assert small_collectives(draw.facts()).calls == 0
    draw.launch(NCCL, (4, 5), (6, 7), **told("allreduce", (1 << 18) - 1))
    assert small_collectives(draw.facts()).calls == 1


def test_nothing_to_look_at() -> None:
    with pytest.raises(Missing, match="device work"):
        small_collectives(Drawing().op("aten::mm", 0, 9).facts())
    found = small_collectives(Drawing().launch("gemm", (0, 1), (2, 3)).facts())
    assert (found.total_calls, found.calls, found.unknown_calls) == (0, 0, 0)


def forward() -> Drawing:
    """Two steps of a model with two buffers: packed, sent, unpacked; then the model's own ops; then the reducer's."""
    draw = Drawing()
    for at in (0, 1000):
        draw.step(at // 1000, at, at + 999).op("aten::randn", at + 1, at + 9)
        draw.span("user_annotation", "DistributedDataParallel.forward", at + 10, at + 300)
        draw.op("aten::flatten_dense_tensors", at + 20, at + 30).op("aten::cat", at + 21, at + 29)
        draw.launch("CatArrayBatchedCopy", (at + 22, at + 23), (at + 40, at + 45))
        draw.op("c10d::broadcast_", at + 30, at + 40).launch(
            "ncclDevKernel_Broadcast_RING_LL()", (at + 31, at + 32), (at + 50, at + 60)
        )
        draw.op("aten::unflatten_dense_tensors", at + 41, at + 50).op("aten::copy_", at + 50, at + 60)
        draw.launch("Memcpy DtoD (Device -> Device)", (at + 52, at + 53), (at + 62, at + 64), cat="gpu_memcpy")
        draw.op("aten::view", at + 61, at + 62).op("aten::conv2d", at + 70, at + 90)
        draw.launch("sgemm", (at + 72, at + 73), (at + 80, at + 400)).op("aten::copy_", at + 95, at + 99)
        draw.op("torch.distributed.ddp.reducer::search_unused_parameters", at + 301, at + 321)
        for k in range(2):
            draw.op("torch::distributed::reducer::mul_out", at + 330 + 20 * k, at + 340 + 20 * k, tid=777)
            draw.launch("mul", (at + 331 + 20 * k, at + 332 + 20 * k), (at + 400 + k, at + 401 + k), tid=777)
            draw.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", at + 500 + 20 * k, at + 506 + 20 * k, tid=777)
            draw.launch("copy", (at + 501 + 20 * k, at + 502 + 20 * k), (at + 600 + 50 * k, at + 602 + 50 * k), tid=777)
    return draw


def test_what_ddp_does_besides_reducing() -> None:
    facts = forward().facts()
    found = {ddp_overhead.work: ddp_overhead for ddp_overhead in ddp_overheads(facts)}
    names = facts.rank.spans["name"]
    buffers = found[DdpWork.BUFFER_BROADCASTS]
    assert names.iloc[buffers.ids].tolist() == 2 * [
        "aten::flatten_dense_tensors",
        "c10d::broadcast_",
        "aten::unflatten_dense_tensors",
        "aten::copy_",
    ]
    assert (buffers.host_ns, buffers.device_ns, len(buffers.work_ids)) == (39_000, 17_000, 6)
    into, out_of = found[DdpWork.COPIES_INTO_BUCKETS], found[DdpWork.COPIES_FROM_BUCKETS]
    assert (into.host_ns, into.device_ns, len(into.ids)) == (20_000, 2_000, 4)
    assert (out_of.host_ns, out_of.device_ns) == (12_000, 4_000)
    search = found[DdpWork.UNUSED_SEARCH]
    assert (search.host_ns, search.device_ns, len(search.work_ids)) == (20_000, 0, 0)


def test_a_forward_that_only_copies_broadcasts_no_buffers() -> None:
    draw = Drawing().launch("k", (0, 1), (1, 90)).span("user_annotation", "DistributedDataParallel.forward", 2, 90)
    draw.op("aten::copy_", 3, 5).op("aten::conv2d", 10, 20).op("c10d::broadcast_", 30, 40)
    assert ddp_overheads(draw.facts()) == ()


def test_without_ops_ddp_s_work_is_missing() -> None:
    with pytest.raises(Missing, match="framework ops"):
        ddp_overheads(Drawing().launch("k", (0, 1), (2, 3)).facts())


def test_the_host_waits_for_buffers_that_another_thread_sends() -> None:
    """Gloo sends them on a thread of its own: of the forward's first 500 us, 30 are ops, and 400 waiting for it."""
    draw = Drawing()
    for number in range(3):
        at = 1000 * number
        draw.step(number, at, at + 1000)
        draw.span("user_annotation", "DistributedDataParallel.forward", at + 10, at + 700)
        draw.op("c10d::broadcast_", at + 20, at + 50).span("user_annotation", "gloo:broadcast", at + 60, at + 460, 9)
        draw.op("aten::addmm", at + 510, at + 690)
        draw.span("user_annotation", "gloo:all_reduce", at + 750, at + 900, 9)  # not of the buffers
    (found,) = ddp_overheads(draw.facts())
    assert found.work is DdpWork.BUFFER_BROADCASTS
    assert (found.host_ns, found.waits_ns, found.most_ns) == (30_000, 400_000, 400_000)
