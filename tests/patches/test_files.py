"""Files of every kind: their bytes stay, names that git must quote apply, nothing outside is touched."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.contracts.patches import PatchedFile
from diagnose.patches import files, making
from diagnose.patches.files import CannotEdit, CannotPatch
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Manifest, SourceFile
from tests.patches.patching import apply, finding, manifest, patch, why_not

LINES = ("from torch.utils.data import DataLoader", "loader = DataLoader(data)", "x = 'é'", "y = 2")
WORKERS = "patch:DataLoader(num_workers=4)"


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def of(lines: tuple[str, ...], end: str = "\n", encoding: str = "utf-8", last: str | None = None) -> bytes:
    return (end.join(lines) + (end if last is None else last)).encode(encoding)


@pytest.mark.parametrize(
    "content",
    [
        of(LINES),
        of(LINES, last=""),
        of(LINES[:2], last=""),
        of(LINES, end="\r\n"),
        of(LINES, end="\r\n", last=""),
        of(LINES, encoding="utf-8-sig"),
        of(("# coding: latin-1", *LINES), encoding="latin-1"),
        of(("#!/usr/bin/python", "# -*- coding: cp1252 -*-", *LINES), encoding="cp1252", end="\r\n"),
        of(("# coding: shift_jis", *LINES[:2], "x = 'データ'"), encoding="shift_jis"),
        of(("if 1:", "\tpass", *LINES)),
        of((*LINES, "\f", "z = 1  \t")),
        of((*LINES, "a = '\\", "'  # \u2028 is no end of a line")),
        b"\r\n".join([b"x = 1", b"y = 2"]) + b"\n" + of(LINES),
    ],
)
def test_all_bytes_but_the_change_stay(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "train.py", content)
    apply(tmp_path, patch(tmp_path, [WORKERS], manifest(path)))
    assert path.read_bytes() == content.replace(b"DataLoader(data)", b"DataLoader(data, num_workers=4)")


def test_a_line_that_is_added_ends_as_others_do(tmp_path: Path) -> None:
    path = written(tmp_path / "train.py", b"import torch\r\nx = 1\r\n")
    apply(tmp_path, patch(tmp_path, ["patch:torch.set_num_threads(threads=2)"], manifest(path)))
    assert path.read_bytes() == b"import torch\r\n\r\ntorch.set_num_threads(2)\r\nx = 1\r\n"


def test_a_last_line_without_an_end_gets_a_line_after_it(tmp_path: Path) -> None:
    path = written(tmp_path / "train.py", b"import torch")
    apply(tmp_path, patch(tmp_path, ["patch:torch.set_num_threads(threads=2)"], manifest(path)))
    compile(path.read_bytes(), "train.py", "exec")
    assert path.read_bytes().splitlines() == [b"import torch", b"", b"torch.set_num_threads(2)"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"# coding: utf-8\nx = '\xe9'\n", "train.py does not match its declared encoding"),
        (b"# coding: nonsense\n", "train.py does not match its declared encoding"),
        (b"def (:\n", "train.py is not valid Python"),
        (b"x = 1\0\n", "train.py is not valid Python"),
        (b"x = 1\n" * 200_000, "train.py is too large"),
        (b"(" * 5000, "train.py is not valid Python"),
        (b"x = 1" + b" + 1" * 500, "train.py is nested too deeply"),
        (b"x = a" + b".b" * 500, "train.py is nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_written_again_as_it_is_stays(tmp_path: Path, content: bytes, why: str) -> None:
    path = written(tmp_path / "train.py", content)
    assert why_not(patch(tmp_path, [WORKERS], manifest(path, loader=1))) == why


@pytest.mark.parametrize(
    "name", ["my train.py", "a\tb.py", 'say "x".py', "back\\slash.py", "zug/größe.py", "a/b/a/b.py"]
)
@pytest.mark.parametrize("checkout", [True, False])
def test_names_that_git_must_quote_apply(tmp_path: Path, name: str, checkout: bool) -> None:
    if checkout:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    path = written(tmp_path / name, of(LINES))
    apply(tmp_path, patch(tmp_path, [WORKERS], manifest(path, loader=2)))
    assert b"num_workers=4" in path.read_bytes()


def test_names_are_relative_to_the_top_of_the_checkout(tmp_path: Path) -> None:
    """As those of `git diff`: so that files beside the working folder are in it, too, and `git apply` works in both."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    project = tmp_path / "projects" / "adder"
    path, beside = (written(one / "train.py", of(LINES)) for one in (project, tmp_path / "library"))
    for file, folder in ((path, project), (beside, tmp_path)):
        done = patch(project, [WORKERS], manifest(file, loader=2))
        assert done.root == tmp_path
        assert done.files[0].name == file.relative_to(tmp_path).as_posix()
        apply(folder, done)


