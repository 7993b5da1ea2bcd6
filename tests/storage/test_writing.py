"""Files put to URLs: whole or not at all, again where that helps, the most important one last."""

from pathlib import Path

import pytest

from diagnose.storage import writing
from diagnose.storage.failures import StorageError
from tests.storage.conftest import Bucket
from tests.storage.network import times


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
    with pytest.raises(StorageError, match="web servers take no files"):
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
