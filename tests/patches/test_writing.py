"""Files are written all or none, with their mode, and never if they are not as they were recorded."""

import hashlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from diagnose.contracts.patches import Patch
from diagnose.patches.files import CannotPatch, write
from diagnose.trace.manifest import Manifest, SourceFile
from tests.patches.patching import manifest, patch

TEXT = "import lib\nimport torch\ntorch.set_num_threads(8)\n"
LIB = "def step(optimizer):\n    optimizer.zero_grad(False)\n"
TRIALS = ["patch:torch.set_num_threads(threads=2)", "patch:zero_grad(set_to_none=True)"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, text in (("train.py", TEXT), ("lib.py", LIB)):
        (tmp_path / name).write_text(text)
    return tmp_path / "train.py", tmp_path / "lib.py"


def recorded(*paths: Path) -> Manifest:
    return Manifest(
        sources=tuple(
            SourceFile(file=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths
        )
    )


def made(files: tuple[Path, Path], known: Manifest | None = None) -> Patch:
    return patch(files[0].parent, TRIALS, known or recorded(*files))


def untouched(files: tuple[Path, Path]) -> bool:
    """Nothing was changed, and nothing is left beside them."""
    here = sorted(path.name for path in files[0].parent.iterdir())
    return [file.read_text() for file in files] == [TEXT, LIB] and here == ["lib.py", "train.py"]


def test_all_files_are_written_with_their_modes(files: tuple[Path, Path]) -> None:
    files[0].chmod(0o755)
    write(made(files))
    assert files[0].read_text() == TEXT.replace("8", "2")
    assert files[1].read_text() == LIB.replace("False", "True")
    assert [file.stat().st_mode & 0o777 for file in files] == [0o755, 0o644]
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["lib.py", "train.py"]


def test_a_file_that_has_changed_since_keeps_all_from_being_written(files: tuple[Path, Path]) -> None:
    known = recorded(*files)
    files[1].write_text(LIB + "# more\n")
    done = made(files, known)
    assert len(done.files) == 2
    assert done.notes == ("lib.py has changed since the recording.",)
    files[1].write_text(LIB)
    with pytest.raises(
        CannotPatch, match=r"^lib.py has changed since the recording. Nothing was written. Record again"
    ):
        write(done)
    assert untouched(files)


def test_a_file_that_changes_while_it_is_patched_is_not_written(files: tuple[Path, Path]) -> None:
    done = made(files)
    files[0].write_text("x = 1\n")
    with pytest.raises(
        CannotPatch, match=r"^train.py has just changed. Nothing was written\. Run the command again\.$"
    ):
        write(done)
    assert files[0].read_text() == "x = 1\n"
    files[0].write_text(TEXT)
    files[1].unlink()
    with pytest.raises(CannotPatch, match=r"^lib.py cannot be read: No such file or directory. Nothing was written\.$"):
        write(done)
    assert files[0].read_text() == TEXT


def test_a_file_that_is_read_only_is_patched_and_not_written(files: tuple[Path, Path]) -> None:
    files[1].chmod(0o444)
    done = made(files)
    assert len(done.files) == 2
    with pytest.raises(CannotPatch, match=r"^lib.py is read-only. Nothing was written. Make it writable, or apply"):
        write(done)
    assert untouched(files)


def test_if_one_cannot_be_replaced_none_is(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    done, replace = made(files), Path.replace

    def fails_at_the_second(self: Path, target: Path) -> Path:
        if Path(target).name == "train.py":
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails_at_the_second)
    with pytest.raises(CannotPatch, match=r"^Nothing was written: No space left on device\.$"):
        write(done)
    assert untouched(files)


@pytest.mark.parametrize(
    ("began", "note"),
    [
        (timedelta(minutes=-5), ("lib.py is newer than the recording.", "train.py is newer")),
        (timedelta(minutes=5), ()),
        (None, ("lib.py may have changed since the recording.", "train.py may have")),
    ],
)
def test_of_an_older_recording_the_times_count(
    files: tuple[Path, Path], began: timedelta | None, note: tuple[str, ...]
) -> None:
    """It has no hashes, and a list of files as far as places are known."""
    started = None if began is None else (datetime.now(timezone.utc) + began).isoformat(timespec="seconds")
    known = msgspec.structs.replace(
        manifest(files[0]), started=started, command=("torchrun", "train.py", "--data", "lib.py")
    )
    done = made(files, known)
    assert [file.name for file in done.files] == ["lib.py", "train.py"]
    assert len(done.notes) == len(note)
    assert all(one.startswith(expected) for one, expected in zip(done.notes, note, strict=True))
    if note:
        with pytest.raises(CannotPatch, match="Nothing was written"):
            write(done)
        assert untouched(files)
    else:
        write(done)
        assert not untouched(files)


def test_an_owner_s_link_stays_a_link(files: tuple[Path, Path]) -> None:
    link = files[0].parent / "linked.py"
    link.symlink_to("train.py")
    known = Manifest(sources=recorded(files[0]).sources)
    write(patch(files[0].parent, TRIALS[:1], known))
    assert link.readlink() == Path("train.py")
    assert link.read_text() == TEXT.replace("8", "2")
