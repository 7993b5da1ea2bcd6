"""What a URL stands for: folders are listed once, and nothing in them is asked for one by one."""

from pathlib import Path

import pytest

import diagnose
from diagnose.source import processes, ranks, recording
from diagnose.source.base import InputError
from diagnose.storage import remote
from tests.drawing import Drawing
from tests.storage.conftest import Bucket
from tests.storage.network import times

JOB = Path(__file__).parents[2] / "sample_traces" / "jobs" / "collecting_rank"


def trace(**info: object) -> bytes:
    return Drawing(distributedInfo={"backend": "nccl", **info}).op("aten::mm", 0, 5).text().encode()


def notes(run: diagnose.Diagnosis) -> str:
    return " ".join(note.what for note in run.integrity)


@pytest.mark.slow
def test_a_job_is_diagnosed_as_if_it_were_here_by_several_processes(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.put_folder(JOB, "runs/a")
    here = diagnose.analyze(JOB, select=["CO"]).to_json()
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    assert diagnose.analyze(url, jobs=2, select=["CO"]).to_json().replace(url, str(JOB)) == here


def test_a_folder_may_end_in_a_slash(bucket: Bucket) -> None:
    url = bucket.put_folder(JOB, "runs/a")
    assert recording.find([url]) == recording.find([f"{url}/"])


def test_a_folder_is_listed_once_and_only_its_manifest_is_read(bucket: Bucket) -> None:
    url = bucket.put_folder(JOB, "runs/a")
    bucket.proxy.requests.clear()
    found = recording.find([f"{url}/"])
    names = [[files.trace.path.name, *(one.name for one in files.beside.values())] for files in found.ranks]
    parts = ("trace", "detail", "graph", "values")
    assert names == [[f"rank{rank}.{part}.json.gz" for part in parts] for rank in (0, 1)]
    assert [files.trace.path.stat().st_size for files in found.ranks] == [
        (JOB / f"rank{rank}.trace.json.gz").stat().st_size for rank in (0, 1)
    ]
    assert found.manifest is not None
    assert {request.key for request in bucket.proxy.requests} == {"", "runs/a/manifest.json"}
    assert len([request for request in bucket.proxy.requests if "list-type" in request.path]) == 1


@pytest.mark.slow
def test_a_thousand_files_come_in_pages_and_in_order(bucket: Bucket) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for rank in range(1100):
        backend.put_object(bucket.name, f"run/rank{rank}.json", b"{}")
    found = ranks.find([f"{bucket.url}/run/"])
    assert [file.path.name for file in found] == [f"rank{rank}.json" for rank in range(1100)]
    assert len([request for request in bucket.proxy.requests if "prefix=run%2F&" in request.path]) == 2
    assert len([request for request in bucket.proxy.requests if request.key.endswith(".json")]) == 0


def test_only_what_is_named_like_a_trace_is_taken(bucket: Bucket) -> None:
    for name in ("a.json", "b/c.json.gz", "manifest.json", "rank0.detail.json.gz", "x.txt", ".work/d.json", "e.tmp"):
        bucket.put(f"run/{name}", b"{}")
    bucket.put("other.json", b"{}")
    assert [str(file.path) for file in ranks.find([f"{bucket.url}/run"])] == [
        f"{bucket.url}/run/a.json",
        f"{bucket.url}/run/b/c.json.gz",
    ]


def test_patterns(bucket: Bucket) -> None:
    for name in ("rank0.json", "rank1.json", "rank10.json", "deep/rank2.json"):
        bucket.put(f"run/{name}", trace())
    found = ranks.find([f"{bucket.url}/run/rank?.json"])
    assert [str(file.path) for file in found] == [f"{bucket.url}/run/rank0.json", f"{bucket.url}/run/rank1.json"]
    assert all(file.named for file in found)
    assert len(ranks.find([f"{bucket.url}/run/**/*.json"])) == 4
    assert len(ranks.find([f"{bucket.url}/run/*1*.json", f"{bucket.url}/run"])) == 4
    with pytest.raises(InputError, match=r"run/none\*\.json does not exist\. Check the URL\."):
        ranks.find([f"{bucket.url}/run/none*.json"])


def test_nothing_there(bucket: Bucket) -> None:
    for url in (f"{bucket.url}/none.json", f"{bucket.url}/none", "s3://no-such-bucket-anywhere/x"):
        with pytest.raises(InputError, match=r"does not exist\. Check the URL\.$"):
            ranks.find([url])
    with pytest.raises(InputError, match="holds no trace"):
        ranks.find([f"{bucket.url}/none/"])


def test_a_listing_that_is_forbidden(bucket: Bucket) -> None:
    bucket.proxy.fault = times(1000, 403, "GET", "")
    with pytest.raises(InputError, match=r"^Cannot read s3://\S+/run/: access is denied\. Check the credentials"):
        ranks.find([f"{bucket.url}/run/"])
    assert len(bucket.proxy.requests) == 1


def test_a_rank_that_is_gone_or_forbidden_costs_that_rank(bucket: Bucket) -> None:
    for rank in range(4):
        bucket.put(f"run/rank{rank}.json", trace(rank=rank, world_size=4))
    found = recording.find([f"{bucket.url}/run"])
    bucket.delete("run/rank1.json")
    bucket.put("run/rank2.json", trace(rank=2, world_size=4) + b" ")
    bucket.proxy.fault = times(1000, 403, "GET", "rank3.json")
    from diagnose import pipeline

    run = pipeline.diagnose(found)
    assert [source.rank for source in run.provenance.sources] == [0]
    said = notes(run)
    assert "rank1.json: it does not exist." in said
    assert "rank2.json: it changed while diagnose read it." in said
    assert "rank3.json: access is denied." in said


def test_a_rank_that_was_written_twice_counts_once(bucket: Bucket) -> None:
    bucket.put("run/rank0.json", trace(rank=0, world_size=1))
    bucket.put("run/rank0-again.json", trace(rank=0, world_size=1))
    run = ranks.load([f"{bucket.url}/run"])
    assert len(run.ranks) == 1
    assert "rank0.json (rank 0, as rank0-again.json)" in run.integrity[0].what


def test_a_storage_that_is_not_known() -> None:
    with pytest.raises(InputError, match="fsspec does not support foo://"):
        ranks.find(["foo://b/run"])


def test_the_storages_that_are_promised_are_known_to_fsspec() -> None:
    from fsspec.registry import known_implementations

    assert set(remote.PACKAGES) <= {*known_implementations, "abfss"}  # adlfs itself makes that one known.


def test_a_report_of_nsight_systems_is_refused(bucket: Bucket) -> None:
    url = bucket.put("x.nsys-rep", b"...")
    with pytest.raises(
        InputError, match=r"Download the report, or run on its machine: nsys export --type sqlite .* x\.nsys-rep"
    ):
        ranks.find([url])
