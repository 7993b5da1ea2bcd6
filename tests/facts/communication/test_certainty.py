"""Chance in what differs from step to step."""

import numpy as np
import pytest

from diagnose.facts.communication.certainty import cores_shared, is_certain
from diagnose.trace.manifest import Flags, Host, RankManifest, Timed
from diagnose.trace.model import Context


@pytest.mark.parametrize(
    ("excess", "certain"),
    [
        ([5.0], False),  # one step says nothing of its spread
        ([5.0, 5.0], True),
        ([11.1, 14.3], False),  # mean 12.7, error 1.6: 63.7 errors are needed of two
        ([29.8, 33.7, 27.7], True),  # mean 30.4, error 1.76: 17.3 of 9.9
        ([1.0, 3.0, 2.0, 4.0], False),  # mean 2.5, error 0.65: 3.9 of 5.8
        ([-5.0, -5.0, -5.0], False),
    ],
)
def test_an_excess_is_certain_beyond_its_error(excess: list[float], certain: bool) -> None:
    assert is_certain(np.array(excess)) is certain


@pytest.mark.parametrize(
    ("threads", "busy", "shared"),
    [
        (1, None, True),  # 4 ranks of a thread each: 2 cores are enough only if each core is worth two
        (None, None, False),
        (1, 0.1, False),  # they sleep: 0.4 of 2 cores are busy
        (1, 0.3, True),  # 1.2 of 2 cores that may be one
        (8, 0.1, False),
        (None, 0.3, True),
    ],
)
def test_ranks_share_cores_if_they_keep_more_than_half_of_them_busy(
    threads: int | None, busy: float | None, shared: bool
) -> None:
    cpu_ns = None if busy is None else round(busy * 100)
    alone = Timed(first_step=0, wall_ns=(90, 110), cpu_ns=cpu_ns)
    rank = RankManifest(rank=0, flags=Flags(threads=threads), unprofiled=alone)
    assert cores_shared(Context(rank, Host(cpus=2, cpus_allowed=2), ranks=4)) is shared


def test_an_unknown_number_of_cores_is_not_shared() -> None:
    assert not cores_shared(Context(RankManifest(rank=0, flags=Flags(threads=1)), Host(), ranks=4))
