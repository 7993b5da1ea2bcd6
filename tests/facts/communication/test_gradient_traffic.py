"""What fp32 gradients take on the wire."""

from __future__ import annotations

import pytest

from diagnose.facts.communication.gradient_traffic import WideGradients, wide_gradients
from diagnose.facts.communication.roles import Role
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

BACK = '"autograd::engine::evaluate_function: MmBackward0"'


def only(second: str) -> WideGradients:
    """Two buckets of 100 MB in 20 ms each; the last of compute ends at 70 ms, and is launched before the second."""
    (found,) = wide_gradients(
        facts_of(f"""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-0.12 | device_sync 3-99.9
        cpu     {BACK} 0.15-0.45 | c10d::allreduce_ 0.2-0.4 | {BACK} 1.15-1.45 | c10d::allreduce_ 1.2-1.4
        gpu     sgemm 0.3-50 @0.11 | sgemm 50-70 @{second}
        gpu 20  allreduce 50-70 @0.3 operation=allreduce in_elements=25000000 dtype=Float
        gpu 20  allreduce 70-90 @1.3 operation=allreduce in_elements=25000000 dtype=Float
        """)
    )
    return found


def test_the_last_reduction_waits_for_what_is_computed_before_it() -> None:
    found = only(second="0.6")
    assert (found.role, found.calls, found.bytes) == (Role.BUCKET, 2, 200_000_000)
    assert (found.ns, found.exposed_ns) == (40_000_000, 20_000_000)
    cast = 25_000_000 * 12 / 3350
    each = 10_050_000 + cast  # half of what exceeds 0.1 ms
    assert found.halved_ns == pytest.approx(2 * each, abs=4)
    assert found.spared_ns == pytest.approx(20_000_000 - each, abs=4)  # it still begins at 70 ms
    assert found.left == pytest.approx(1 - found.spared_ns / 20_000_000)
    assert len(found.ids) == 3  # the exposed one of each used step


def test_one_that_is_ready_before_starts_sooner() -> None:
    found = only(second="1.5")  # launched after the second reduction, which needs only what ends at 50 ms
    cast = 25_000_000 * 12 / 3350
    assert found.spared_ns == pytest.approx(min(90e6 - (50e6 + 2 * (10_050_000 + cast)), found.exposed_ns), abs=8)


def test_what_is_missing() -> None:
    text = f"""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-0.12 | {BACK} 0.15-0.45 | c10d::allreduce_ 0.2-0.4
        gpu     sgemm 0.3-50 @0.11
        gpu 20  allreduce 50-70 @0.3
    """
    with pytest.raises(Missing, match="types of collectives"):
        wide_gradients(facts_of(text))
