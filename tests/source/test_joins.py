"""Device work that does not name the call that launched it."""

import pytest

from diagnose.replay.edits import Remove
from tests.drawing import Drawing
from tests.replay.programs import ids, saving

IN_ORDER = [(10, 12), (20, 22), (30, 32)]


@pytest.mark.parametrize(
    ("runs", "by_op", "expected"),
    [
        ([(12, 7), (22, 8), (32, 7)], True, IN_ORDER),
        ([(12, 7), (22, 7), (32, 7)], False, IN_ORDER),
        ([(32, 7), (42, 8), (12, 7)], True, [(10, 32), (20, 42)]),  # work of op 6 starts before its call
        ([(12, 7), (22, 8), (32, 7)], False, []),  # calls do not say on which stream
        ([(12, 7), (32, 7)], False, []),  # the work of one was lost: nothing says of which
        ([(5, 7), (12, 7), (22, 7), (32, 7)], False, IN_ORDER),  # the first was launched before the recording
        ([(12, 7), (19, 7), (32, 7)], False, []),  # one would start before its call
    ],
)
def test_work_is_joined_by_its_op_else_by_order(
    runs: list[tuple[int, int]], by_op: bool, expected: list[tuple[int, int]]
) -> None:
    draw = Drawing().op("aten::mm", 0, 50)
    for start, op in ((10, 5), (20, 5), (30, 6)):
        draw.span("cuda_runtime", "hipLaunchKernel", start, start + 2, **({"External id": op} if by_op else {}))
    for (start, stream), op in zip(runs, (5, 5, 6, 7), strict=False):
        draw.work("k", (start, start + 5), stream=stream, correlation=0, **({"External id": op} if by_op else {}))
    rank = draw.rank()
    start_us = rank.spans["start_ns"] // 1000
    launched = zip(start_us[rank.links["from_id"]], start_us[rank.links["to_id"]], strict=True)
    assert sorted(launched) == expected
    assert any("name no call" in note.what for note in rank.integrity) is bool(expected)


def test_what_the_host_does_counts_where_no_work_can_be_joined() -> None:
    """Each step frees for 80 us, then kernels on two streams run for 10 us."""
    draw = Drawing()
    for number in range(5):
        begin = 100 * number
        draw.step(number, begin, begin + 100).span("cuda_runtime", "hipFree", begin, begin + 80)
        for stream in (7, 8):
            draw.span("cuda_runtime", "hipLaunchKernel", begin + 80 + stream / 10, begin + 80.2 + stream / 10)
            draw.work("k", (begin + 84, begin + 94), stream=stream)
    facts = draw.facts()
    assert not len(facts.rank.links)
    assert saving(facts, Remove(ids(facts, "hipFree"))).likely_ns == pytest.approx(80_000, rel=0.05)
