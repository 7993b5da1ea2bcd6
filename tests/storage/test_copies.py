"""SQLite exports are copied, as SQLite cannot read a stream: within bounds, and nothing of them stays."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from diagnose.source import ranks
from diagnose.source.base import InputError
from diagnose.storage import remote
from tests.source.nsight import Export
from tests.storage.conftest import Bucket
from tests.storage.network import times

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are made, with none kept from before."""
    (folder := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(remote, "_kept", {})
    return folder


@pytest.fixture
def export(tmp_path: Path) -> bytes:
    made = Export()
    for process in (200, 300):
        made.kernel("k", process, process + 10, process=process)
    return made.write(tmp_path / "report.sqlite").read_bytes()


def test_its_ranks_are_read_from_one_copy_and_named_by_the_url(bucket: Bucket, export: bytes, scratch: Path) -> None:
    url = bucket.put("report.sqlite", export)
    run = ranks.load([url])
    assert [rank.provenance.path for rank in run.ranks] == [url, url]
    assert [rank.provenance.bytes for rank in run.ranks] == [len(export)] * 2
    assert len(list(scratch.iterdir())) == 1


def test_the_next_copy_replaces_the_last(bucket: Bucket, export: bytes, scratch: Path) -> None:
    for name in ("a.sqlite", "b.sqlite", "c.sqlite"):
        bucket.put(f"run/{name}", export)
    assert len(ranks.find([f"{bucket.url}/run"])) == 6
    assert len(list(scratch.iterdir())) == 1


def test_a_damaged_export_is_named_by_its_url(bucket: Bucket, export: bytes) -> None:
    url = bucket.put("report.sqlite", export[:100] + b"x" * 5000)
    with pytest.raises(InputError, match=f"^{url} cannot be read as an SQLite database"):
        ranks.load([url])


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 5000])
def test_nothing_is_left_when_the_process_ends(bucket: Bucket, export: bytes, scratch: Path, size: int | None) -> None:
    url = bucket.put("report.sqlite", export[:size])
    program = f"import os, diagnose; diagnose.load({url!r}); print(os.listdir({str(scratch)!r}))"
    environment = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (done.returncode == 0) == (size is None)
    assert ("diagnose-copy-" in done.stdout) == (size is None)
    assert list(scratch.iterdir()) == []


def test_an_export_that_cannot_be_fetched_leaves_nothing(bucket: Bucket, export: bytes, scratch: Path) -> None:
    url = bucket.put("report.sqlite", export)
    (file,) = remote.named(url)
    bucket.proxy.fault = times(1000, 403, "GET", "report.sqlite")
    with pytest.raises(OSError, match="access is denied"):
        remote.local(file)
    assert list(scratch.iterdir()) == []


def test_an_export_that_is_too_large(bucket: Bucket, export: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_BYTES", 1000)
    monkeypatch.setattr(remote, "SMALL_BYTES", 1000)
    with pytest.raises(InputError, match=r"it is larger than the limit of .*\. Download it, and analyse"):
        ranks.load([bucket.put("report.sqlite", export)])
    assert bucket.proxy.asked("GET", "report.sqlite") == []


def test_no_room_for_a_copy(bucket: Bucket, export: bytes, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    monkeypatch.setattr(remote, "SPARED_BYTES", 1 << 62)
    with pytest.raises(InputError, match=f"{scratch} has too little space. Set TMPDIR to a larger folder"):
        ranks.load([bucket.put("report.sqlite", export)])
    assert list(scratch.iterdir()) == []


def test_a_disk_that_is_full_at_the_last_bytes(bucket: Bucket, scratch: Path) -> None:
    (file,) = remote.named(bucket.put("long.json", bytes((4 << 20) + 4000)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((4 << 20) + 1000, limits[1]))
    try:
        with pytest.raises(remote.StorageError, match="has too little space"):
            remote.local(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(scratch.iterdir()) == []
