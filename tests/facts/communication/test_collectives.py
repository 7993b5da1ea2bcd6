"""Which collectives run, and how many are small; what DistributedDataParallel does around them."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.communication import peers as keeping
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.collectives import collective_table, small_collectives
from diagnose.facts.communication.ddp import DdpWork, buckets, ddp_overheads
from diagnose.facts.communication.host_collectives import barriers, host_collectives, host_runs
from diagnose.facts.communication.peers import KeptSequence, chosen, compared, kept
from diagnose.facts.core.base import Facts, Missing
from diagnose.synthetic.reading import facts_of, facts_of_ranks
from diagnose.trace.job import CollectiveSequence, ProcessGroup
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


def counted(draw: Drawing) -> tuple[int, int, int]:
    found = small_collectives(draw.facts())
    return found.total_calls, found.calls, found.unknown_calls


def test_small_collectives() -> None:
    """With one of unknown size, then those on the host, which are none of the device."""
    draw, on_host = reducing(), reducing()
    for at in (0, 1000, 2000):
        draw.launch(NCCL, (at + 9, at + 10), (at + 250, at + 260), stream=21, **told("allreduce", 1))
        draw.launch(NCCL, (at + 11, at + 12), (at + 800, at + 810), stream=21)
        on_host.span("user_annotation", "gloo:all_reduce", at + 30, at + 70, tid=555)
    assert (counted(draw), counted(on_host)) == ((10, 2, 1), (8, 1, 0))


def test_a_megabyte_is_not_small() -> None:
    draw = Drawing().launch(NCCL, (0, 1), (2, 3), **told("allreduce", 1 << 18))
    assert counted(draw) == (1, 0, 0)
    assert counted(draw.launch(NCCL, (4, 5), (6, 7), **told("allreduce", (1 << 18) - 1))) == (2, 1, 0)


def test_nothing_to_look_at() -> None:
    with pytest.raises(Missing, match="device work"):
        small_collectives(Drawing().op("aten::mm", 0, 9).facts())
    assert counted(Drawing().launch("gemm", (0, 1), (2, 3))) == (0, 0, 0)


def forward() -> Drawing:
    """Two steps of a model with two buffers: packed, sent, unpacked; then the model's own ops; then the reducer's."""
    draw = Drawing()
    for at in (0, 1000):
        draw.step(at // 1000, at, at + 999).op("aten::randn", at + 1, at + 9)
        draw.span("user_annotation", "DistributedDataParallel.forward", at + 10, at + 300)
        draw.op("aten::flatten_dense_tensors", at + 20, at + 30).op("aten::cat", at + 21, at + 29)
        draw.launch("CatArrayBatchedCopy", (at + 22, at + 23), (at + 40, at + 45))
        draw.op("c10d::broadcast_", at + 30, at + 40)
        draw.launch("ncclDevKernel_Broadcast_RING_LL()", (at + 31, at + 32), (at + 50, at + 60))
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
    found = {one.work: one for one in ddp_overheads(facts)}
    packing = ["aten::flatten_dense_tensors", "c10d::broadcast_", "aten::unflatten_dense_tensors", "aten::copy_"]
    assert facts.rank.spans["name"].iloc[found[DdpWork.BUFFER_BROADCASTS].ids].tolist() == 2 * packing
    assert {work: (one.host_ns, one.device_ns, len(one.ids), len(one.work_ids)) for work, one in found.items()} == {
        DdpWork.BUFFER_BROADCASTS: (39_000, 17_000, 8, 6),
        DdpWork.COPIES_INTO_BUCKETS: (20_000, 2_000, 4, 4),
        DdpWork.COPIES_FROM_BUCKETS: (12_000, 4_000, 4, 4),
        DdpWork.UNUSED_SEARCH: (20_000, 0, 2, 0),
    }


def test_a_forward_that_only_copies_broadcasts_no_buffers() -> None:
    draw = Drawing().launch("k", (0, 1), (1, 90)).span("user_annotation", "DistributedDataParallel.forward", 2, 90)
    draw.op("aten::copy_", 3, 5).op("aten::conv2d", 10, 20).op("c10d::broadcast_", 30, 40)
    assert ddp_overheads(draw.facts()) == ()
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


RANK = """
4 steps of 100
rank {rank} of 4
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-{computed} @0.05
gpu 20  allreduce {computed}-90 @0.3 group_size=4
"""
COMPUTED = (60, 80, 70, 65)
MS = 1_000_000


def sequences() -> list[CollectiveSequence]:
    """Four ranks that compute until these ms of each of 3 steps, and leave one all-reduce at 90."""
    synthetic = "---\n".join(RANK.format(rank=rank, computed=until) for rank, until in enumerate(COMPUTED))
    return [collective_sequence(facts) for facts in facts_of_ranks(synthetic)]


def of(calls: int, held_share: float, near: bool = False) -> KeptSequence:
    return KeptSequence(b"", calls, recorded_steps=1, steps=1, held_share=held_share, near=near)


def all_kept(ranks: int) -> dict[int, KeptSequence]:
    return {rank: kept(one, ranks) for rank, one in enumerate(sequences())}


def test_few_ranks_are_kept_whole() -> None:
    found, notes = compared(all_kept(4))
    assert (notes, found.awaited, found.waited_ns.tolist()) == ([], 1, [60 * MS, 0, 30 * MS, 45 * MS])
    assert [one.calls for one in all_kept(4).values()] == [3, 3, 3, 3]
    # Each is held up from when computing ends to 90 ms.
    assert np.allclose([one.held_share for one in all_kept(4).values()], [0.30, 0.10, 0.20, 0.25], atol=0.002)


def test_fewer_steps_are_kept_of_very_many_ranks() -> None:
    some = all_kept(keeping.MOST_CALLS_OF_JOB // 2)  # 2 collectives each
    assert {(one.calls, one.steps, one.recorded_steps) for one in some.values()} == {(2, 2, 3)}
    found, notes = compared(some)
    assert found.waited_ns.tolist() == [40 * MS, 0, 20 * MS, 30 * MS]
    (note,) = notes
    assert note.what == "Ranks are compared in the first 2 of 3 recorded steps: the job has too many collectives."
    # A step is kept whole however many ranks there are.
    assert {one.calls for one in all_kept(2 * keeping.MOST_CALLS_OF_JOB).values()} == {1}


def test_where_not_all_ranks_fit_the_first_one_s_groups_and_those_held_up_least_are_kept() -> None:
    some = {0: of(10, 0.5, near=True), 1: of(10, 0.4), 2: of(10, 0.3, near=True), 3: of(10, 0.1), 4: of(10, 0.2)}
    assert chosen(some, most_calls=50) == [0, 1, 2, 3, 4]
    assert chosen(some, most_calls=49) == [0, 2, 3, 4]  # 0, 3, 2, 4, and 1 is one too many
    assert chosen(some, most_calls=20) == [0, 3]
    assert chosen(some, most_calls=9) == []


def test_what_is_left_out_is_said_and_nobody_is_said_to_have_come_last() -> None:
    """Ranks 0 and 1 are kept: the first, and the one held up least. Of the others nothing is known."""
    found, notes = compared(all_kept(4), most_calls=6)
    assert found.job.ranks == (0, 1)
    assert not any(met.whole for met in found.job.join_points)
    (note,) = notes
    assert note.what == "2 of 4 ranks are compared: the first rank's groups, and ranks that wait least."


def test_a_rank_of_which_nothing_is_known_costs_that_rank() -> None:
    """Fewer than two cannot be compared."""
    found, notes = compared({**all_kept(4), 3: None})
    assert found.job.ranks == (0, 1, 2)
    assert [note.what for note in notes] == ["Not compared with the other ranks: 3."]
    assert compared({0: all_kept(4)[0], 1: None}) == (None, [])


def test_a_rank_is_near_the_first_if_it_shares_a_group_that_is_not_of_all() -> None:
    everyone, pair = ProcessGroup("0", "", (0, 1, 2, 3)), ProcessGroup("1", "tp", (0, 2))
    one = sequences()[2]
    assert not kept(replace(one, known_groups=(everyone,)), 4).near
    assert kept(replace(one, known_groups=(everyone, pair)), 4).near


CPU = "4 steps of 100\n2 threads, 4 cores"
SMALL = 'shapes=[[[256]],[]] types=["TensorList",""]'


def on_host(*rows: str) -> Facts:
    return facts_of("\n".join((CPU, *rows)))


def test_each_collective_belongs_to_the_op_that_asked_for_it() -> None:
    facts = on_host(
        f"cpu        c10d::allreduce_ 10-11 {SMALL} | c10d::allreduce_ 12-13 | c10d::barrier 50-60",
        "cpu gloo1  gloo:all_reduce 11-30",
        "cpu gloo2  gloo:all_reduce 13-20 | gloo:barrier 51-58",
    )
    found = host_collectives(facts)
    assert found.operation[:3].tolist() == ["allreduce_", "allreduce_", "barrier"]
    assert found.begin_ns[:3].tolist() == [10 * MS, 12 * MS, 50 * MS]
    assert found.end_ns[:3].tolist() == [30 * MS, 20 * MS, 60 * MS]  # the barrier's op returns last
    assert found.bytes[:3].tolist() == [1024, -1, -1]
    asked_before = "cpu gloo  gloo:all_reduce 1-5 in 0 | gloo:all_reduce 11-30"  # The first, before the recording.
    found = host_collectives(on_host("cpu       c10d::allreduce_ 10-11", asked_before))
    assert (len(found.ids), found.end_ns[0]) == (4, 30 * MS)


def test_small_collectives_that_are_waited_for_one_by_one_are_a_run() -> None:
    """Five of 2 ms each, 3 ms apart: from the end of the first to the end of the last are 12 ms."""
    rows = (
        f"cpu       aten::mm 0-5 | c10d::allreduce_ 10-10.5 {SMALL} x5 every 3 | aten::copy_ 12.6-12.7 x4 every 3",
        "cpu gloo  gloo:all_reduce 10.5-12.5 x5 every 3",
    )
    found = host_runs(on_host(*rows))
    assert (found.calls, found.unknown_calls, found.later.ns) == (5, 0, 12 * MS)
    assert (found.later.own.total, found.later.waiting.total) == (0, 3 * 12 * MS)  # no other rank tells
    unsized = host_runs(on_host(*(row.replace(SMALL, "") for row in rows)))
    assert (unsized.calls, unsized.unknown_calls) == (0, 5)


@pytest.mark.parametrize(
    ("collectives", "between"),
    [
        (f"{SMALL} x3 every 3", "aten::copy_ 12.6-12.7 x2 every 3"),  # too few
        (f"{SMALL} x5 every 3", "aten::mm 12.6-12.7 x4 every 3"),  # work that may need the results
        ("shapes=[[[1000000]],[]] x5 every 3", "aten::copy_ 12.6-12.7 x4 every 3"),  # large
        (f"{SMALL} x5 every 1", "aten::copy_ 9.6-9.7"),  # the next is asked for before one is over
    ],
)
def test_what_is_no_run(collectives: str, between: str) -> None:
    every = collectives.split(" x")[1]
    threads = [f"cpu gloo{k}  gloo:all_reduce {10.5 + k}-{12.5 + k} in 1,2" for k in range(5)]
    gloo = threads if "every 1" in every else [f"cpu gloo  gloo:all_reduce 10.5-12.5 x{every}"]
    assert host_runs(on_host(f"cpu  c10d::allreduce_ 10-10.5 {collectives} | {between}", *gloo)).calls == 0


def test_a_barrier_holds_up_the_host_until_all_have_come() -> None:
    rank = CPU + "\ncpu  c10d::barrier {begin}-{end}\ncpu gloo  gloo:barrier {inside}-70"
    first, last = (rank.format(begin=begin, end=begin + 5, inside=begin + 1) for begin in (40, 60))
    alone = barriers(facts_of_ranks(first)[0])
    assert (alone.calls, alone.blocked.ns) == (1, 30 * MS)
    assert (alone.blocked.own.total, alone.blocked.waiting.total) == (0, 3 * 30 * MS)
    compared = barriers(facts_of(f"{last}\n---\n{first}"))  # of the rank that the other waits for
    assert compared.blocked.ns == 10 * MS
    assert (compared.blocked.own.total, compared.blocked.waiting.total) == (3 * 10 * MS, 0)


BACKWARD = '"autograd::engine::evaluate_function: MmBackward0"'


def test_buckets_of_a_backward_pass_on_the_host() -> None:
    """Four of 1 KB take 10, 2, 2 and 2 ms; two of the usual size would spare two of the shortest."""
    facts = on_host(
        f"cpu       DistributedDataParallel.forward 0-5 | {BACKWARD} 10-15 x4 every 12",
        f"cpu       c10d::allreduce_ 11-12 {SMALL} x4 every 12",
        "cpu gloo  gloo:all_reduce 12-22 | gloo:all_reduce 24-26 x3 every 12",
    )
    found = buckets(facts)
    assert (found.calls, found.bytes, found.usual, found.left) == (4, 1024, 1, pytest.approx(1 - 3 * 2 / 16))
    assert (found.host_ns, found.exposed_ns) == (4 * MS, 7 * MS)  # from 15 to 22; the others run within ops


def test_buckets_on_the_device() -> None:
    facts = facts_of(f"""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-5 | {BACKWARD} 10-15 x2 every 12 | device_sync 40-99
        cpu     c10d::allreduce_ 11-12 x2 every 12
        gpu 20  allreduce 30-40 @11.5 operation=allreduce in_elements=8000000 dtype=Float
        gpu 20  allreduce 40-60 @23.5 operation=allreduce in_elements=8000000 dtype=Float
    """)
    found = buckets(facts)
    assert (found.calls, found.bytes, found.usual) == (2, 32_000_000, 4)  # 1 MB, and 63 in three of 25 MB
    assert (found.left, found.exposed_ns) == (1.0, 30 * MS)


def test_reductions_that_no_backward_pass_starts_are_no_buckets() -> None:
    forward = "cpu  DistributedDataParallel.forward 0-5 | c10d::allreduce_ 11-12"
    assert buckets(on_host(forward, "cpu gloo  gloo:all_reduce 12-22")).calls == 0
    unsized = f"cpu  DistributedDataParallel.forward 0-5 | {BACKWARD} 10-15"
    with pytest.raises(Missing, match="sizes of gradient buckets"):
        buckets(on_host(unsized, "cpu  c10d::allreduce_ 11-12", "cpu gloo  gloo:all_reduce 12-22"))


QUEUED = """
2 steps of 100
rank 0 of 2
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | aten::mm 0.5-0.6 | c10d::allreduce_ 0.7-0.9 | aten::mm 1-1.1
cpu     device_sync 2-99.9
gpu     sgemm 0.1-10 @0.05 | sgemm 10-20 @0.55 | sgemm 20-60 @1.05
gpu 20  allreduce 10-45 @0.3 group_size=2 | allreduce {begin}-85 @0.8 group_size=2
"""


def between_ms(text: str) -> float:
    """From when the rank asks for the first call of a step to when it asks for the second."""
    lane = collective_sequence(facts_of(text)).lane
    asked = lane.from_ns[~lane.waits & (lane.call >= 0)]
    return round(float(asked[1] - asked[0]) / MS, 3)


def test_what_waits_for_the_collective_before_it_is_asked_for_when_its_data_is_there() -> None:
    """Where the stream was free for it, when it begins."""
    assert between_ms(QUEUED.format(begin=45)) == 10.0  # the second sgemm ends at 20
    assert between_ms(QUEUED.format(begin=55)) == 45.0


OVERLAPPED = """
2 steps of 100
rank 0 of 2
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.3 | c10d::allgather_ 0.4-0.5 | aten::mm 0.6-0.7 | aten::mm 0.8-0.9
cpu     device_sync 2-99.9
gpu     sgemm 0.1-10 @0.05 | sgemm {begin}-60 @0.65 | sgemm 60.1-90 @0.85
gpu 20  allreduce 10-70 @0.25 group_size=2
gpu 24  allgather 10-30 @0.45 group_size=2
"""


def held(text: str) -> list[tuple[str, float]]:
    """What the rank is held up by in its first used step, and for how long (ms)."""
    found = collective_sequence(facts_of(text))
    lane, calls = found.lane, found.calls
    waits = np.flatnonzero(lane.waits)
    names = [found.operations[calls.operation[call]] for call in lane.call[waits]]
    took = ((lane.until_ns - lane.from_ns)[waits] / MS).round(3).tolist()
    return list(zip(names, took, strict=True))


def test_a_rank_is_held_up_by_the_collective_that_is_over_when_it_goes_on() -> None:
    """A gap between kernels while one runs is no wait for it."""
    assert held(OVERLAPPED.format(begin=30.01)) == [("allgather", 20.01)]
    assert held(OVERLAPPED.format(begin=10.01)) == []
