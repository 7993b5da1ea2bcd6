"""Source lines from samples, on drawings and against a slow way to say the same."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace import sampling
from diagnose.trace.model import Rank
from diagnose.trace.sampling import CLOSE_NS, Samples
from tests.drawing import Drawing

MAIN = 0  # The track of the only host thread.

Line = tuple[float, float, str]


def sampled(rank: Rank, *moments: tuple[float, str]) -> list[Line]:
    """(Start, end, frame) of each row of `lines`, in us; `moments` are (us, frame)."""
    names = tuple(dict.fromkeys(name for _, name in moments))
    samples = Samples(
        moment_ns=np.array([round(at * 1000) for at, _ in moments], dtype=np.int64),
        track=np.full(len(moments), MAIN, dtype=np.int64),
        frame=np.array([names.index(name) for _, name in moments], dtype=np.int64),
        names=names,
    )
    found = sampling.lines(rank.spans, samples)
    assert set(found["track"]) <= {MAIN}
    ends = found["start_ns"] + found["dur_ns"]
    return [
        (start / 1000, end / 1000, str(name))
        for start, end, name in zip(found["start_ns"], ends, found["name"], strict=True)
    ]


def test_a_call_comes_from_one_line_and_a_pause_from_one_function() -> None:
    rank = Drawing().op("aten::mm", 0, 4000).op("aten::relu", 10_000, 14_000).op("aten::add", 20_000, 21_000).rank()
    crops = [(at, f"data.py({line}): crop") for at, line in ((5000, 3), (6000, 4), (7000, 4), (15_000, 3))]
    assert sampled(rank, (3900, "net.py(7): forward"), *crops) == [
        (0, 4000, "net.py(7): forward"),
        (4000, 10_000, "data.py(4): crop"),  # Its hottest line
        (14_000, 20_000, "data.py(4): crop"),  # names the function elsewhere, too.
    ]


def test_what_most_samples_tell_counts() -> None:
    rank = Drawing().op("MyFunctionBackward", 0, 4000).op("aten::add", 5000, 5001).rank()
    moments = [(1000, "f.py(1): a"), (2000, "f.py(2): b"), (3000, "f.py(2): b"), (4500, "f.py(9): c")]
    assert sampled(rank, *moments) == [(0, 4000, "f.py(2): b"), (4000, 5000, "f.py(9): c")]


def test_ops_within_ops_are_of_the_line_of_the_outer_one() -> None:
    rank = Drawing().op("aten::linear", 0, 100).op("aten::addmm", 10, 90).call("cudaLaunchKernel", 20, 30).rank()
    assert sampled(rank, (95, "net.py(7): forward")) == [(0, 100, "net.py(7): forward")]


def test_a_call_missed_in_one_step_is_known_from_another() -> None:
    draw = Drawing()
    for number, at in ((3, 0), (4, 50_000), (5, 100_000)):
        draw.step(number, at, at + 50_000).op("aten::mm", at, at + 10).op("aten::mm", at + 10_000, at + 10_010)
    draw.op("aten::mm", 130_000, 130_010)  # Step 5 has another: which of them is the second is not known.
    rows = sampled(draw.rank(), (10_005, "net.py(8): forward"), (55_000, "net.py(2): wait"))
    wait, forward = "net.py(2): wait", "net.py(8): forward"
    first = [(10, 10_000, wait), (10_000, 10_010, forward)]
    assert rows == [*first, (50_010, 60_000, wait), (60_000, 60_010, forward)]


def test_what_lies_between_close_samples_of_one_line_is_of_that_line() -> None:
    draw = Drawing()
    for at in range(0, 10_000, 100):
        draw.op("aten::add", at, at + 90)
    rows = sampled(draw.rank(), (1000, "a.py(1): f"), (3000, "a.py(1): f"), (5000, "a.py(2): f"), (9500, "a.py(2): f"))
    ops = [row for row in rows if row[1] - row[0] == 90]
    assert [start for start, _, name in ops if name == "a.py(1): f"] == list(range(1000, 3001, 100))
    assert [start for start, _, name in ops if name == "a.py(2): f"] == [5000, 9500]  # Too far apart.


def test_samples_outside_of_all_calls_tell_nothing() -> None:
    rank = Drawing().op("aten::mm", 100, 200).rank()
    assert sampled(rank, (300, "a.py(1): f")) == []  # What follows is not recorded.
    assert sampled(Drawing().span("user_annotation", "mine", 0, 100).rank(), (50, "a.py(1): f")) == []


def slowly(bounds: list[int], moments: list[tuple[int, str]]) -> list[tuple[int, int, str]]:
    """Calls from each even to each odd bound; the lines of calls and pauses by looking at each."""
    cells = list(pairwise(bounds))
    told = [next((name for at, name in moments if start <= at < end), None) for start, end in cells]
    filled = list(told)
    for k, one in enumerate(told):
        before = next((j for j in range(k, -1, -1) if told[j]), None)
        after = next((j for j in range(k, len(told)) if told[j]), None)
        known = one is None and before is not None and after is not None
        if known and told[before] == told[after] and cells[after][0] - cells[before][1] <= CLOSE_NS:
            filled[k] = told[before]
    return [(*cell, name) for cell, name in zip(cells, filled, strict=True) if name]


@pytest.mark.slow
@given(
    bounds=st.sets(st.integers(0, 20_000), min_size=2, max_size=24).filter(lambda one: len(one) % 2 == 0),
    moments=st.sets(st.integers(0, 20_000), max_size=12),
)
def test_one_function_everywhere_is_what_looking_at_each_gives(bounds: set[int], moments: set[int]) -> None:
    ordered = sorted(bound * 1000 for bound in bounds)
    zero = ordered[0]
    draw = Drawing()
    for start, end in zip(ordered[::2], ordered[1::2], strict=True):
        draw.op("aten::mm", start / 1000, end / 1000)
    told = [(at * 1000 - zero, "a.py(5): f") for at in sorted(moments)]
    shifted = [one - zero for one in ordered]
    rows = sampled(draw.rank(), *[(at / 1000, name) for at, name in told])
    assert [(round(a * 1000), round(b * 1000), name) for a, b, name in rows] == slowly(shifted, told)
