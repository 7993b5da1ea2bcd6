"""Recorded times as integer nanoseconds; times that cannot be true; device times on the clock of the host.

These move where, and only where, an effect came before its cause.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.source import clock
from diagnose.source.base import Damage
from diagnose.trace.model import Ground, IntegrityNote, Rank
from tests.drawing import Drawing

DAY_NS = 86_400_000_000_000
OFFSETS = st.lists(st.integers(0, DAY_NS // 4), min_size=1, max_size=30)


def converted(
    ts: list[Any], dur: list[float] | None = None, base: int = 0, exact: bool = False
) -> tuple[clock.Times, Damage]:
    damage = Damage()
    stamps = np.array(ts, dtype=np.int64 if exact else np.float64)
    durations = np.array(dur or [1.0] * len(ts))
    return clock.to_ns(stamps, durations, np.zeros(len(ts), dtype=bool), base, damage), damage


@given(OFFSETS, st.integers(0, 7_889_238 * 10**9), st.integers(0, 1 << 61))
def test_relative_times_are_exact(offsets: list[int], start: int, base: int) -> None:
    """As Kineto writes them since 2024-05: us with three decimals from the start of the quarter, in a double."""
    stamps_ns = [start + offset for offset in offsets]
    found, damage = converted([float(Decimal(stamp) / 1000) for stamp in stamps_ns], base=base)
    assert found.start_ns.tolist() == [stamp - min(stamps_ns) for stamp in stamps_ns]
    assert found.zero_unix_ns == base + min(stamps_ns)
    assert found.keep.all()
    assert damage == Damage()


@given(OFFSETS)
def test_absolute_times_as_integers_are_exact(offsets: list[int]) -> None:
    stamps = [1_712_170_274_000_000_123 + offset for offset in offsets]
    found, _ = converted(stamps, exact=True)
    assert found.start_ns.tolist() == [stamp - min(stamps) for stamp in stamps]
    assert found.zero_unix_ns == min(stamps)


@given(st.lists(st.integers(0, DAY_NS - 1), min_size=1, max_size=30))
def test_durations_are_exact(durations: list[int]) -> None:
    found, _ = converted([5.0] * len(durations), [float(Decimal(duration) / 1000) for duration in durations])
    assert found.dur_ns.tolist() == durations


@pytest.mark.parametrize(
    ("ts", "dur", "resolution"),
    [([1, 2], [3, 4], 1000), ([1, 2.001], [3, 4], 1), ([1, 2], [3, 4.5], 1), ([7.25, 8.25], [1, 1], 1)],
)
def test_the_resolution_is_what_the_times_show(ts: list[float], dur: list[float], resolution: int) -> None:
    assert converted(ts, dur)[0].resolution_ns == resolution


def test_what_cannot_be_a_time_is_left_out_and_counted() -> None:
    nan, inf = float("nan"), float("inf")
    found, damage = converted([10, nan, inf, -inf, 1e300, 12, 20 + 86_400e6, -(10**15), 11], [1] * 9)
    assert found.keep.tolist() == [True, False, False, False, False, True, False, False, True]
    assert found.start_ns[found.keep].tolist() == [0, 2000, 1000]
    assert (damage.without_time, damage.implausible_times) == (4, 2)


def test_what_is_no_duration_is_none() -> None:
    found, damage = converted([1, 2, 3, 4, 5], [7, -1, float("nan"), 86_400e6, 1e18])
    assert found.keep.all()
    assert found.dur_ns.tolist() == [7000, 0, 0, DAY_NS, 2 * DAY_NS]  # long enough to be cut
    assert damage.negative_durations == 2


def test_no_time_at_all_keeps_nothing() -> None:
    assert not converted([float("nan")] * 3)[0].keep.any()
    assert not converted([-1, -1], exact=True)[0].keep.any()


def table(rows: list[tuple[int, int, int, int, int, int, int]]) -> dict[str, Any]:
    names = ("start_ns", "dur_ns", "kind", "name", "track", "correlation", "external_id")
    return {name: np.array([row[k] for row in rows], dtype=np.int64) for k, name in enumerate(names)}


row = st.tuples(*(st.integers(0, 2) for _ in range(5)), st.integers(-1, 1), st.integers(-1, 1))


@given(st.lists(row, max_size=25), st.data())
def test_order_and_repeats_against_the_definition(rows: list[Any], data: st.DataObject) -> None:
    """By start, then as in the file; of identified events that are equal in all, the first."""
    keep = np.array([data.draw(st.booleans()) for _ in rows], dtype=bool)
    expected, seen = [], set()
    for k in sorted(np.flatnonzero(keep).tolist(), key=lambda k: rows[k][0]):
        if max(rows[k][5:]) > 0 and rows[k] in seen:
            continue
        seen.add(rows[k])
        expected.append(k)
    damage = Damage()
    assert clock.order(table(rows), keep, damage).tolist() == expected
    assert damage.duplicates == int(keep.sum()) - len(expected)


def test_what_cannot_last_so_long_ends_where_the_next_on_its_row_begins() -> None:
    second, hour = 1_000_000_000, 3_600_000_000_000
    rows = [
        (0, 10 + second, 3, 0, 7, 1, 1),  # overlaps the next on stream 7 by exactly a second
        (5, 20 * second, 3, 0, 8, 2, 1),  # nothing follows on stream 8
        (10, 11 + second, 3, 0, 7, 3, 1),  # ends over a second behind the start of the next
        (10, 10 * second, 1, 0, 7, 4, 1),  # on the host calls contain others
        (10, 5, 3, 0, 7, 5, 1),
        (20, hour, 1, 0, 9, 6, 1),  # may hang so long after the last event
        (30, 11 + hour, 1, 0, 9, 7, 1),  # may not
        (40, 5, 1, 0, 9, 8, 1),
        (40, 2 * DAY_NS, 3, 0, 9, 9, 1),  # nothing follows on the device
        (0, 2 * DAY_NS, 1, 0, 9, 10, 1),  # not kept
    ]
    raw, damage = table(rows), Damage()
    clock.clip(raw, np.arange(len(rows)) < 9, raw["kind"] == 3, damage)
    assert raw["dur_ns"].tolist() == [10 + second, 20 * second, 0, 10 * second, 5, hour, 10, 5, 0, 2 * DAY_NS]
    assert damage.clipped == 3


@pytest.mark.parametrize(
    ("ts", "lost"),
    [
        ([0, 5_000_000, 5_000_900], 1),
        ([0, 900, 1800], 0),  # what counts time from its own start
        ([0, 1_500_000, 9_000_000], 0),  # nearer to the rest than the rest is long
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_start_of_zero_far_before_the_rest_was_never_set(ts: list[int], lost: int, exact: bool) -> None:
    found, damage = converted([1000 * one for one in ts] if exact else ts, exact=exact)
    assert (damage.without_time, found.keep.tolist()) == (lost, [not lost, True, True])


def drawn(offset: float, *, waits: str = "cudaStreamSynchronize", drift: float = 0.0, count: int = 4) -> Drawing:
    """Kernels of 50 us, each 10 us after its call, and waits that return 4 us after them.
    The device's clock is ahead by `offset` us and gains `drift` us from one kernel to the next."""
    draw = Drawing()
    for k in range(count):
        at, ahead = 100 * k, offset + drift * k
        draw.op("aten::mm", at, at + 6)
        draw.launch("gemm", (at, at + 5), (at + 10 + ahead, at + 60 + ahead))
        if waits:
            draw.call(waits, at + 6, at + 64)
    return draw


