"""How fast large collectives transfer, where it is known that no rank was waited for."""

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.communication.bandwidth import BusRate, WideGradients, bus_rates, crossings, wide_gradients
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.peers import compare
from diagnose.facts.communication.roles import Role, share_a_machine
from diagnose.facts.core.base import Facts, Missing
from diagnose.synthetic.reading import facts_of, facts_of_ranks
from diagnose.trace.manifest import Host, RankManifest
from diagnose.trace.model import Context

MB64 = "in_elements=16777216 dtype=Float"  # 67,108,864 bytes.
H100 = "NVIDIA H100 80GB HBM3"


def two(device: str, first: str, second: str) -> Facts:
    """A collective that starts at 10 ms of each step, and one right after it."""
    return facts_of(f"""
        4 steps of 100
        device {device}
        rank 0 of 16
        machine a of 8 devices
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 x2 every 0.3 | device_sync 1-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  {first}
        gpu 20  {second}
    """)


def pair(device: str, size: str = MB64, ranks: int = 8, operation: str = "allreduce") -> Facts:
    """30 ms each; of the first, others may be late."""
    told = f"operation={operation} {size} group_size={ranks} group_ranks={list(range(ranks))}".replace(", ", ",")
    return two(device, f"allreduce 10-40 @0.3 {told}", f"allreduce 40.01-70.01 @0.6 {told}")


def only(facts: Facts) -> BusRate:
    (found,) = bus_rates(facts)
    return found


def test_the_second_of_two_in_a_row_waits_for_nobody() -> None:
    found = only(pair(H100))
    assert (found.operation, found.group_size, found.bytes) == ("allreduce", 8, 67_108_864)
    # Of 30 ms less the 0.3 from launch to launch: a rank whose host is not ahead comes so late.
    assert (found.calls, found.transfer_ns, found.compared) == (3, 29_700_000, False)
    assert found.gbps == pytest.approx(1.75 * 67_108_864 / 29.7e6)  # 2 x 7 / 8 of the bytes are on the wire
    assert found.expected_ns == round(100_000 + 1.75 * 67_108_864 / (0.7 * 450))
    assert (len(found.ids), found.ns) == (4, 30_000_000)


OF_EIGHT = f"operation=allreduce {MB64} group_size=8 group_ranks=[0,1,2,3,4,5,6,7]"


def test_what_other_ranks_may_still_have_to_compute_or_to_launch_is_no_transfer() -> None:
    first = f"allreduce 10-40 @0.3 {OF_EIGHT}\ngpu  sgemm 12-20 @0.45"
    found = only(two(H100, first, f"allreduce 40.01-70.01 @0.6 {OF_EIGHT}"))
    assert found.transfer_ns == 22_000_000  # of 30 ms, where 8 ms are computed between both launches
    facts = facts_of(f"""
        4 steps of 100
        rank 0 of 16
        machine a of 8 devices
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 x2 every 18 | device_sync 20-99.9
        gpu     sgemm 0.1-10 @0.05
        gpu 20  allreduce 30-60 @0.3 {OF_EIGHT} | allreduce 60.01-90.01 @18.3 {OF_EIGHT}
    """)
    assert only(facts).transfer_ns == 12_000_000  # of 30 ms, where the host takes 18 ms from one launch to the other


@pytest.mark.parametrize(
    ("device", "ranks", "operation", "wire", "bytes_per_ns"),
    [
        ("NVIDIA A100-SXM4-80GB", 4, "all_gather", 0.75, 0.7 * 300),
        ("NVIDIA A100-SXM4-80GB", 4, "_reduce_scatter_base", 0.75, 0.7 * 300),
        ("Tesla T4", 2, "allreduce", 1.0, 5.0),  # PCIe 3
        ("AMD Instinct MI300X", 2, "allreduce", 1.0, 0.7 * 448 / 7),  # one of seven links
    ],
)
def test_what_is_usual(device: str, ranks: int, operation: str, wire: float, bytes_per_ns: float) -> None:
    found = only(pair(device, ranks=ranks, operation=operation))
    assert found.expected_ns == pytest.approx(100_000 + wire * 67_108_864 / bytes_per_ns, abs=1)


