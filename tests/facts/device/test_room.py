"""How much memory was used, and how much is free where the training computes."""

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.device.memory import HeadRoom, Memory, head_room, memory
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Host, RankManifest
from diagnose.trace.model import Context


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
