"""Which command completes a recording, and how long it waits for what others leave."""

import json
import threading
import time
from pathlib import Path

import pytest

from diagnose.capture import folders, manifests
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import Part, Plan
from diagnose.trace.manifest import Manifest


@pytest.fixture
def parts(tmp_path: Path) -> list[Part]:
    """Of two commands of a job, the one of rank 1 began first."""
    taken = [folders.take(tmp_path, Plan(), "job", False)[0] for _ in range(2)]
    manifests.begin(tmp_path, ["python"])
    for rank, part in ((1, taken[0]), (0, taken[1])):
        Board(part.shared).claim(f"rank{rank}", part.name)
        Board(part.work).post(f"rank{rank}")
    return taken


def says(part: Part, rank: int, **more: object) -> None:
    about = {"rank": rank, "world_size": 2, "peers": 1, "ended": "recorded", **more}
    (part.recording / f"rank{rank}.trace.json.gz").touch()
    (part.shared / f"rank{rank}.json").write_text(json.dumps({**about, "trace": f"rank{rank}.trace.json.gz"}))


def completed(part: Part, said: list[str]) -> Manifest:
    manifests.wait_for_all(part, said.append)
    return manifests.complete(part, exit_code=0)


def test_the_command_of_rank_0_completes(parts: list[Part]) -> None:
    first, second = parts
    assert (manifests.completes(first), manifests.completes(second)) == (False, True)


def test_without_rank_0_the_command_that_began_completes(tmp_path: Path) -> None:
    first, second = (folders.take(tmp_path, Plan(), "job", False)[0] for _ in range(2))
    assert (manifests.completes(first), manifests.completes(second)) == (True, False)


@pytest.mark.slow
def test_what_comes_late_is_waited_for(parts: list[Part]) -> None:
    """A rank says its last, and its command ends, while the other command waits."""
    other, mine = parts
    says(mine, 0)
    said: list[str] = []

    def come() -> None:
        time.sleep(2.0)
        says(other, 1)
        manifests.leave(other)

    coming = threading.Thread(target=come)
    coming.start()
    found = completed(mine, said)
    coming.join()
    assert [rank.ended for rank in found.ranks] == ["recorded", "recorded"]
    assert found.complete
    assert said == ["waiting up to 90 s for the results of rank 1 from other commands"]


def test_a_rank_whose_command_has_ended_is_not_waited_for(parts: list[Part]) -> None:
    other, mine = parts
    says(mine, 0)
    manifests.leave(other)
    said: list[str] = []
    found = completed(mine, said)
    assert said == []
    assert found.notes == ("rank1 ended without a message: killed, or exited with os._exit.",)


@pytest.mark.slow
def test_nothing_is_waited_for_without_end(parts: list[Part], monkeypatch: pytest.MonkeyPatch) -> None:
    """The other command is there and says nothing."""
    monkeypatch.setattr(folders, "APPEARS_S", 1.5)
    _, mine = parts
    says(mine, 0)
    found = completed(mine, [])
    assert [(rank.rank, rank.ended) for rank in found.ranks] == [(0, "recorded"), (1, None)]
    assert not found.complete


def test_ranks_that_left_nothing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a launcher passes PYTHONPATH on to no other machine."""
    monkeypatch.setattr(folders, "APPEARS_S", 1.0)
    part, _ = folders.take(tmp_path, Plan(), None, False)
    manifests.begin(tmp_path, ["mpirun"])
    for rank in (0, 1):
        Board(part.shared).claim(f"rank{rank}", part.name)
        says(part, rank, world_size=4, peers=2, machine=7)
    found = completed(part, [])
    assert found.notes[0] == (
        f"Ranks 2-3 left nothing in {tmp_path}. Check that all machines share this folder, and that the launcher"
        " passes PYTHONPATH to them."
    )
    assert [one.node for one in found.ranks] == [0, 0]
    assert not found.complete


def test_one_command_on_one_machine_waits_for_nothing(tmp_path: Path) -> None:
    part, _ = folders.take(tmp_path, Plan(), None, False)
    manifests.begin(tmp_path, ["torchrun"])
    for rank in (0, 1):
        Board(part.shared).claim(f"rank{rank}", part.name)
    says(part, 0, peers=2)
    said: list[str] = []
    found = completed(part, said)
    assert said == []
    assert found.notes == ("rank1 ended without a message: killed, or exited with os._exit.",)


def test_a_rank_that_was_only_timed_takes_little_of_the_manifest(tmp_path: Path) -> None:
    part, _ = folders.take(tmp_path, Plan(), None, False)
    manifests.begin(tmp_path, ["torchrun"])
    says(part, 0, peers=2)
    timed = {"rank": 1, "world_size": 2, "recorded": False, "unprofiled": {"first_step": 3, "wall_ns": [5, 6]}}
    (part.shared / "rank1.json").write_text(json.dumps({**timed, "ended": "recorded"}))
    found = completed(part, [])
    assert found.complete
    (_, written) = json.loads((tmp_path / "manifest.json").read_text())["ranks"]
    assert written == {**timed, "cycle": 1, "ended": "recorded"}


def test_a_command_that_outlives_the_recording_leaves_it_alone(parts: list[Part]) -> None:
    other, mine = parts
    for rank, part in ((1, other), (0, mine)):
        says(part, rank)
    manifests.complete(mine, exit_code=0)
    assert not manifests.completes(other)
    manifests.leave(other)
    assert sorted(path.name for path in mine.recording.iterdir()) == [
        *("manifest.json", "rank0.trace.json.gz", "rank1.trace.json.gz")
    ]


def test_what_a_shared_folder_does_not_list_yet_is_found_by_name(
    parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No NFS is here to list late: this folder lists nothing."""
    other, mine = parts
    for rank, part in ((1, other), (0, mine)):
        says(part, rank)
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with pytest.raises(folders.CannotRecord, match="Another command is recording into"):
        folders.take(mine.recording, Plan(), "other job", False)
    manifests.leave(other)
    found = completed(mine, [])
    assert [(one.rank, one.trace) for one in found.ranks] == [(0, "rank0.trace.json.gz"), (1, "rank1.trace.json.gz")]
    assert found.complete
