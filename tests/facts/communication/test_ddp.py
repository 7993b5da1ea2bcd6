"""Are gradients reduced for every micro-batch?"""

import pytest
from msgspec.structs import replace

from diagnose.facts.communication.ddp import Accumulation, accumulation
from diagnose.facts.communication.overlap import ReplicatedUpdate, replicated_update
from diagnose.facts.core.base import Facts, Missing
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Host, Optimizer, RankManifest
from diagnose.trace.model import Context

FORWARD = "DistributedDataParallel.forward"


def of(*rows: str) -> Accumulation:
    return accumulation(facts_of("\n".join(("5 steps of 100", *rows))))


def test_all_but_the_last_reduction_before_the_optimizer_are_early() -> None:
    found = of(
        f"cpu  {FORWARD} 0-1 | c10d::allreduce_ 2-3 | {FORWARD} 4-5 | c10d::allreduce_ 6-7 | {FORWARD} 8-9",
        "cpu  c10d::allreduce_ 10-11 | optimizer 12-13",
        "gpu  allreduce 20-30 @2.5 | allreduce 40-45 @6.5 | allreduce 50-90 @10.5",
    )
    assert (found.rounds, found.alike) == (3, True)
    assert len(found.op_ids) == 2 * 5
    assert found.ns == 15_000_000
    assert not len(found.ids)
    assert not found.waits.size


def test_on_the_host_the_thread_that_waits_for_early_reductions_does_so_in_vain() -> None:
    found = of(
        "2 threads, 2 cores",
        f"cpu       {FORWARD} 0-1 | c10d::allreduce_ 2-3 | {FORWARD} 40-41 | c10d::allreduce_ 42-43 | optimizer 80-81",
        "cpu gloo  gloo:all_reduce 3-33 | gloo:all_reduce 43-73",
    )
    assert (found.rounds, found.alike) == (2, True)
    assert len(found.ids) == 5
    assert found.waits.total == 5 * 30_000_000
    assert found.ns == 30_000_000


def test_models_with_gradients_of_their_own_are_told_by_how_often_they_reduce() -> None:
    found = of(
        f"cpu  {FORWARD} 0-1 | c10d::allreduce_ 2-3 x2 | {FORWARD} 6-7 | c10d::allreduce_ 8-9 | optimizer 12-13",
        "gpu  sgemm 0.1-90",
    )
    assert found.rounds == 2
    assert not found.alike


@pytest.mark.parametrize("optimizer", ["optimizer 5-6 | optimizer 11-12", "optimizer 11-12 in 0,2,4"])
def test_a_reduction_for_each_step_of_an_optimizer_is_none_too_many(optimizer: str) -> None:
    """Two models, each with its optimizer; or one whose optimizer steps every second time, reducing once."""
    second = "" if "in" in optimizer else f" | {FORWARD} 7-8 | c10d::allreduce_ 9-10"
    reduces = "2-3 in 0,2,4" if "in" in optimizer else "2-3"
    found = of(f"cpu  {FORWARD} 0-1 | c10d::allreduce_ {reduces}{second} | {optimizer}", "gpu  sgemm 0.1-90")
    assert found.rounds == 1
    assert not len(found.op_ids)


def test_nothing_is_reduced_without_ddp_and_nothing_is_known_without_ops() -> None:
    assert of("cpu  c10d::allreduce_ 2-3 | optimizer 12-13", "gpu  sgemm 0.1-90").rounds == 0
    with pytest.raises(Missing, match="framework ops"):
        of("gpu  allreduce 20-30")


HOOK = '"autograd::engine::evaluate_function: MmBackward0"'


def update(
    kernels: str = "", group: str = "group_size=4", host: str = "", ranks: str = "rank 0 of 4"
) -> ReplicatedUpdate:
    """Two buckets of 4 MB in 2 and 3 ms, then one of 2 MB in 1 ms, and an update of 20 ms."""
    facts = facts_of(f"""
        4 steps of 100
        {ranks}
        cpu     DistributedDataParallel.forward 0-0.5 | {HOOK} 1-1.9
        cpu     c10d::allreduce_ 1.1-1.2 | c10d::allreduce_ 1.3-1.4 | c10d::allreduce_ 1.5-1.6
        cpu     optimizer 2-3 | aten::_fused_adamw_ 2.1-2.9 | device_sync 5-99.9
        {host}
        gpu     bf16_gemm 0.5-49 @0.4 | adam 59-79 @2.2
        gpu 20  allreduce 49-51 @1.15 operation=allreduce in_elements=1000000 dtype=Float {group}
        gpu 20  allreduce 51-54 @1.35 operation=allreduce in_elements=1000000 dtype=Float {group}
        gpu 20  allreduce 54-55 @1.55 operation=allreduce in_elements=500000 dtype=Float {group}
        {kernels}
    """)
    return replicated_update(facts)


