"""The manifest: begun before the run, completed after it from whatever its processes have left; which command
completes it, and how long that waits for what others leave."""

import json
import threading
from pathlib import Path

import pytest

from diagnose.capture import folders, manifests
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import KILLED, WORK, Part, Plan
from diagnose.trace.manifest import Manifest
from tests.capture.scripts import manifest_of, wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    part = Part(tmp_path)
    Plan().write(part)
    manifests.begin(tmp_path, ["python", "train.py"])
    Board(part.work).claim("python")
    return tmp_path


def written(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"")


def left(folder: Path, **ranks: dict[str, object]) -> None:
    for name, said in ranks.items():
        Board(folder / WORK).claim(name)
        (folder / WORK / f"{name}.json").write_text(json.dumps({"rank": int(name[4:]), "ended": "itself", **said}))


def test_it_is_there_before_the_run(folder: Path) -> None:
    begun = manifest_of(folder)
    assert (begun.schema_version, begun.complete, begun.command, begun.ranks) == (1, False, ("python", "train.py"), ())
    assert begun.started.endswith("+00:00")


def test_what_the_ranks_say_is_merged_in_order(folder: Path) -> None:
    left(folder, rank10={"trace": "c"}, rank2={"trace": "b", "notes": ["It was late."]}, rank0={"trace": "a"})
    written(folder, "a", "b", "c")
    (folder / WORK / "run.json").write_text(json.dumps({"host": {"cpus": 4}, "versions": {"torch": "2.13"}}))
    found = manifests.complete(Part(folder), exit_code=3)
    assert [rank.trace for rank in found.ranks] == ["a", "b", "c"]
    assert (found.complete, found.exit_code, found.host.cpus, found.versions) == (True, 3, 4, {"torch": "2.13"})
    assert found.ranks[1].notes == ("It was late.",)
    assert manifest_of(folder) == found
    assert not (folder / WORK).exists()


def test_devices_of_which_nothing_is_recorded_are_noted(folder: Path) -> None:
    left(
        folder, rank0={"optimizers": [{"name": "SGD", "devices": ["cpu", "mps"]}, {"name": "SGD", "devices": ["cuda"]}]}
    )
    assert manifests.complete(Part(folder), exit_code=0).notes[0] == (
        "The training runs on mps, which diagnose cannot record."
    )


def test_a_rank_that_was_killed_is_in_it_with_its_files(folder: Path) -> None:
    Board(folder / WORK).claim("rank1")
    left(folder, rank0={"trace": "rank0.trace.json.gz"})
    written(folder, "rank0.trace.json.gz", "rank1.trace.json.gz")
    found = manifests.complete(Part(folder), exit_code=None)
    assert [(rank.rank, rank.trace, rank.detail) for rank in found.ranks] == [
        (0, "rank0.trace.json.gz", None),
        (1, "rank1.trace.json.gz", None),
    ]
    assert found.notes == ("rank1 ended without a message: killed, or exited with os._exit.",)


def test_a_rank_that_was_killed_later_is_in_it_with_what_it_had_said(folder: Path) -> None:
    left(folder, rank0={"ended": None, "steps_by": "optimizer", "trace": "rank0.trace.json.gz"})
    written(folder, "rank0.trace.json.gz")
    found = manifests.complete(Part(folder), exit_code=137)
    assert found.notes == ("rank0 ended without a message: killed, or exited with os._exit.",)
    assert [(rank.steps_by, rank.trace) for rank in found.ranks] == [("optimizer", "rank0.trace.json.gz")]


def test_a_file_that_is_not_there_is_not_named(folder: Path) -> None:
    left(folder, rank0={"trace": "rank0.trace.json.gz", "detail": "rank0.detail.json.gz"})
    written(folder, "rank0.detail.json.gz")
    found = manifests.complete(Part(folder), exit_code=None)
    assert [(rank.trace, rank.detail) for rank in found.ranks] == [(None, "rank0.detail.json.gz")]
    assert not found.complete


