"""One process with two devices, whose streams have the same numbers: who waits for whom."""

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import device_work
from diagnose.replay import calls as host_calls
from diagnose.replay.streams import streams
from diagnose.replay.work_edges import before_on_stream, event_edges
from tests.drawing import Drawing


def pipeline(first: int, second: int) -> Facts:
    """Each of three batches is computed on device 0, then on device 1, whose stream waits for it."""
    draw = Drawing()
    for batch in range(3):
        at = 100 * batch
        draw.launch("first", (at, at + 1), (at + 2, at + 40), stream=first, device=0)
        draw.call("cudaEventRecord", at + 3, at + 4)
        record = draw._correlation
        draw.call("cudaStreamWaitEvent", at + 5, at + 6)
        draw.work(
            "Stream Wait Event",
            (at + 5, at + 5),
            stream=second,
            device=1,
            cat="cuda_sync",
            cuda_sync_kind="Stream Wait Event",
            wait_on_stream=first,
            wait_on_cuda_event_record_corr_id=record,
            correlation=draw._correlation,
        )
        draw.launch("second", (at + 7, at + 8), (at + 41, at + 80), stream=second, device=1)
    draw.call("cudaDeviceSynchronize", 300, 310)
    draw.work(
        "Context Sync",
        (300, 310),
        stream=-1,
        device=0,
        cat="cuda_sync",
        cuda_sync_kind="Context Sync",
        correlation=draw._correlation,
    )
    return draw.facts()


def waits_of_streams(facts: Facts) -> list[tuple[int, int]]:
    """(awaited, waiting) rows of device work."""
    work, on = device_work(facts), streams(facts)
    rows = work.start_ns.argsort().argsort()  # points: one for each operation
    found = event_edges(facts, work, on, rows, rows)
    return sorted(zip(found.source.tolist(), found.target.tolist(), strict=True))


def test_a_stream_waits_for_the_one_of_the_other_device() -> None:
    expected = [(0, 1), (2, 3), (4, 5)]
    assert waits_of_streams(pipeline(7, 20)) == expected
    assert waits_of_streams(pipeline(7, 7)) == expected


def test_a_device_that_is_waited_for_is_not_the_other() -> None:
    facts = pipeline(7, 7)
    work, on, found = device_work(facts), streams(facts), host_calls.calls(facts)
    awaited = host_calls.waits(facts, found, on)
    synced = found.end_ns[awaited.call] == found.end_ns.max()
    assert set(work.track[awaited.work[synced]].tolist()) == {on[0].track}
    assert on[0].device == 0


def test_work_without_a_duration_follows_the_work_before_it_on_its_stream() -> None:
    """Also when it, or the next, starts as the one before ends."""
    draw = Drawing().launch("a", (0, 1), (10, 100)).launch("b", (2, 3), (100, 100)).launch("c", (4, 5), (150, 150))
    facts = draw.launch("d", (6, 7), (150, 200)).launch("other", (8, 9), (120, 130), stream=8).facts()
    found, work = before_on_stream(device_work(facts), streams(facts)), device_work(facts)
    name = [*facts.rank.spans["name"].iloc[work.ids], "nothing"]
    assert {name[row]: name[one] for row, one in enumerate(found.tolist())} == {
        "a": "nothing",
        "b": "a",
        "c": "b",
        "d": "c",
        "other": "nothing",
    }
