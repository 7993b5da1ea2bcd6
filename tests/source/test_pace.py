"""Steps without the profiler, before and after the recordings."""

import pytest

from diagnose.source import pace
from diagnose.trace.manifest import RankManifest, Timed
from diagnose.trace.model import Ground

BEFORE = (9_000_000, 10_000_000, 10_000_000, 10_000_000, 11_000_000)


def noted(after: tuple[int, ...] | None) -> list[str]:
    timed = None if after is None else Timed(first_step=90, wall_ns=after)
    rank = RankManifest(rank=0, unprofiled=Timed(first_step=10, wall_ns=BEFORE), unprofiled_after=timed)
    assert all(note.doubts == (Ground.HOST_TIMES,) for note in pace.notes(rank))
    return [note.what for note in pace.notes(rank)]


def test_a_slower_host_is_noted() -> None:
    assert noted((12_000_000,) * 5) == ["Without the profiler steps took 10.0 ms before the recordings, 12.0 ms after."]


def test_a_faster_host_is_noted() -> None:
    assert len(noted((8_000_000,) * 5)) == 1


@pytest.mark.parametrize(
    "after",
    [
        None,
        (),
        (10_400_000,) * 5,  # 4 % more
        (9_900_000, 10_000_000, 12_000_000, 12_000_000, 13_000_000),  # as often as not as before
    ],
)
def test_what_is_within_the_spread_is_none(after: tuple[int, ...] | None) -> None:
    assert noted(after) == []