def test_a_run_without_a_recording_is_not_complete(folder: Path) -> None:
    left(folder, rank0={})
    assert not manifests.complete(Part(folder), exit_code=0).complete


def test_damaged_words_of_a_rank_are_noted(folder: Path) -> None:
    Board(folder / WORK).claim("rank0")
    (folder / WORK / "rank0.json").write_text('{"rank": "zero"}')
    (folder / WORK / "run.json").write_text("[")
    found = manifests.complete(Part(folder), exit_code=0)
    (note,) = found.notes  # It is not said to have been killed, as it has left a report.
    assert note.startswith("The report of rank0 cannot be read: ")
    assert [rank.rank for rank in found.ranks] == [0]


def test_damaged_words_cost_no_others(folder: Path) -> None:
    left(folder, rank0={"pid": "seven", "steps_made": 40, "flags": {"threads": float("nan"), "compiled": True}})
    (folder / WORK / "run.json").write_text('{"host": null, "versions": {"torch": "2.9", "cuda": null}}')
    found = manifests.complete(Part(folder), exit_code=0)
    (rank,) = found.ranks
    assert (rank.steps_made, rank.flags.compiled, found.versions, found.notes) == (40, True, {"torch": "2.9"}, ())
    (note,) = rank.notes
    assert note.startswith("The report of rank0 cannot be read in part: pid (")
    assert "flags.threads (" in note


def test_a_command_in_which_nothing_could_look(tmp_path: Path) -> None:
    Plan().write(Part(tmp_path))
    manifests.begin(tmp_path, ["sleep", "1"])
    assert "diagnose saw no Python in this command" in manifests.complete(Part(tmp_path), exit_code=0).notes[0]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("train.py --tokens-per-step 4 --tokenizer bpe", "train.py --tokens-per-step 4 --tokenizer bpe"),
        ("train.py --api-key abc --lr 0.1", "train.py --api-key *** --lr 0.1"),
        ("train.py --api_key=abc=d", "train.py --api_key=***"),
        ("train.py HF_TOKEN=abc x", "train.py HF_TOKEN=*** x"),
        ("train.py --password --flag", "train.py --password --flag"),
        ("token.py secret", "token.py secret"),
        ("train.py --wandb-key abc --key=abc wandb.key=abc", "train.py --wandb-key *** --key=*** wandb.key=***"),
        ("train.py accessKey=a --private-key b", "train.py accessKey=*** --private-key ***"),
        ("train.py --api-key-2 a API_KEY_OLD=b", "train.py --api-key-2 *** API_KEY_OLD=***"),
        ("train.py --pwd x --password -abc", "train.py --pwd *** --password ***"),
        ("train.py --key-dim 64 --keys a --monkey b", "train.py --key-dim 64 --keys a --monkey b"),
        ("train.py --db-url postgres://u:hunter2@h/db", "train.py --db-url postgres://***@h/db"),
        ("train.py db=postgres://hunter2@h/db", "train.py db=postgres://***@h/db"),
        ("train.py --notify https://hooks.slack.com/services/T0/B0/xyz", "train.py --notify https://hooks.***"),
        ("train.py https://h/data?sig=abc&x=1 s3://bucket/a", "train.py https://h/data?*** s3://bucket/a"),
        ("train.py a?b #c", "train.py a?b #c"),
    ],
)
def test_secrets_among_the_arguments_are_left_out(tmp_path: Path, given: str, kept: str) -> None:
    Plan().write(Part(tmp_path))
    manifests.begin(tmp_path, given.split())
    assert " ".join(manifest_of(tmp_path).command) == kept


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
        wait_for(lambda: said)
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
    Board(part.work).post(KILLED)
    said: list[str] = []
    found = completed(part, said)
    assert said == []
    assert found.notes == ("rank1 ended without a message: diagnose killed processes that did not exit.",)


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
