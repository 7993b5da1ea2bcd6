"""A file at a URL read as a stream: whole, of one version, whatever the network does."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path

import pytest

from diagnose.source import ranks
from diagnose.source.base import InputError
from diagnose.storage import filesystem, reading
from diagnose.storage.failures import StorageError
from diagnose.storage.listing import Listings
from diagnose.storage.remote import Remote
from tests.storage.conftest import Bucket
from tests.storage.network import Request, proxy, times, web_server

CONTENT = random.Random(0).randbytes(400_000)
TRACE = Path(__file__).parents[2] / "sample_traces" / "recorded" / "cpu_mlp" / "trace.json.gz"
"""Longer than what is read at first."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file is read in many ranges."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 100_000)


def listed(url: str) -> Remote:
    (one,) = Listings().named(url)
    return one


def content(remote: Remote) -> bytes:
    with remote.open("rb") as file:
        return file.read()


def test_a_file_is_read_in_ranges_that_follow_each_other(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    assert content(remote) == CONTENT
    asked = [one.range.removeprefix("bytes=").split("-") for one in bucket.proxy.asked("GET", "x.bin")]
    assert [int(first) for first, _ in asked] == [0, *range(reading.FIRST_BYTES, len(CONTENT), 100_000)]


def test_what_a_file_is_takes_one_small_range(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    with remote.open("rb") as file:
        assert file.read(2) == CONTENT[:2]
    (only,) = bucket.proxy.asked("GET", "x.bin")
    assert only.range == f"bytes=0-{reading.FIRST_BYTES - 1}"


def test_it_can_be_read_again_from_elsewhere(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    with remote.open("rb") as file:
        file.seek(350_000)
        assert file.read() == CONTENT[350_000:]
        file.seek(5)
        assert file.read(200_000) == CONTENT[5:200_005]


@pytest.mark.parametrize("answer", [503, 429, 500, -1000, -1])
def test_what_passes_is_tried_again_from_where_it_was(bucket: Bucket, answer: int) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    bucket.proxy.fault = times(3, answer, "GET", "x.bin")
    assert content(remote) == CONTENT
    first = f"bytes=0-{reading.FIRST_BYTES - 1}"
    assert [one.range for one in bucket.proxy.asked("GET", "x.bin")].count(first) == 4


def test_a_connection_that_is_lost_in_the_middle_goes_on_there(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    lost = f"bytes={reading.FIRST_BYTES}-"
    left = [2]

    def fault(request: Request) -> int | None:
        if not request.range.startswith(lost) or not left[0]:
            return None
        left[0] -= 1
        return -50_000

    bucket.proxy.fault = fault
    assert content(remote) == CONTENT
    ranges = [one.range for one in bucket.proxy.asked("GET", "x.bin")]
    assert len([range_ for range_ in ranges if range_.startswith(lost)]) == 3
    assert len([range_ for range_ in ranges if range_.startswith("bytes=0-")]) == 1


def test_tries_are_bounded(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    bucket.proxy.fault = times(1000, 503, "GET", "x.bin")
    with pytest.raises(StorageError, match=r"^\[Errno \d+\] the storage answers with HTTP 503 \(6 tries\)$"):
        content(remote)
    assert len(bucket.proxy.asked("GET", "x.bin")) == filesystem.TRIES


def test_no_try_begins_after_minutes(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    monkeypatch.setattr(filesystem, "GIVE_UP_S", 0.0)
    bucket.proxy.fault = times(1000, 503, "GET", "x.bin")
    with pytest.raises(StorageError, match=r"HTTP 503 \(1 try\)$"):
        content(remote)


@pytest.mark.parametrize(("status", "words"), [(404, "it is not there, or not any more"), (403, "access is denied")])
def test_what_does_not_pass_is_final_at_once(bucket: Bucket, status: int, words: str) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    bucket.proxy.fault = times(1000, status, "GET", "x.bin")
    with pytest.raises(StorageError, match=words):
        content(remote)
    assert len(bucket.proxy.asked("GET", "x.bin")) == 1


@pytest.mark.parametrize("at", [0, 200_000])
@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) + 1, 200_000])
def test_a_file_that_changes_while_it_is_read_is_refused(bucket: Bucket, at: int, size: int) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    file = remote.open("rb")
    file.read(at)
    bucket.put("x.bin", random.Random(1).randbytes(size))
    with pytest.raises(StorageError, match="it changed while it was read"):
        file.read()


def test_a_file_that_changed_since_it_was_listed_is_refused(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    bucket.put("x.bin", CONTENT[::-1])
    with pytest.raises(StorageError, match="it changed while it was read"):
        content(remote)


def test_a_change_is_seen_though_the_rest_was_not_read(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    file = remote.open("rb")
    file.read(200_000)
    bucket.put("x.bin", CONTENT[::-1])
    with pytest.raises(StorageError, match="it changed while it was read"):
        file.close()


def test_it_goes_to_other_processes(bucket: Bucket) -> None:
    remote = listed(bucket.put("x.bin", CONTENT))
    arrived = pickle.loads(pickle.dumps(remote))
    assert arrived == remote
    assert content(arrived) == CONTENT


def test_a_trace_is_inflated_on_the_way_without_a_copy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda *_, **__: pytest.fail("a local copy"))
    here = ranks.load([TRACE]).ranks[0]
    there = ranks.load([bucket.put("run/trace.json.gz", TRACE.read_bytes())]).ranks[0]
    assert there.spans.equals(here.spans)
    assert there.provenance.bytes == TRACE.stat().st_size
    assert there.provenance.path == f"{bucket.url}/run/trace.json.gz"


def test_a_named_trace_that_changes_is_an_error(bucket: Bucket) -> None:
    url = bucket.put("trace.json.gz", TRACE.read_bytes())

    def fault(request: Request) -> None:
        if request.method == "GET" and not request.range.startswith("bytes=0-"):
            bucket.put("trace.json.gz", TRACE.read_bytes()[:-1] + b"x")

    bucket.proxy.fault = fault
    with pytest.raises(InputError, match=r"Cannot read s3://\S+/trace\.json\.gz: it changed while it was read\."):
        ranks.load([url])


def test_a_web_server_without_ranges(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(CONTENT)
    with web_server(tmp_path) as url:
        assert content(listed(f"{url}/x.bin")) == CONTENT


def test_a_web_server_without_ranges_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "FIRST_WAIT_S", 0.001)
    (tmp_path / "x.bin").write_bytes(CONTENT)
    with web_server(tmp_path, -1, -1, 250_000, 40_000, 600_000) as url:
        assert content(Remote(f"{url}/x.bin")) == CONTENT


def test_a_file_that_changes_on_a_web_server(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(CONTENT)
    with web_server(tmp_path) as url:
        remote = listed(f"{url}/x.bin")
        file = remote.open("rb")
        file.read(200_000)
        (tmp_path / "x.bin").write_bytes(CONTENT[:-1])
        with pytest.raises(StorageError, match="it changed while it was read"):
            file.read()


def test_a_folder_on_a_web_server(tmp_path: Path) -> None:
    shutil.copy(TRACE, tmp_path / "rank0.trace.json.gz")
    with web_server(tmp_path) as url:
        (rank,) = ranks.load([f"{url}/"]).ranks
        assert rank.provenance.path == f"{url}/rank0.trace.json.gz"
        assert rank.provenance.bytes == TRACE.stat().st_size
        with pytest.raises(InputError, match=r"/none/: it is not there"):
            ranks.load([f"{url}/none/"])
        with pytest.raises(InputError, match=r"/none\.json does not exist"):
            ranks.load([f"{url}/none.json"])


def test_a_url_that_is_signed_for_reading_only(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(CONTENT)
    with web_server(tmp_path) as server, proxy(int(server.rpartition(":")[2])) as seen:
        seen.fault = times(1000, 403, "HEAD", "x.bin")
        assert content(listed(f"{seen.url}/x.bin?sig=abc")) == CONTENT


def test_settings_of_fsspec_are_used_for_web_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    (tmp_path / "x.bin").write_bytes(CONTENT)
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"Authorization": "Bearer abc"}})
    with web_server(tmp_path) as server, proxy(int(server.rpartition(":")[2])) as seen:
        assert content(listed(f"{seen.url}/x.bin")) == CONTENT
        assert {request.headers["Authorization"] for request in seen.requests} == {"Bearer abc"}
        assert {request.headers["Accept-Encoding"] for request in seen.requests} == {"identity"}


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "FIRST_WAIT_S", 0.001)
    with pytest.raises(InputError, match=r"^Cannot read http://127\.0\.0\.1:9/x\.json: the connection fails"):
        ranks.load(["http://127.0.0.1:9/x.json"])