def starts_us(rank: Rank, kind: str = "kernel") -> list[float]:
    spans = rank.spans
    first = spans["start_ns"][spans["kind"] == "runtime"].min()
    return [float(at - first) / 1000 for at in spans["start_ns"][spans["kind"] == kind]]


def clock_notes(rank: Rank) -> list[IntegrityNote]:
    return [note for note in rank.integrity if Ground.CLOCKS in note.doubts]


@pytest.mark.parametrize("offset", [-11, -10, 0, 4, 5])
def test_times_stay_where_no_effect_comes_before_its_cause(offset: float) -> None:
    rank = drawn(offset).rank()
    assert starts_us(rank) == [100 * k + 10 + offset for k in range(4)]
    assert clock_notes(rank) == []


@pytest.mark.parametrize(
    ("offset", "after_call", "moved"),
    [
        (-50, 5, "45.0 us later"),
        (-2_700_000, 5, "2.70 s later"),
        # Earliest is 0 after the call, latest 14: where a wait returns as its work ends. 5 less is 9.
        (50, 9, "51.0 us earlier"),
        (2_700_000, 9, "2.70 s earlier"),
    ],
)
@pytest.mark.parametrize("waits", ["cudaStreamSynchronize", "cudaDeviceSynchronize"])
def test_device_times_move_by_the_least_that_is_causal(
    waits: str, offset: float, after_call: float, moved: str
) -> None:
    rank = drawn(offset, waits=waits).rank()
    assert starts_us(rank) == [100 * k + after_call for k in range(4)]
    assert rank.spans["start_ns"].min() == 0
    [note] = clock_notes(rank)
    assert note.effect == (
        f"Times of the device are taken as {moved}. Launch delays and causes of short gaps are known to within 14.0 us."
    )


