"""Small collectives in a row, and those of synchronised normalisation."""

from typing import Any

import numpy as np
import pytest

from diagnose.facts.communication.messages import HostGathers, collective_runs, host_gathers, synced_norms
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of
from tests.drawing import Drawing

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
GEMM = "ampere_sgemm_128x64_nn"


def reduce(draw: Drawing, at: int, dur: int = 20, elements: int = 100, operation: str = "allreduce") -> None:
    """An all-reduce at `at` us, started by an op of 10 us that begins 30 us before it."""
    told = {"Collective name": operation, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float"}
    draw.op("c10d::allreduce_", at - 30, at - 20).op("record_param_comms", at - 29, at - 21)
    draw.launch(NCCL, (at - 28, at - 25), (at, at + dur), stream=20, **told)


def gradients(between: str, calls: int = 5, **told: Any) -> Drawing:
    """Two steps of 2000 us: after 100 us of GEMM the collectives, 100 us apart; the first waits for others, 70 us."""
    draw = Drawing()
    for number in range(2):
        at = 2000 * number
        draw.step(number, at, at + 1999).launch(GEMM, (at + 1, at + 2), (at + 3, at + 103))
        for k in range(calls):
            reduce(draw, at + 200 + 100 * k, 70 if k == 0 else 20 + k, **told)
            draw.launch(between, (at + 230 + 100 * k, at + 232 + 100 * k), (at + 275 + 100 * k, at + 285 + 100 * k))
        draw.launch(GEMM, (at + 1900, at + 1905), (at + 1910, at + 1990))
    return draw


def test_in_a_row_with_pointwise_work_between() -> None:
    facts = gradients(ADD).facts()
    found = collective_runs(facts)
    assert (found.calls, len(found.ids), found.run.tolist()) == (5, 10, 5 * [0] + 5 * [1])
    # 70 + 21 + 22 + 23 + 24 = 160 us, of which four times the shortest, 84 us, are latency that one call has once.
    assert found.joined_ns.tolist() == [2 * [118_000], 2 * [76_000], 2 * [76_000]]
    assert (found.exposed_ns, found.host_ns) == (160_000, 50_000)
    later = facts.rank.spans.iloc[found.later_op_ids]
    assert later["name"].tolist() == 8 * ["c10d::allreduce_"]
    assert np.diff(later["start_ns"])[:3].tolist() == [100_000] * 3


@pytest.mark.parametrize(
    ("between", "told"),
    [
        (GEMM, {}),  # each result is used before the next is asked for
        (ADD, {"elements": 1 << 18}),  # a MiB is not small
        (ADD, {"operation": "send"}),
        (ADD, {"calls": 3}),
    ],
)
def test_no_run(between: str, told: dict[str, int]) -> None:
    found = collective_runs(gradients(between, **told).facts())
    assert (found.calls, len(found.ids), found.joined_ns.shape) == (0, 0, (3, 0))
    assert (found.exposed_ns, found.host_ns, len(found.later_op_ids)) == (0, 0, 0)


def test_a_run_ends_with_its_step_and_its_operation() -> None:
    draw = Drawing()
    for number in range(3):
        at = 1000 * number
        draw.step(number, at, at + 999)
        for k in range(8):
            reduce(draw, at + 100 + 100 * k, operation=("allreduce", "broadcast")[k % 2])
    assert np.bincount(collective_runs(draw.facts()).run).tolist() == 6 * [4]


def test_ops_that_start_several_are_not_removed_with_the_later_ones() -> None:
    told: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 9, "Out msg nelems": 9, "dtype": "Float"}
    draw = Drawing().op("c10d::allreduce_coalesced_", 0, 50).launch("k", (60, 61), (300, 400))
    for k in range(4):
        draw.launch(NCCL, (10 * k, 10 * k + 2), (100 + 10 * k, 108 + 10 * k), stream=20, **told)
    found = collective_runs(draw.facts())
    assert (found.calls, len(found.later_op_ids)) == (4, 0)


def test_synchronised_normalisation() -> None:
    draw = Drawing()
    for number in range(2):
        at = 1000 * number
        draw.step(number, at, at + 999).launch(GEMM, (at + 1, at + 2), (at + 3, at + 103))
        for k in range(3):
            draw.op(("SyncBatchNorm", "SyncBatchNormBackward")[k % 2], at + 65 + 200 * k, at + 95 + 200 * k)
            reduce(draw, at + 100 + 200 * k)
            draw.launch(GEMM, (at + 96 + 200 * k, at + 97 + 200 * k), (at + 125 + 200 * k, at + 200 + 200 * k))
        reduce(draw, at + 900)
    found = synced_norms(draw.facts())
    assert (found.calls, len(found.ids), len(found.op_ids)) == (3, 6, 6)
    assert (found.exposed_ns, found.host_ns) == (57_000, 30_000)  # 3 us of the first are hidden


def test_nothing_to_look_at() -> None:
    facts = Drawing().launch(GEMM, (0, 1), (2, 3)).facts()
    assert (collective_runs(facts).calls, synced_norms(facts).calls) == (0, 0)
    for fact in (collective_runs, synced_norms):
        with pytest.raises(Missing, match="device work"):
            fact(Drawing().op("aten::mm", 0, 9).facts())


FORWARD, UPDATE = "DistributedDataParallel.forward 40-60", '"Optimizer.step#SGD.step" 90-99'


def of(*rows: str, gloo: str) -> HostGathers:
    """Three steps of 100 ms, of which the last two are used; `gloo` is what its thread does."""
    lines = ("3 steps of 100", "2 threads, 4 cores", "rank 0 of 2", f"cpu  {' | '.join(rows)}", f"cpu threads  {gloo}")
    return host_gathers(facts_of("\n".join(lines)))


def gather(start: int, sent: str = "[[512,100]]") -> str:
    return f"c10d::allgather_ {start}-{start + 1} shapes=[[],{sent},[],[],[]]"


def test_results_are_waited_for_until_they_are_there() -> None:
    """From 1 to 22 ms after the start of each step; 512 x 100 elements of 4 bytes are sent."""
    found = of(gather(1), FORWARD, UPDATE, gloo="gloo:all_gather 2-22")
    assert (found.calls, found.bytes, found.blocked.ns) == (1, 204_800, 21_000_000)


def test_what_lies_between_two_of_a_row_counts_too() -> None:
    """Sizes of objects are gathered, then the objects, of 512 and 512 x 100 elements."""
    found = of(gather(1, "[[512]]"), gather(10), FORWARD, UPDATE, gloo="gloo:all_gather 2-4 | gloo:all_gather 11-31")
    assert (found.calls, found.bytes, found.blocked.ns) == (2, 2_048 + 204_800, 30_000_000)


def test_gathering_in_a_pass_or_before_the_optimizer_may_be_needed_for_the_update() -> None:
    for start in (41, 61, 70):
        assert of(gather(start), FORWARD, UPDATE, gloo=f"gloo:all_gather {start + 1}-{start + 9}").calls == 0


def test_sums_are_no_gathering() -> None:
    reduced = "c10d::allreduce_ 1-2 shapes=[[[512,100]],[],[]]"
    assert of(reduced, FORWARD, UPDATE, gloo="gloo:all_reduce 2-22").calls == 0


def test_without_ddp_or_collectives_it_is_not_known_where_a_pass_begins() -> None:
    with pytest.raises(Missing, match="forward passes"):
        of(gather(1), UPDATE, gloo="gloo:all_gather 2-22")
    with pytest.raises(Missing):
        host_gathers(facts_of("1 steps of 100\ncpu  aten::mm 0-9"))