@pytest.mark.parametrize(
    "facts",
    [
        pair(H100, size="in_elements=16384 dtype=Float"),  # 64 KiB: latency
        pair(H100, ranks=16),  # through a network
        pair(H100, operation="send"),
    ],
)
def test_what_says_nothing_of_links(facts: Facts) -> None:
    assert bus_rates(facts) == ()


@pytest.mark.parametrize(("peers", "known"), [(None, 1), (8, 1), (4, 0)])
def test_ranks_on_several_machines_use_the_network(peers: int | None, known: int) -> None:
    told = Context(RankManifest(rank=0, world_size=16, peers=peers), Host(), peers or 8)
    assert len(bus_rates(Facts(replace(pair(H100).rank, context=told)))) == known


RANK = f"""
4 steps of 100
rank {{rank}} of 2
device {H100}
machine {{machine}} of 2 devices
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-{{computed}} @0.05
gpu 20  allreduce {{computed}}-90 @0.3 operation=allreduce {MB64} group_size=2
"""


def compared(second: str) -> Iterator[Facts]:
    """Two ranks that compute until 60 and 80 ms of each step, the second one on this machine."""
    synthetic = (RANK.format(rank=k, computed=60 + 20 * k, machine=name) for k, name in enumerate(("a", second)))
    ranks = facts_of_ranks("---\n".join(synthetic))
    told = compare({number: collective_sequence(facts) for number, facts in enumerate(ranks)})
    return (Facts(replace(facts.rank, peers=told.peers(number))) for number, facts in enumerate(ranks))


def test_other_ranks_tell_what_was_waiting_unless_they_are_on_other_machines() -> None:
    for facts in compared("a"):
        found = only(facts)
        assert (found.transfer_ns, found.compared) == (10_000_000, True)
    assert [bus_rates(facts) for facts in compared("b")] == [(), ()]


@pytest.mark.parametrize(
    ("world", "devices", "ranks", "within"),
    [
        (8, 8, "[0,1,2,3]", True),
        (16, 8, "[0,8]", False),  # the first of each machine
        (16, 8, "[8,9]", True),
        (16, 8, "", None),
        (4, 8, "", True),  # a group of two of four
        (2, 1, "[0,1]", None),  # a machine with one device, or one device shown to each process
    ],
)
def test_where_ranks_are(world: int, devices: int, ranks: str, within: bool | None) -> None:
    facts = facts_of(f"rank 0 of {world}\nmachine a of {devices} devices\ncpu aten::mm 0-1")
    assert share_a_machine(facts, ranks, 4 if ranks.count(",") == 3 else 2) is within


def test_two_ranks_on_the_first_device_of_eight_are_on_two_machines() -> None:
    first, second = compared("a")
    told = first.rank.peers
    assert told is not None
    unnamed = replace(told, machines=np.array([-1, -1]))
    assert share_a_machine(Facts(replace(first.rank, peers=unnamed)), "[0,1]", 2) is False
    elsewhere = replace(unnamed, devices=np.array([0, 1]))
    assert share_a_machine(Facts(replace(second.rank, peers=elsewhere)), "[0,1]", 2) is True


def test_what_is_missing() -> None:
    with pytest.raises(Missing, match="waiting inside large collectives"):  # others may be late
        bus_rates(two(H100, f"allreduce 10-40 @0.3 {OF_EIGHT}", "sgemm 41-50 @0.6"))
    with pytest.raises(Missing, match="peak rates of the GPU"):
        bus_rates(pair("NVIDIA GeForce GTX 1080 Ti"))
    with pytest.raises(Missing, match="which ranks share a machine"):
        bus_rates(two(H100, f"allreduce 10-40 @0.3 operation=allreduce {MB64} group_size=8", "sgemm 41-50 @0.6"))
    with pytest.raises(Missing, match="sizes of collectives"):
        bus_rates(pair(H100, size=""))
    with pytest.raises(Missing, match="device work"):
        bus_rates(facts_of("3 steps of 10\ncpu aten::mm 1-2"))


BACK = '"autograd::engine::evaluate_function: MmBackward0"'


