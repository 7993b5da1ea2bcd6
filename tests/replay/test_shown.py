"""What edits touch: how much of what they change."""

import numpy as np
import pytest

from diagnose.facts.core.base import Facts
from diagnose.replay.edits import Between, Detach, Edit, Move, Remove, Replace, Shorten, Times
from diagnose.replay.shown import Change, ChangeKind, change
from diagnose.trace import intervals
from tests.replay.programs import ids, python

NONE = np.zeros(0, dtype=np.int64)


def three(*us: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Durations of four groups at each level."""
    return np.array([[1_000 * one] * 4 for one in us], dtype=np.int64)


def test_shortened(trained: Facts) -> None:
    gemm = ids(trained, "gemm")
    assert change(trained, Shorten(gemm, Between(0.9, 0.5, 0.2))) == Change(
        ChangeKind.SHORTEN, 3, 200_000, (0.9, 0.5, 0.2)
    )
    assert change(trained, Shorten(gemm, 7.0)).left == (1.0, 1.0, 1.0)


def test_removed(trained: Facts) -> None:
    assert change(trained, Remove(ids(trained, "aten::mm"))) == Change(ChangeKind.REMOVE, 3, 400_000, (0.0, 0.0, 0.0))


def test_detached(trained: Facts) -> None:
    found = change(trained, Detach(ids(trained, "cudaStreamSynchronize")))
    assert found == Change(ChangeKind.DETACH, 3, 300_000, None)


def test_moved(trained: Facts) -> None:
    add = ids(trained, "aten::add")
    assert change(trained, Move(add, 4)) == Change(ChangeKind.MOVE, 3, 300_000, (0.25, 0.25, 0.25))
    assert change(trained, Move(add, Between(1, 2, 8))).left == (1.0, 0.5, 0.125)


def test_replaced(trained: Facts) -> None:
    gemm = ids(trained, "gemm")
    found = change(trained, Replace(gemm, np.arange(4), three(190, 100, 50)))
    assert found == Change(ChangeKind.REPLACE, 3, 200_000, (0.95, 0.5, 0.25))


def test_times_of_a_thread_count_where_they_lie(trained: Facts) -> None:
    # Of the last step's, at 3,700 us, the device's steps have nothing; the first step's is theirs.
    assert change(trained, Shorten(python(trained), 0.5)) == Change(ChangeKind.SHORTEN, 3, 200_000, (0.5, 0.5, 0.5))


def test_time_in_several_operations_counts_once(trained: Facts) -> None:
    both = np.concatenate([ids(trained, name) for name in ("cudaLaunchKernel", "aten::mm", "aten::mm")])
    found = change(trained, Remove(both))
    assert (found.count, found.ns) == (6, 400_000)


def test_a_third_of_a_step_is_rounded(trained: Facts) -> None:
    last = ids(trained, "gemm")[-1:]
    assert change(trained, Remove(last)).ns == 66_667


@pytest.mark.parametrize(
    "edit",
    [
        Shorten(NONE, 0.0),
        Remove(NONE),
        Detach(NONE),
        Move(NONE, 4),
        Replace(NONE, NONE, np.zeros((3, 0), dtype=np.int64)),
        Shorten(Times(0, intervals.EMPTY), 0.0),
    ],
    ids=["shorten", "remove", "detach", "move", "replace", "times"],
)
def test_an_edit_of_nothing_changes_nothing(trained: Facts, edit: Edit) -> None:
    found = change(trained, edit)
    assert (found.count, found.ns) == (0, 0)
