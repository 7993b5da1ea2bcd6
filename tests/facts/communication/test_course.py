"""Where a rank is held up by its collectives."""

from __future__ import annotations

from diagnose.facts.communication.course import course
from diagnose.synthetic.reading import facts_of


def test_gaps_between_kernels_beside_a_collective_do_not_wait_for_it() -> None:
    found = course(
        facts_of(
            """
            3 steps of 100
            rank 0 of 2
            cpu     aten::mm 0-0.1 | aten::mm 0.2-0.3 | aten::mm 0.4-0.5 | device_sync 1-99.9
            gpu     sgemm 1-40 @0.05 | sgemm 41-60 @0.25 | sgemm 80-90 @0.45
            gpu 20  allreduce 30-80 @0.3 group_size=2
            """
        )
    )
    lane, begin = found.lane, found.bounds_ns[0]
    held = [
        ((start - begin) / 1e6, (end - begin) / 1e6) for start, end in zip(lane.from_ns, lane.until_ns, strict=True)
    ]
    waits = [one for one, waiting in zip(held, lane.waits, strict=True) if waiting]
    assert waits == [(60.0, 80.0), (160.0, 180.0)]
