"""Files put to URLs: whole or not at all, again where that helps, the most important one last."""

import pickle
import random
import shutil
from pathlib import Path

import pytest

from diagnose.source import ranks
from diagnose.source.base import InputError
from diagnose.storage import remote, writing
from diagnose.storage.remote import Listings, Remote
from diagnose.storage.urls import StorageError
from tests.storage.conftest import Bucket
from tests.storage.network import proxy, times, web_server


def test_a_file_is_put_and_replaced(bucket: Bucket) -> None:
    for content in (b"one", b"two" * 100_000):
        writing.write(f"{bucket.url}/reports/a.html", content)
        assert bucket.get("reports/a.html") == content
    assert bucket.keys() == ["reports/a.html"]
    assert bucket.client.head_object(Bucket=bucket.name, Key="reports/a.html")["ContentType"] == "text/html"


def test_an_older_file_stays_if_it_cannot_be_replaced(bucket: Bucket) -> None:
    bucket.put("a.html", b"old")
    bucket.proxy.fault = times(1000, 403, "PUT", "a.html")
    with pytest.raises(StorageError, match="access is denied"):
        writing.write(f"{bucket.url}/a.html", b"new")
    assert bucket.get("a.html") == b"old"
    assert len(bucket.proxy.asked("PUT", "a.html")) == 1


def test_elsewhere_it_is_written_beside_and_renamed(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/reports/a.html"
    for content in (b"one", b"two"):
        writing.write(url, content)
        assert [(path.name, path.read_bytes()) for path in (tmp_path / "reports").iterdir()] == [("a.html", content)]


def test_what_cannot_be_renamed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.html" / "in the way").mkdir(parents=True)
    writing.write(f"file://{tmp_path}/b.html", b"one")
    (tmp_path / "c").write_bytes(b"a file")
    with pytest.raises(StorageError):
        writing.write(f"file://{tmp_path}/c/d.html", b"one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html", "c"]


def test_web_servers_take_nothing() -> None:
    with pytest.raises(StorageError, match="diagnose cannot write to web servers"):
        writing.refuse("https://h/a.html")


def test_a_folder_is_put_with_its_manifest_last(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("manifest.json", "rank0.trace.json.gz", "node1/rank1.trace.json.gz", "report.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert not writing.is_taken(f"{bucket.url}/runs/a")
    writing.upload(tmp_path, f"{bucket.url}/runs/a", "manifest.json")
    assert writing.is_taken(f"{bucket.url}/runs/a")
    put = [request.key for request in bucket.proxy.requests if request.method == "PUT"]
    names = ("node1/rank1.trace.json.gz", "rank0.trace.json.gz", "report.html", "manifest.json")
    assert put == [f"runs/a/{name}" for name in names]
    assert bucket.get("runs/a/rank0.trace.json.gz") == b"rank0.trace.json.gz"


def test_without_the_others_the_manifest_is_not_put(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("manifest.json", "rank0.trace.json.gz"):
        (tmp_path / name).write_bytes(b"x")
    bucket.proxy.fault = times(1000, 403, "PUT", "rank0.trace.json.gz")
    with pytest.raises(StorageError, match="access is denied"):
        writing.upload(tmp_path, bucket.url, "manifest.json")
    assert bucket.keys() == []


CONTENT = random.Random(0).randbytes(400_000)
TRACE = Path(__file__).parents[2] / "sample_traces" / "recorded" / "cpu_mlp" / "trace.json.gz"


def listed(url: str) -> Remote:
    (one,) = Listings().named(url)
    return one


def content(place: Remote) -> bytes:
    with place.open("rb") as file:
        return file.read()


@pytest.mark.parametrize("large", [False, True])
def test_a_file_is_read_whole(bucket: Bucket, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SMALL_BYTES", len(CONTENT) - large)
    file = listed(bucket.put("x.bin", CONTENT))
    assert content(file) == content(file) == CONTENT
    assert file.stat().st_size == len(CONTENT)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (404, "it does not exist"),
        (403, "access is denied"),
        (503, "the storage answers with HTTP 503"),
        (-1000, "the connection failed"),
    ],
)
def test_what_fails_is_said(bucket: Bucket, answer: int, words: str) -> None:
    file = listed(bucket.put("x.bin", CONTENT))
    bucket.proxy.fault = times(1000, answer, "GET", "x.bin")
    with pytest.raises(StorageError, match=words):
        file.open("rb")


def test_a_failure_that_passes_is_not_seen(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 5)
    file = listed(bucket.put("x.bin", CONTENT))
    bucket.proxy.fault = times(1, 503, "GET", "x.bin")
    assert content(file) == CONTENT


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_file_that_changed_since_it_was_listed_is_refused(bucket: Bucket, size: int) -> None:
    file = listed(bucket.put("x.bin", CONTENT))
    bucket.put("x.bin", random.Random(1).randbytes(size))
    with pytest.raises(StorageError, match="it changed while diagnose read it"):
        file.open("rb")


def test_a_trace_is_read_as_if_it_were_here(bucket: Bucket) -> None:
    here = ranks.load([TRACE]).ranks[0]
    there = ranks.load([bucket.put("run/trace.json.gz", TRACE.read_bytes())]).ranks[0]
    assert there.spans.equals(here.spans)
    assert there.provenance.bytes == TRACE.stat().st_size
    assert there.provenance.path == f"{bucket.url}/run/trace.json.gz"


def test_it_goes_to_other_processes(bucket: Bucket) -> None:
    file = listed(bucket.put("x.bin", CONTENT))
    arrived = pickle.loads(pickle.dumps(file))
    assert arrived == file
    assert content(arrived) == CONTENT


def test_a_web_server_without_ranges(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(CONTENT)
    with web_server(tmp_path) as url:
        assert content(listed(f"{url}/x.bin")) == CONTENT


def test_a_folder_on_a_web_server(tmp_path: Path) -> None:
    shutil.copy(TRACE, tmp_path / "rank0.trace.json.gz")
    with web_server(tmp_path) as url:
        (rank,) = ranks.load([f"{url}/"]).ranks
        assert rank.provenance.path == f"{url}/rank0.trace.json.gz"
        assert rank.provenance.bytes == TRACE.stat().st_size
        with pytest.raises(InputError, match=r"/none/: it does not exist"):
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


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"^Cannot read http://127\.0\.0\.1:9/x\.json: the connection failed"):
        ranks.load(["http://127.0.0.1:9/x.json"])