def test_without_a_call_that_waits_work_may_lie_later() -> None:
    [note] = clock_notes(drawn(-50, waits="").rank())
    assert (
        note.what == "The clocks of the host and of device 0 disagree: 4 operations start before their launching call."
    )
    assert note.effect.endswith("They may lie later still: no recorded wait shows by how much.")


def test_two_torn_records_move_nothing() -> None:
    draw = drawn(0)
    for k in range(2):
        draw.launch("torn", (400 + 10 * k, 401 + 10 * k), (k, k + 1))
    assert starts_us(draw.rank())[2:] == [10, 110, 210, 310]


def test_each_device_has_a_clock_of_its_own() -> None:
    draw = drawn(0, waits="")
    for k in range(4):
        draw.launch("other", (100 * k + 20, 100 * k + 21), (100 * k + 30 - 80, 100 * k + 40 - 80), device=1)
    rank = draw.rank()
    # 70 too early, and the usual delay: 25 after the first call.
    assert starts_us(rank) == [10, 25, 110, 125, 210, 225, 310, 325]
    assert [note.what.split(" disagree")[0] for note in clock_notes(rank)] == ["The clocks of the host and of device 1"]


def test_a_wait_for_one_stream_says_nothing_of_others() -> None:
    draw = drawn(0).launch("beside", (0.5, 1), (20, 900), stream=20)
    assert clock_notes(draw.rank()) == []


def test_a_copy_to_pageable_memory_is_waited_for() -> None:
    draw = Drawing()
    for k in range(4):
        at = 100 * k
        draw.copy("DtoH (Device -> Pageable)", (at, at + 30), (at + 10 + 70, at + 20 + 70), 4)
    # It may not end after the call does: 60 earlier at least, and the usual delay.
    assert starts_us(draw.rank(), "memcpy") == [15, 115, 215, 315]


def test_where_clocks_drift_launches_decide() -> None:
    rank = drawn(-30, drift=-30, count=6).rank()
    # Early by 20, 50, and so on to 170: three need 110. Three waits allow 94 at most.
    assert starts_us(rank) == [90, 160, 230, 300, 370, 440]
    [moved, early] = clock_notes(rank)
    assert moved.effect.endswith("No one shift puts all in order, as clocks drift: launch delays are not known.")
    assert early.what == "2 device operations start before their launching call, by up to 60 us."


def test_records_of_synchronisations_have_the_times_of_the_host() -> None:
    draw = drawn(-50).work("Stream Sync", (7, 63), cat="cuda_sync", cuda_sync_kind="Stream Sync")
    assert starts_us(draw.rank(), "sync") == [7]
