"""Tables are kept for the next look at a file: never stale, never damaged, for nobody else, and never too many."""

from __future__ import annotations

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import diagnose
from diagnose.cli import group
from diagnose.source import cache, ranks, stored
from diagnose.storage.remote import Place
from diagnose.trace import schema
from diagnose.trace.model import Rank

SAMPLES = sorted((Path(__file__).parent.parent.parent / "sample_traces").rglob("*.trace.json.gz"))
SAMPLE = Path(__file__).parent.parent.parent / "sample_traces" / "recorded" / "cpu_mlp" / "trace.json.gz"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which whatever is read from now on is kept."""
    monkeypatch.delenv("DIAGNOSE_NO_CACHE", raising=False)
    monkeypatch.setattr(cache, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(cache, "RECENT_NS", 0)
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """The files that were read, rather than found in the cache."""
    really, found = ranks._read, list[Place]()

    def read(path: Place, part: int | None) -> Rank:
        found.append(path)
        return really(path, part)

    monkeypatch.setattr(ranks, "_read", read)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of the test's own."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(SAMPLE.read_bytes())
    return path


def assert_equal(one: Rank, other: Rank) -> None:
    """Of all tables each value, dtype and label, and all else."""
    tables = {table.name for table in schema.TABLES}
    for field in fields(Rank):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if field.name in tables:
            pd.testing.assert_frame_equal(mine, its, check_exact=True, check_index_type="exact")
            assert mine.index.name == its.index.name
        else:
            assert mine == its


@pytest.mark.parametrize("path", SAMPLES[:: len(SAMPLES) // 20], ids=lambda path: path.parent.name)
def test_what_is_kept_is_what_was_read(path: Path, tmp_path: Path) -> None:
    rank = ranks.read(path)
    with (tmp_path / "kept").open("wb") as file:
        stored.write(rank, file)
    assert_equal(stored.read(tmp_path / "kept"), rank)


def test_every_recording_of_others_is_kept_as_it_was_read(corpus: Path, tmp_path: Path) -> None:
    for path in [*sorted(corpus.glob("kineto/*/*.json.gz")), *sorted(corpus.glob("nsight/*.sqlite"))]:
        rank = ranks.read(path)
        with (tmp_path / "kept").open("wb") as file:
            stored.write(rank, file)
        assert_equal(stored.read(tmp_path / "kept"), rank)


def test_a_file_is_read_once(kept: Path, reads: list[Place], trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ranks.read(trace)
    assert_equal(ranks.read(trace), first)
    assert reads == [trace]
    monkeypatch.chdir(trace.parent)
    assert ranks.read(Path(trace.name)).provenance.path == trace.name
    assert reads == [trace]


def test_a_diagnosis_of_what_is_kept_is_the_same(kept: Path, reads: list[Place], trace: Path) -> None:
    first = diagnose.analyze(trace)
    assert diagnose.analyze(trace).to_json() == first.to_json()
    assert reads == [trace]


def test_a_file_that_changed_is_read_again(kept: Path, reads: list[Place], trace: Path) -> None:
    ranks.read(trace)
    about, content = trace.stat(), bytearray(trace.read_bytes())
    content[4] ^= 1  # the time in gzip's header: as long as before, and as sound
    trace.write_bytes(content)
    os.utime(trace, ns=(about.st_atime_ns, about.st_mtime_ns))
    ranks.read(trace)
    assert reads == [trace, trace]


def test_code_that_changed_reads_again(
    kept: Path, reads: list[Place], trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.read(trace)
    monkeypatch.setattr(cache, "_code", lambda: "other")
    ranks.read(trace)
    assert reads == [trace, trace]


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "array", "foreign"])
def test_what_is_damaged_is_read_again(kept: Path, reads: list[Place], trace: Path, damage: str) -> None:
    first = ranks.read(trace)
    (file,) = kept.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "header":
        content[100] ^= 1
    if damage == "array":
        content[-100] ^= 1
    broken = {"empty": b"", "cut": bytes(content[:-64]), "foreign": b"\x80\x04rubbish" * 100}
    file.write_bytes(broken.get(damage, bytes(content)))
    assert_equal(ranks.read(trace), first)
    assert reads == [trace, trace]
    assert_equal(ranks.read(trace), first)
    assert reads == [trace, trace]


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
def test_it_is_for_the_user_alone(kept: Path, reads: list[Place], trace: Path) -> None:
    ranks.read(trace)
    (file,) = kept.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept.chmod(0o777)  # somebody else may have put it there
    ranks.read(trace)
    assert reads == [trace, trace]


def test_what_was_not_used_for_longest_goes_first(
    kept: Path, reads: list[Place], trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [trace.with_name(f"other{k}.json.gz") for k in range(2)]
    for other in others:
        other.write_bytes(trace.read_bytes())
    ranks.read(trace)
    ranks.read(others[0])
    for age, file in enumerate(sorted(kept.iterdir(), key=lambda file: file.stat().st_mtime_ns, reverse=True), 1):
        os.utime(file, (1e9 - age, 1e9 - age))
    ranks.read(trace)  # found, and so the latest
    size = max(file.stat().st_size for file in kept.iterdir())
    monkeypatch.setattr(cache, "MOST_BYTES", int(2.5 * size))
    ranks.read(others[1])
    assert len(list(kept.iterdir())) == 2
    ranks.read(trace)
    ranks.read(others[0])
    assert reads == [trace, others[0], others[1], others[0]]


def test_quick_reads_are_not_kept(kept: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WORTH_SECONDS", 3600.0)
    ranks.read(trace)
    assert not kept.exists()


def test_a_file_that_has_just_changed_is_not_kept(kept: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "RECENT_NS", 3_600_000_000_000)
    ranks.read(trace)
    assert not kept.exists()


def test_a_folder_that_cannot_be_made_keeps_nothing(
    kept: Path, reads: list[Place], trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "folder", lambda: trace / "cache")
    ranks.read(trace)
    ranks.read(trace)
    assert reads == [trace, trace]


@pytest.mark.slow
def test_many_at_once_find_it_whole(kept: Path, trace: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ranks.read, [trace] * 16))
    for one in found:
        assert_equal(one, found[0])
    (file,) = kept.iterdir()
    assert file.suffix == ".tables"


def test_no_cache(kept: Path, reads: list[Place], trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        assert CliRunner().invoke(group, ["analyze", str(trace), "--no-cache", "-q"]).exit_code == 0
    assert not kept.exists()
    assert reads == [trace, trace]
    assert CliRunner().invoke(group, ["analyze", str(trace), "-q"]).exit_code == 0
    assert kept.exists()
    monkeypatch.setenv("DIAGNOSE_NO_CACHE", "1")
    ranks.read(trace)
    assert reads == [trace] * 4


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="folders of Linux")
@pytest.mark.parametrize(("given", "expected"), [("/somewhere", "/somewhere/diagnose"), ("relative", None), ("", None)])
def test_the_folder_is_the_users(given: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.folder() == Path(expected or "/home/somebody/.cache/diagnose")
