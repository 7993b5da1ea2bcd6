"""One process that was recorded several times is one rank, and its steadiest later recording is used."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diagnose.source import ranks
from diagnose.trace.model import Provenance
from tests.drawing import Drawing

ONE = Drawing().op("aten::mm", 0, 10).rank().provenance
MINUTE_NS = 60 * 10**9


def taken(minute: int, pid: int = 7, name: str = "host_7.{}.pt.trace.json", **about: object) -> Provenance:
    """A recording of 10 s that begins at this minute."""
    begin = 1_700_000_000 * 10**9 + minute * MINUTE_NS
    path = f"/log/{name.format(begin)}"
    times = {"begin_unix_ns": begin, "end_unix_ns": begin + 10 * 10**9}
    return replace(ONE, path=path, process=str(pid), **times, **about)


STEADY, ROUGH, COLD = (50, 50, 50), (50, 60, 50), (149, 149, 149)


@pytest.mark.parametrize(
    ("times_ns", "used"),
    [
        ((COLD, STEADY, ROUGH), 1),
        ((COLD, ROUGH, STEADY), 2),
        ((STEADY, ROUGH, ROUGH), 2),  # the first holds warm-up, and of equal ones the last is used
        ((COLD, (), (50,)), 2),
        ((COLD, (), ()), 0),
    ],
)
def test_the_steadiest_later_recording_is_used(times_ns: Sequence[tuple[int, ...]], used: int) -> None:
    found = ranks.arrange([taken(0), taken(2), taken(4)], times_ns)
    assert found.indexes == tuple(0 if at == used else None for at in range(3))
    (note,) = found.integrity
    assert note.what.startswith("One process was recorded 3 times. Used: ")


def test_the_report_names_each_recording_with_its_steps() -> None:
    (note,) = ranks.arrange([taken(0, name="t_1.json"), taken(1, name="t_2.json")], [(3000, 5000), ()]).integrity
    used, unused = "Used: t_1.json (steps of 4.00 us).", "Not used: t_2.json (no steps)."
    assert note.what == f"One process was recorded 2 times. {used} {unused}"
    assert note.effect.startswith("Only it has steps.")


def test_ranks_are_compared_in_the_cycle_that_is_steadiest_on_all() -> None:
    """Rank 0 is steadiest in the second cycle, where rank 1 is the least steady."""
    names = ["a_1.{}.pt.trace.json", "b_2.{}.pt.trace.json"]
    given = [taken(minute, pid, names[pid - 1]) for pid in (1, 2) for minute in (0, 1, 2)]
    wild = (50, 90, 50)
    found = ranks.arrange(given, [COLD, STEADY, ROUGH, COLD, wild, ROUGH])
    assert found.indexes == (None, None, 0, None, None, 1)


@pytest.mark.parametrize(
    "other",
    [
        taken(0, pid=8, name="host_8.{}.pt.trace.json"),
        taken(0, name="other_7.{}.pt.trace.json"),  # a container counts its processes by itself
        taken(1, rank=1),
        taken(0),  # at the same time
    ],
)
def test_ranks_are_not_taken_for_recordings_of_one_process(other: Provenance) -> None:
    found = ranks.arrange([taken(0), other], [STEADY, STEADY])
    assert sorted(index for index in found.indexes if index is not None) == [0, 1]


@pytest.mark.parametrize("known", [{"machine": 0}, {"pid": 3107}])
def test_a_process_is_told_by_its_number_on_its_machine_whatever_files_are_called(known: dict[str, int]) -> None:
    found = ranks.arrange([taken(0, name="warm.json", **known), taken(1, name="epoch1.json", **known)], [COLD, STEADY])
    assert found.indexes == (None, 0)


def test_small_numbers_on_unknown_machines_may_be_equal_by_chance() -> None:
    found = ranks.arrange([taken(0, name="eager.json"), taken(1, name="compiled.json")], [STEADY, STEADY])
    assert found.indexes == (0, 1)