def wide(second: str) -> WideGradients:
    """Two buckets of 100 MB in 20 ms each; the last of compute ends at 70 ms, and is launched before the second."""
    facts = facts_of(f"""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-0.12 | device_sync 3-99.9
        cpu     {BACK} 0.15-0.45 | c10d::allreduce_ 0.2-0.4 | {BACK} 1.15-1.45 | c10d::allreduce_ 1.2-1.4
        gpu     sgemm 0.3-50 @0.11 | sgemm 50-70 @{second}
        gpu 20  allreduce 50-70 @0.3 operation=allreduce in_elements=25000000 dtype=Float
        gpu 20  allreduce 70-90 @1.3 operation=allreduce in_elements=25000000 dtype=Float
    """)
    (found,) = wide_gradients(facts)
    return found


def test_the_last_reduction_waits_for_what_is_computed_before_it() -> None:
    found = wide(second="0.6")
    assert (found.role, found.calls, found.bytes) == (Role.BUCKET, 2, 200_000_000)
    assert (found.ns, found.exposed_ns) == (40_000_000, 20_000_000)
    cast = 25_000_000 * 12 / 3350
    each = 10_050_000 + cast  # half of what exceeds 0.1 ms
    assert found.halved_ns == pytest.approx(2 * each, abs=4)
    assert found.spared_ns == pytest.approx(20_000_000 - each, abs=4)  # it still begins at 70 ms
    assert found.left == pytest.approx(1 - found.spared_ns / 20_000_000)
    assert len(found.ids) == 3  # the exposed one of each used step


def test_one_that_is_ready_before_starts_sooner() -> None:
    found = wide(second="1.5")  # launched after the second reduction, which needs only what ends at 50 ms
    cast = 25_000_000 * 12 / 3350
    assert found.spared_ns == pytest.approx(min(90e6 - (50e6 + 2 * (10_050_000 + cast)), found.exposed_ns), abs=8)


def test_types_of_gradients_may_be_missing() -> None:
    text = f"""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-0.12 | {BACK} 0.15-0.45 | c10d::allreduce_ 0.2-0.4
        gpu     sgemm 0.3-50 @0.11
        gpu 20  allreduce 50-70 @0.3
    """
    with pytest.raises(Missing, match="types of collectives"):
        wide_gradients(facts_of(text))


ELEMENTS = 268_435_456
ACROSS, WITHIN = 'group_size=2 group_ranks="[0, 2]"', 'group_size=2 group_ranks="[0, 1]"'


def synthetic(ranks: str) -> Facts:
    """Two exchanges of 1 GiB for 40 ms each, the second right behind the first, then 64 MiB of gradients for 2 ms."""
    return facts_of(f"""
        4 steps of 100
        device NVIDIA H100 80GB HBM3
        rank 0 of 4
        machine a of 2 devices
        cpu     aten::mm 0-0.1 | c10d::alltoall_base_ 0.2-0.3 x2 every 0.1 | device_sync 1-99.9
        cpu     c10d::allreduce_ 0.6-0.8
        gpu     sgemm 0.1-10 @0.05
        gpu 20  nccl 10-50 @0.25 operation=alltoall in_elements={ELEMENTS} dtype=Float {ranks}
        gpu 20  nccl 50-90 @0.35 operation=alltoall in_elements={ELEMENTS} dtype=Float {ranks}
        gpu 21  nccl 90-92 @0.7 operation=allreduce in_elements=16777216 dtype=Float {WITHIN}
    """)


def test_what_is_left_within_a_machine_and_what_crosses_in_its_place() -> None:
    (found,) = crossings(synthetic(ACROSS))
    assert (found.role, found.group_size, found.machine_ranks, found.ns) == (Role.EXCHANGE, 2, 2, 80_000_000)
    # Half of 1 GiB goes over the wire: in 40 ms, or with 0.7 of 450 GB/s, after 0.1 ms.
    wire = 2 * ELEMENTS
    assert found.gbps == pytest.approx(wire / 40e6, rel=0.01)
    assert found.left == pytest.approx((0.1 + wire / 315e6) / 40, rel=0.01)
    # Two ranks reduce as many bytes as they have: 64 MiB at that rate, and 0.1 ms to start.
    assert len(found.others_ids) == 4
    assert found.others_ns.tolist() == [[pytest.approx(1e5 + 4 * 16_777_216 / found.gbps, rel=0.01)] * 4] * 3
    assert crossings(synthetic(WITHIN)) == ()
