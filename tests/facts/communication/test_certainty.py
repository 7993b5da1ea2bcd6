"""Chance in what differs from step to step."""

import numpy as np
import pytest

from diagnose.facts.communication.certainty import is_certain


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