def test_all_ranks_update_all_parameters() -> None:
    found = update()
    assert (found.ranks, found.sharded, found.split, found.on_cpu) == (4, False, False, False)
    assert (found.optimizers, found.update_ns) == (("AdamW",), 20_000_000)
    assert found.gradient_bytes == 10_000_000
    # Half of 2 + 2 + 1 ms, where each takes as long as the shortest of its size; of 2 + 3 + 1; and all of that.
    assert found.gather_ns == (2_500_000, 3_000_000, 6_000_000)
    assert len(found.work_ids) == len(found.op_ids) == 4


def test_ranks_that_exchange_parameters_update_a_part_each() -> None:
    assert update(
        host='cpu  "Optimizer.step#ZeroRedundancyOptimizer.step" 1.95-3.5 | c10d::broadcast_ 3-3.1',
        kernels="gpu 20  nccl 80-81 @3.05 operation=broadcast in_elements=250000 dtype=Float",
    ).sharded
    # Parameters that are gathered after the step, as many as there are gradients.
    assert update(
        host="cpu  c10d::_allgather_base_ 3.2-3.4",
        kernels="gpu 20  allgather 80-81 @3.3 operation=_allgather_base in_elements=625000 out_elements=2500000"
        " dtype=Float",
    ).sharded


def test_how_many_ranks_there_are() -> None:
    assert update(group="").ranks == 4  # those of the job, as no group is recorded
    with pytest.raises(Missing, match="how many ranks"):
        update(group="", ranks="")


def test_a_model_that_is_split_besides() -> None:
    assert update(
        host="cpu  _c10d_functional::all_reduce 0.6-0.9",
        kernels="gpu 21  allreduce 10-11 @0.7 operation=allreduce in_elements=1000 dtype=Float",
    ).split


def test_reductions_of_each_micro_batch_are_of_the_same_gradients() -> None:
    facts = facts_of(f"""
        4 steps of 100
        rank 0 of 2
        cpu     DistributedDataParallel.forward 0-0.5 | {HOOK} 1-1.9 | c10d::allreduce_ 1.1-1.2
        cpu     DistributedDataParallel.forward 2-2.5 | {HOOK} 3-3.9 | c10d::allreduce_ 3.1-3.2
        cpu     optimizer 4-5 | aten::_fused_adamw_ 4.1-4.9 | device_sync 6-99.9
        gpu     bf16_gemm 0.5-49 @0.4 | adam 59-79 @4.2
        gpu 20  allreduce 49-51 @1.15 operation=allreduce in_elements=1000000 dtype=Float group_size=2
        gpu 20  allreduce 51-53 @3.15 operation=allreduce in_elements=1000000 dtype=Float group_size=2
    """)
    found = replicated_update(facts)
    assert (found.gradient_bytes, found.gather_ns) == (4_000_000, (1_000_000, 1_000_000, 2_000_000))


def test_without_reductions_nothing_is_replicated() -> None:
    facts = facts_of("""
        4 steps of 100
        cpu  aten::mm 0-1 | optimizer 4-5 | aten::_fused_adamw_ 4.1-4.9 | device_sync 6-99.9
        gpu  bf16_gemm 0.5-49 @0.4 | adam 59-79 @4.2
    """)
    found = replicated_update(facts)
    assert (found.ranks, found.gradient_bytes) == (0, None)


@pytest.mark.parametrize(("elements", "sharded"), [(2_500_000, False), (2_000_000, False), (625_000, True)])
def test_an_optimizer_that_has_a_part_of_what_is_reduced(elements: int, sharded: bool) -> None:
    facts = facts_of(f"""
        4 steps of 100
        rank 0 of 4
        cpu     DistributedDataParallel.forward 0-0.5 | {HOOK} 1-1.9 | c10d::allreduce_ 1.1-1.2
        cpu     optimizer 2-3 | aten::_fused_adamw_ 2.1-2.9 | device_sync 5-99.9
        gpu     bf16_gemm 0.5-49 @0.4 | adam 59-79 @2.2
        gpu 20  allreduce 49-51 @1.15 operation=allreduce in_elements=2500000 dtype=Float group_size=4
    """)
    known = RankManifest(rank=0, optimizers=(Optimizer(name="AdamW", elements=elements),))
    found = replicated_update(Facts(replace(facts.rank, context=Context(known, Host(), ranks=4))))
    assert found.sharded is sharded
