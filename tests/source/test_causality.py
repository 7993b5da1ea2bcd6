"""Device times on the clock of the host: moved where, and only where, an effect came before its cause."""

import pytest

from diagnose.trace.model import Ground, IntegrityNote, Rank
from tests.drawing import Drawing


def drawn(offset: float, *, waits: str = "cudaStreamSynchronize", drift: float = 0.0, count: int = 4) -> Drawing:
    """Kernels of 50 us, each 10 us after its call, and waits that return 4 us after them.

    The device's clock is ahead by `offset` us and gains `drift` us from one kernel to the next.
    """
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
    assert note.effect.endswith("They may lie later still: no call that waits was recorded.")


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
