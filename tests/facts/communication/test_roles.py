"""What collectives are for, by where in the program they are started."""

from collections import Counter

import pytest

from diagnose.facts.communication.messages import loose_gradients
from diagnose.facts.communication.roles import Role, roles
from diagnose.synthetic.reading import facts_of

BACK = '"autograd::engine::evaluate_function: MmBackward0"'


def role(
    host: str, operation: str = "allreduce", size: str = "in_elements=1000000 dtype=Float", more: str = ""
) -> Role:
    """Of a collective whose kernel is launched at 50.5 ms, between the passes of a step."""
    facts = facts_of(f"""
        3 steps of 100
        cpu     aten::linear 10-12 sequence=5 | {BACK} 30-40 sequence=5 "Fwd thread id"=1 | optimizer 70-80
        cpu     {host}
        gpu     sgemm 12-40 @11
        gpu 20  nccl 60-69 @50.5 operation={operation} {size} {more}
    """)
    (found,) = Counter(roles(facts).tolist())
    return found


@pytest.mark.parametrize(
    ("host", "operation", "found"),
    [
        ("c10d::allreduce_ 50-51", "allreduce", Role.GRADIENT),  # of the size of gradients, after the backward pass
        (f"{BACK} 49-52 | c10d::allreduce_ 50-51", "allreduce", Role.GRADIENT),  # a hook of the program's own
        (f"DistributedDataParallel.forward 1-5 | {BACK} 49-52 | c10d::allreduce_ 50-51", "allreduce", Role.BUCKET),
        # What a backward op itself starts is no hook of a gradient.
        (f"{BACK} 49-52 | ReduceBackward0 49.5-51.5 | c10d::allreduce_ 50-51", "allreduce", Role.OTHER),
        ("DistributedDataParallel.forward 49-52 | c10d::broadcast_ 50-51", "broadcast", Role.BUFFERS),
        ('"FSDP::all_gather (layers.1)" 49-52 | c10d::_allgather_base_ 50-51', "_allgather_base", Role.SHARD_GATHER),
        ('"FSDP::post_backward_reduce (layers.1)" 49-52', "_reduce_scatter_base", Role.SHARD_REDUCE),
        ("FullyShardedDataParallel._pre_forward 49-52", "_allgather_base", Role.SHARD_GATHER),
        # FSDP's own forward has the whole model in it, with what that communicates.
        ("FullyShardedDataParallel.forward 49-52", "_allgather_base", Role.OTHER),
        (f"{BACK} 49-52 | c10d::_reduce_scatter_base_ 50-51", "_reduce_scatter_base", Role.SHARD_REDUCE),
        ("_c10d_functional::all_reduce 50-51", "allreduce", Role.ACTIVATION),
        ("c10d::alltoall_base_ 50-51", "all_to_allv", Role.EXCHANGE),
        ("c10d::send 50-51", "send", Role.STAGE),
        ("SyncBatchNorm 50-51", "allreduce", Role.NORM),
        ("c10d::barrier 50-51", "allreduce", Role.BARRIER),
        ("c10d::_allgather_base_ 50-51", "_allgather_base", Role.OTHER),
    ],
)
def test_where_it_is_started_tells_what_it_is_for(host: str, operation: str, found: Role) -> None:
    assert role(host, operation) is found


def test_a_small_all_reduce_after_the_backward_pass_is_of_no_gradient() -> None:
    assert role("c10d::allreduce_ 50-51", size="in_elements=1 dtype=Float") is Role.OTHER


@pytest.mark.parametrize("description", ["mesh_tp", "tp", "TENSOR_MODEL_PARALLEL_GROUP", "CONTEXT_PARALLEL_GROUP"])
def test_groups_say_that_they_split_the_model(description: str) -> None:
    host = f"{BACK} 49-52 | c10d::allreduce_ 50-51"
    assert role(host, more=f"group_description={description}") is Role.ACTIVATION
    assert role(host, more="group_description=mesh_dp") is Role.GRADIENT


def test_after_the_optimizer_and_before_the_next_forward_pass_are_results() -> None:
    facts = facts_of(f"""
        3 steps of 100
        cpu     aten::linear 10-12 sequence=5 | {BACK} 30-40 sequence=5 "Fwd thread id"=1 | optimizer 50-60
        cpu     c10d::_allgather_base_ 70-71
        gpu     sgemm 12-40 @11
        gpu 20  allgather 80-89 @70.5 operation=_allgather_base in_elements=1000 dtype=Float
        gpu 21  nccl 55-56 @55 operation=broadcast in_elements=1000 dtype=Float
    """)
    assert Counter(roles(facts).tolist()) == {Role.RESULT: 3, Role.PARAMETERS: 3}


@pytest.mark.parametrize(
    ("reduced", "gathered", "found"),
    [
        ("allreduce in_elements=4000000", 4_000_000, Role.PARAMETERS),  # by a wrapper that shards the optimizer's state
        ("allreduce in_elements=4000000", 2_000_000, Role.PARAMETERS),
        ("allreduce in_elements=4000000", 3_000_000, Role.RESULT),
        ("_reduce_scatter_base in_elements=4000000", 3_000_000, Role.PARAMETERS),
    ],
)
def test_what_a_sharded_optimizer_gathers_is_no_result(reduced: str, gathered: int, found: Role) -> None:
    facts = facts_of(f"""
        3 steps of 100
        cpu     aten::linear 10-12 sequence=5 | {BACK} 30-40 sequence=5 "Fwd thread id"=1 | optimizer 60-65
        cpu     c10d::allreduce_ 50-51 | c10d::_allgather_base_ 70-71
        gpu     sgemm 12-40 @11
        gpu 20  nccl 51-60 @50.5 operation={reduced} dtype=Float
        gpu 20  allgather 80-89 @70.5 operation=_allgather_base out_elements={gathered} dtype=Float
    """)
    assert found in roles(facts).tolist()


def test_without_launches_kernels_tell_what_they_can() -> None:
    reduced = "nccl 3-4 operation=allreduce in_elements=99999 dtype=Float"
    facts = facts_of(f"gpu 20 nccl 1-2 operation=all_to_all | {reduced}")
    assert roles(facts).tolist() == [Role.EXCHANGE, Role.OTHER]


def test_gradients_one_by_one_would_take_less_in_buckets() -> None:
    facts = facts_of(f"""
        3 steps of 100
        cpu     aten::linear 10-12 sequence=5 | {BACK} 30-40 sequence=5 "Fwd thread id"=1 | optimizer 90-95
        cpu     c10d::allreduce_ 50-50.5 x30 every 1
        gpu     sgemm 12-40 @11 | sgemm 90-99 @89
        gpu 20  nccl 50.5-51.3 @50.1 x30 every 1 operation=allreduce in_elements=1000000 dtype=Float
    """)
    found = loose_gradients(facts)
    # 120 MB: six buckets, the first of 1 MiB and five of up to 25. Of 30 times 0.8 ms 24 can be spared.
    assert (found.calls, found.bytes, found.exposed_ns) == (30, 120_000_000, 24_000_000)
    # 37 ms of compute could hide 33.3: all of it, but for the last of the six buckets.
    left = 30 * 800_000 - 24 * 800_000
    joined = [left + 12 * 800_000, left * (1 - 0.5 * 5 / 6), left / 6]
    assert found.joined_ns[:, 0].tolist() == pytest.approx(joined, abs=1)
