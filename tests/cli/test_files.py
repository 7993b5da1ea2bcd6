"""Where results may be written, and that nothing is destroyed by it."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from diagnose.cli.results import STDOUT, output, refuse_unwritable, write
from tests.cli.invoking import refused, run
from tests.cli.test_analyze import trace
from tests.exhaustive import some_of

__all__ = ["trace"]  # A fixture.

OPTIONS = ["--html", "--json", "--markdown", "--perfetto"]

linux = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")


def full_device(folder: Path) -> Path:
    """A full device of our own, so that no test harms the machine's; skips where only root may make one."""
    path = folder / "full"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        path.write_text("")
    except OSError:
        pytest.skip("only root can make a device")
    return path


@linux
@pytest.mark.parametrize("option", OPTIONS)
def test_a_device_is_written_to_and_stays_a_device(trace: Path, tmp_path: Path, option: str) -> None:
    (folder := tmp_path / "devices").mkdir()
    full = full_device(folder)
    refused(run("analyze", trace, option, full), f"Cannot write {full}: No space left on device.")
    assert stat.S_ISCHR(full.stat().st_mode)
    assert list(folder.iterdir()) == [full]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_link_is_followed_and_stays(trace: Path, tmp_path: Path, option: str) -> None:
    (far := tmp_path / "far").mkdir()
    target, link = far / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run("analyze", trace, option, link).returncode == 0
    assert link.is_symlink()
    assert len(target.read_text()) > 100
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(far.iterdir()) == [target]


def test_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(tmp_path / "target")
    write(str(link), "text")
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(link)
    with pytest.raises(click.ClickException, match="is a link to itself"):
        refuse_unwritable([str(link)], [])


def test_a_trace_is_not_overwritten_through_a_link(trace: Path, tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(trace)
    before = trace.read_bytes()
    refused(run("analyze", trace, "--json", link), "is an input")
    assert trace.read_bytes() == before


def test_two_results_in_one_file_are_refused(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    refused(run("analyze", trace, "--json", tmp_path / "out", "--html", tmp_path / "link"), "Two results would go to")
    assert not (tmp_path / "out").exists()


def test_a_pipe_gets_the_result_and_stays(trace: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    got = list[str]()
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    done = run("analyze", trace, "--json", pipe)
    reader.join(600)
    assert done.returncode == 0
    assert got[0].startswith("{")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"], ["/dev/stdout"]))
def test_standard_output_by_any_name_holds_the_result_alone(trace: Path, tmp_path: Path, name: str) -> None:
    if name != STDOUT and not Path(name).exists():
        pytest.skip(f"no {name} on this system")
    result = tmp_path / "result"
    with result.open("w") as file:
        file.write("before\n")
        file.flush()
        command = [sys.executable, "-m", "diagnose", "analyze", str(trace), "--json", name]
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    text = result.read_text()
    assert text.startswith("before\n{")
    assert text.endswith("}\n")
    assert "/step · " not in text


def test_two_results_for_standard_output_by_other_names(trace: Path) -> None:
    refused(run("analyze", trace, "--json", "-", "--html", "/dev/stdout"), "Only one result")


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_a_result_whose_reader_leaves_ends_in_a_sentence(trace: Path, option: str) -> None:
    command = f'set -o pipefail; "{sys.executable}" -m diagnose analyze "{trace}" {option} - | true'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 2
    assert done.stderr == "Error: standard output closed before the result was complete. Write to a file instead.\n"


def test_an_older_file_stays_where_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    (old := tmp_path / "old").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write(str(old), "\ud800")
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_what_is_no_other_name_of_standard_output(tmp_path: Path) -> None:
    assert output(str(tmp_path / "new")) == str(tmp_path / "new")
    assert output("-") == "-"
    assert output("/dev/null") == "/dev/null"
