"""How much memory was used, and how much is free where the training computes."""

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.device.memory import HeadRoom, Kept, Memory, MemoryGrowth, head_room, memory, memory_growth
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Host, RankManifest
from diagnose.trace.model import Context
from tests.drawing import Drawing


@pytest.mark.parametrize(
    ("reserved", "capacity", "share"),
    [(20, 80, 0.75), (80, 80, 0.0), (None, 80, None), (20, None, None), (20, 0, None)],
)
def test_free_share(reserved: int | None, capacity: int | None, share: float | None) -> None:
    assert Memory(0, 10, reserved, capacity).free_share == share


SYNTHETIC = "3 steps of 10\ndevice A100\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"


def test_memory_events_tell_the_peaks() -> None:
    (found,) = memory(facts_of(f"memory 1 of 3 GB, 1 GB more a step\n{SYNTHETIC}"))
    assert found == Memory(0, 3_000_000_000, 5_000_000_000, 85_198_045_184)


def test_without_events_the_process_tells_the_peaks() -> None:
    facts = facts_of(SYNTHETIC)
    with pytest.raises(Missing, match="memory events"):
        memory(facts)
    known = RankManifest(rank=0, allocator={"most_allocated_bytes": 10, "most_reserved_bytes": 20})
    (found,) = memory(Facts(replace(facts.rank, context=Context(known, Host(), 1))))
    assert found == Memory(0, 10, 20, 85_198_045_184)


def test_of_a_device_it_is_what_its_allocator_never_reserved() -> None:
    """5 of an A100's 85.2 GB were reserved in the end."""
    found = head_room(facts_of(f"memory 1 of 3 GB, 1 GB more a step\n{SYNTHETIC}"))
    assert found == HeadRoom(85_198_045_184 - 5_000_000_000, on_host=False)


def test_of_a_machine_it_is_half_of_a_rank_s_part() -> None:
    facts = facts_of("3 steps of 10\ncpu aten::mm 0-1")
    known = Context(RankManifest(rank=0), Host(memory_bytes=64_000), 4)
    assert head_room(Facts(replace(facts.rank, context=known))) == HeadRoom(8_000, on_host=True)


@pytest.mark.parametrize("synthetic", [SYNTHETIC, "3 steps of 10\ncpu aten::mm 0-1"])
def test_without_a_record_it_is_not_known(synthetic: str) -> None:
    with pytest.raises(Missing, match="memory"):
        head_room(facts_of(synthetic))


MB = 1_000_000


def synthetic(steps: int, leaks: list[int]) -> Facts:
    """Steps of 1 ms. Each allocates 8 MB in a forward op and frees them in a backward op, and 2 MB, which are kept.

    `leaks`: MB that each step keeps besides, of tensors of 1 MB.
    """
    drawing, total = Drawing(), 100 * MB
    drawing.frame("train.py(1): main", 0, 1000 * steps)

    def event(ts: float, size: int) -> None:
        nonlocal total
        total += size
        args = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": size}
        args |= {"Total Allocated": total, "Total Reserved": 400 * MB}
        drawing.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100, "ts": ts}
            | {"args": args}
        )

    for step in range(steps):
        at = 1000 * step
        drawing.step(step, at, at + 999).op("aten::linear", at + 100, at + 200).op("aten::mm", at + 110, at + 190)
        drawing.op("aten::mul", at + 300, at + 400).op("MmBackward0", at + 500, at + 600)
        event(at + 120, 8 * MB)
        event(at + 310, 2 * MB)
        for k in range(leaks[step]):
            event(at + 320 + k, MB)
        event(at + 510, -8 * MB)
    return Facts(drawing.rank())


def test_even_growth_and_what_is_kept() -> None:
    found = memory_growth(synthetic(6, [0] * 6))
    assert found.ends_bytes == tuple((100 + 2 * step) * MB for step in range(1, 7))
    assert found.step_bytes == 2 * MB
    assert found.kept is not None
    assert (found.kept.bytes, found.kept.op) == (2 * MB, "aten::mul")


def test_most_of_it_is_named() -> None:
    found = memory_growth(synthetic(5, [3] * 5))
    assert (found.step_bytes, found.kept) == (5 * MB, Kept(3 * MB, "aten::mul", found.kept and found.kept.site))


def test_uneven_growth_is_none() -> None:
    """Rises of 2, 12, 2, 12 and 2 MB: the median is 2, so that all count; of 12, 2, 12, 12 and 12 not."""
    assert memory_growth(synthetic(6, [0, 0, 10, 0, 10, 0])).step_bytes == 6 * MB
    found = memory_growth(synthetic(6, [0, 10, 0, 10, 10, 10]))
    assert (found.step_bytes, found.kept) == (0, None)


def test_totals_at_the_ends_of_steps() -> None:
    found = memory_growth(facts_of("5 steps of 10\nmemory 1 of 3 GB\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
    assert found == MemoryGrowth(0, (1_000_000_000,) * 5, 0, None)


def test_what_is_missing() -> None:
    with pytest.raises(Missing, match="memory events"):
        memory_growth(facts_of("5 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
    with pytest.raises(Missing, match="memory of 5 steps"):
        memory_growth(facts_of("4 steps of 10\nmemory 1 of 3 GB\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
