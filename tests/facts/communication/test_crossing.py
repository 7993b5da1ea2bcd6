"""Groups across machines that would fit one."""

import pytest

from diagnose.facts.communication.bandwidth import crossings
from diagnose.facts.communication.roles import Role
from diagnose.facts.core.base import Facts
from diagnose.synthetic.reading import facts_of

ELEMENTS = 268_435_456
ACROSS, WITHIN = 'group_size=2 group_ranks="[0, 2]"', 'group_size=2 group_ranks="[0, 1]"'


def synthetic(ranks: str) -> Facts:
    """Two exchanges of 1 GiB for 40 ms each, the second right behind the first, then 64 MiB of gradients for 2 ms."""
    return facts_of(
        f"""
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
        """
    )


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


def test_a_group_within_a_machine_crosses_none() -> None:
    assert crossings(synthetic(WITHIN)) == ()
