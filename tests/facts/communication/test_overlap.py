"""How much exposed communication compute could hide."""

import pytest

from diagnose.facts.communication.overlap import exposure
from diagnose.facts.core.base import Missing
from tests.drawing import Drawing

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def three_steps(compute_us: int, communication: list[tuple[int, int]]) -> Drawing:
    """Steps of 1000 us that compute from 0 on, the last us too, and communicate at these times."""
    draw = Drawing()
    for number in range(3):
        at = 1000 * number
        draw.step(number, at, at + 999).launch("gemm", (at, at + 1), (at + 1, at + compute_us))
        for k, (start, end) in enumerate(communication):
            draw.launch(NCCL, (at + 2 + 2 * k, at + 3 + 2 * k), (at + start, at + end), stream=20)
        draw.launch("last", (at + 900, at + 901), (at + 999, at + 1000))
    return draw


def test_with_enough_compute_all_could_be_hidden() -> None:
    found = exposure(three_steps(500, [(600, 700), (800, 900)]).facts())
    assert (found.ns, found.exposed_ns, found.compute_ns, found.share) == (200_000, 200_000, 500_000, 0.2)
    assert found.bytes is None
    assert (found.hideable_ns, found.hideable_share) == (200_000, 1.0)  # 0.9 of 500 us is more than 200


def test_with_little_compute_a_part() -> None:
    found = exposure(three_steps(100, [(300, 800)]).facts())
    assert found.hideable_share == pytest.approx(0.9 * 100 / 500)


def test_what_is_hidden_already_needs_its_compute() -> None:
    found = exposure(three_steps(200, [(50, 100), (150, 650)]).facts())
    assert (found.ns, found.exposed_ns) == (550_000, 450_000)  # the first is hidden
    # The compute could hide 0.9 * 200 = 180 us, of which it hides 100: 80 more, of the second one's 500.
    assert found.hideable_share == pytest.approx(80 / 500, abs=0.002)


def test_without_communication_or_device() -> None:
    found = exposure(three_steps(500, []).facts())
    assert (found.ns, found.exposed_ns, found.share, found.hideable_share) == (0, 0, 0.0, 0.0)
    with pytest.raises(Missing, match="device work"):
        exposure(Drawing().op("aten::mm", 0, 10).facts())