def test_a_file_outside_is_refused(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    path = written(tmp_path / "train.py", of(LINES))
    (here / "linked.py").symlink_to(path)
    for file in (path, here / "linked.py"):
        known = Manifest(sources=(SourceFile(file=str(file), sha256=""),))
        with pytest.raises(
            CannotPatch, match=rf"^Nothing can be patched: {file.name} is outside of here/\. Run diagnose patch in"
        ):
            making.make([finding(WORKERS)], known, 0, (), here)
    assert path.read_bytes() == of(LINES)


def test_a_link_inside_is_followed_to_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "src" / "real.py", of(LINES))
    (tmp_path / "train.py").symlink_to(path)
    done = patch(tmp_path, [WORKERS], manifest(tmp_path / "train.py", loader=2))
    assert [file.name for file in done.files] == ["src/real.py"]
    apply(tmp_path, done)
    assert (tmp_path / "train.py").is_symlink()


def test_files_that_were_recorded_elsewhere_are_found_by_the_end_of_their_names(tmp_path: Path) -> None:
    path = written(tmp_path / "src" / "train.py", of(LINES))
    for recorded in ("/workspace/job/src/train.py", "src/train.py", "C:\\job\\src\\train.py"):
        assert files.located(recorded, tmp_path, tmp_path) == path
    for recorded in ("/workspace/job/other.py", "/etc/passwd", "../../../etc/hosts", "", "src", "a\0b.py"):
        with pytest.raises(CannotEdit, match="is not here"):
            files.located(recorded, tmp_path, tmp_path)


def test_without_any_file_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        CannotPatch, match=r"^Nothing can be patched: train.py is not here\. Run diagnose patch in the folder"
    ):
        making.make([finding(WORKERS)], manifest(tmp_path / "train.py", loader=2), 0, (), tmp_path)
    with pytest.raises(CannotPatch, match=r"^The recording names no source file\. Record with diagnose profile\.$"):
        making.make([finding(WORKERS)], None, 0, (), tmp_path)


def test_without_a_manifest_the_lines_of_findings_lead_to_files(tmp_path: Path) -> None:
    path = written(tmp_path / "train.py", b"import torch\ndef step():\n    torch.cuda.synchronize()\n")
    trial = finding("patch:torch.cuda.synchronize", site=Site("train.py", 2, "step"))
    done = patch(tmp_path, [trial, finding("patch:torch.set_num_threads(threads=2)", 2)], None)
    assert done.notes == ("train.py may have changed since the recording.",)
    assert [one.why for one in done.by_hand] == ["the recording names no script"]
    apply(tmp_path, done)
    assert path.read_bytes() == b"import torch\ndef step():\n    pass\n"


def test_a_line_for_the_script_goes_into_the_file_that_ran(tmp_path: Path) -> None:
    for name in ("lib.py", "train.py"):
        written(tmp_path / name, b"import torch\n")
    trial = "patch:torch.set_num_threads(threads=2)"
    known = [SourceFile(file=str(tmp_path / "lib.py")), SourceFile(file=str(tmp_path / "train.py"), script=True)]
    assert [file.name for file in patch(tmp_path, [trial], Manifest(sources=tuple(known))).files] == ["train.py"]
    done = patch(tmp_path, [trial], Manifest(sources=tuple(known[:1])))
    assert why_not(done) == "the recording names no script"


def test_of_files_of_one_name_the_one_of_the_finding_is_meant(tmp_path: Path) -> None:
    text = b"import torch\ndef step():\n    x = 1\n    torch.cuda.synchronize()\n"
    paths = [written(tmp_path / folder / "loop.py", text) for folder in ("train", "test")]
    known = Manifest(sources=tuple(SourceFile(file=str(path)) for path in paths))
    trial = finding("patch:torch.cuda.synchronize", site=Site("test/loop.py", 2, "step"))
    done = patch(tmp_path, [trial], known)
    assert [file.name for file in done.files] == ["test/loop.py"]


def test_a_file_that_only_imports_is_patched_too(tmp_path: Path) -> None:
    """The script is one file, the training another."""
    script = written(tmp_path / "train.py", b"import lib\n")
    lib = written(tmp_path / "lib.py", b"def step(optimizer):\n    optimizer.zero_grad(set_to_none=False)\n")
    known = Manifest(sources=tuple(SourceFile(file=str(one), sha256="") for one in (script, lib)))
    apply(tmp_path, patch(tmp_path, ["patch:zero_grad(set_to_none=True)"], known))
    assert lib.read_bytes() == b"def step(optimizer):\n    optimizer.zero_grad(set_to_none=True)\n"
    assert script.read_bytes() == b"import lib\n"


@given(st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c\r\n", b"\xff\n", b"\r"])), st.binary(max_size=2), st.data())
def test_any_two_texts_make_a_diff_that_leads_from_one_to_the_other(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], last: bytes, data: st.DataObject
) -> None:
    before = b"x\n" + b"".join(lines) + last
    after = b"x\n" + b"".join(data.draw(st.permutations(lines))) + data.draw(st.sampled_from([last, b"", b"y", b"y\n"]))
    folder = tmp_path_factory.mktemp("texts")
    path = written(folder / "train.py", before)
    text = making.unified([PatchedFile(path, "train.py", before, after)])
    if before == after:
        assert text == b""
    else:
        subprocess.run(["git", "apply", "--binary", "-"], cwd=folder, input=text, check=True, capture_output=True)
    assert path.read_bytes() == after
