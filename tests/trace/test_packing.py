"""Courses in few bytes, and whole again."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.synthetic.reading import facts_of
from diagnose.trace.job import CollectiveSequence, ProcessGroup
from diagnose.trace.packing import packed, unpacked

RANK = """
4 steps of 100
rank 0 of 2
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-60 @0.05
gpu 20  allreduce 60-90 @0.3 group_size=2
"""
MOST = np.iinfo(np.int64).max
NUMBERS = st.lists(st.integers(-MOST - 1, MOST) | st.integers(-200, 200), max_size=20)


def synthetic() -> CollectiveSequence:
    return collective_sequence(facts_of(RANK))


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one) and type(one) is type(other):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return one == other


def test_a_course_is_the_same_again() -> None:
    assert same(unpacked(packed(synthetic())), synthetic())


@given(NUMBERS)
def test_any_numbers_are_the_same_again(values: list[int]) -> None:
    one = replace(synthetic(), bounds_ns=np.array(values, dtype=np.int64))
    assert same(unpacked(packed(one)), one)


def test_a_group_is_held_once_for_all_ranks() -> None:
    group = ProcessGroup("0", "default_pg", tuple(range(1_000)))
    first, second = (unpacked(packed(replace(synthetic(), rank=rank, groups=(group,)))) for rank in (0, 1))
    assert first.groups == (group,)
    assert first.groups[0] is second.groups[0]


def test_times_that_rise_take_few_bytes() -> None:
    calls = 10_000
    many = replace(synthetic(), bounds_ns=1_790_857_026_000_000_000 + 1_000_003 * np.arange(calls))
    assert len(packed(many)) < calls
