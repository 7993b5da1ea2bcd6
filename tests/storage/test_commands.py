"""URLs on the command line: results, refusals, and secrets that nobody sees."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import diagnose
from diagnose.cli.results import refuse_unwritable, write
from diagnose.source.base import InputError
from diagnose.storage.remote import Remote
from tests.capture.scripts import STEP, environment, script
from tests.cli.invoking import refused, run
from tests.cli.test_analyze import trace
from tests.storage.conftest import Bucket
from tests.storage.network import Request, times, web_server

__all__ = ["trace"]  # A fixture.

ROOT = Path(__file__).parents[2]
SECRET = "c2VjcmV0Zm9ydGVzdHM"


def test_reports_go_to_urls(bucket: Bucket, trace: Path) -> None:
    url = bucket.put("run/rank0.json", trace.read_bytes())
    names = {"--json": "r.json", "--markdown": "r.md", "--perfetto": "r.perfetto"}
    options = [word for option, name in names.items() for word in (option, f"{bucket.url}/out/{name}")]
    done = run("analyze", url, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert bucket.keys() == [*sorted(f"out/{name}" for name in names.values()), "run/rank0.json"]
    assert json.loads(bucket.get("out/r.json"))["provenance"]["sources"][0]["path"] == url
    assert bucket.get("out/r.md").startswith(b"## 100 us/step ")


def test_tables_go_to_a_url_and_the_record_of_them_last(bucket: Bucket, trace: Path) -> None:
    url = f"{bucket.url}/tables"
    done = run("export", trace, "--parquet", url, "--table", "kernels,steps")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["diagnose-export.json", "kernels/rank0.parquet", "steps/rank0.parquet"]
    assert bucket.keys() == [f"tables/{name}" for name in names]
    put = [request.path for request in bucket.proxy.requests if request.method == "PUT"]
    assert put[-1].endswith("diagnose-export.json")
    assert bucket.get("tables/steps/rank0.parquet").startswith(b"PAR1")
    refused(run("export", trace, "--parquet", url), f"{url} is not empty. Choose a new URL.")


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (["{}/run/rank0.json"], "{}/run/rank0.json is an input"),
        (["s3a://{bucket}/run/rank0.json"], "s3a://{bucket}/run/rank0.json is an input"),
        (["{}/out", "{}/out"], "Two results would go to {}/out. Name a different file for each."),
        (["{}/out/"], "{}/out/ is a folder. Name a file."),
        (["https://h/out"], "Cannot write https://h/out: diagnose cannot write to web servers."),
        (["foo://h/out"], "Cannot write foo://h/out: fsspec does not support foo://."),
    ],
)
def test_outputs_that_are_refused_before_the_work(bucket: Bucket, outputs: list[str], said: str) -> None:
    with pytest.raises(click.ClickException) as refusal:
        refuse_unwritable(
            [output.format(bucket.url, bucket=bucket.name) for output in outputs],
            [Remote(f"{bucket.url}/run/rank0.json")],
        )
    assert said.format(bucket.url, bucket=bucket.name) in str(refusal.value)
    assert bucket.proxy.requests == []


def test_an_output_beside_the_input_may_be_written(bucket: Bucket) -> None:
    refuse_unwritable([f"{bucket.url}/run/report.json"], [Remote(f"{bucket.url}/run/rank0.json")])
    write(f"{bucket.url}/run/report.json", "text")
    assert bucket.get("run/report.json") == b"text"


def test_a_report_that_cannot_be_put(bucket: Bucket) -> None:
    bucket.proxy.fault = times(1000, 403, "PUT", "out.json")
    with pytest.raises(click.ClickException) as refusal:
        write(f"{bucket.url}/out.json", "text")
    assert str(refusal.value).startswith(f"Cannot write {bucket.url}/out.json: access is denied.")


@pytest.mark.slow
def test_a_local_trace_takes_no_package_of_storages(trace: Path) -> None:
    program = (
        "import sys; from diagnose.cli import main\n"
        f"sys.argv[1:] = ['analyze', {str(trace)!r}, '--json', {str(trace.with_name('out'))!r}]\n"
        "try: main()\n"
        "finally: print(sorted({one.partition('.')[0] for one in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))
    assert "diagnose" in loaded
    assert loaded.isdisjoint({"fsspec", "s3fs", "aiohttp", "distributed", "dask"})


@pytest.mark.parametrize(
    ("url", "missing", "install"),
    [
        ("s3://b/x.json", "fsspec", "pip install fsspec s3fs"),
        ("s3://b/x.json", "s3fs", "pip install fsspec s3fs"),
        ("https://h/x.json", "aiohttp", "pip install fsspec aiohttp"),
        ("gs://b/x.json", "gcsfs", "pip install fsspec gcsfs"),
        ("az://b/x.json", "adlfs", "pip install fsspec adlfs"),
        ("abfss://b/x.json", "adlfs", "pip install fsspec adlfs"),
        ("hdfs://node/x.json", "pyarrow", "pip install fsspec pyarrow"),
    ],
)
def test_packages_that_are_missing(url: str, missing: str, install: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from diagnose.storage.filesystem import filesystem\n"
        f"try: filesystem({url!r})\n"
        "except OSError as error: print(error.strerror)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    kind = url.partition(":")[0]
    assert done.stdout == f"{kind}:// needs packages that are not installed. Run: {install}\n"


def signed(url: str) -> str:
    """With everything in it that may be a secret."""
    kind, _, rest = url.partition("://")
    user = f"me:{SECRET}@" if kind == "http" else ""
    return f"{kind}://{user}{rest}?X-Amz-Signature={SECRET}&a=b"


def test_secrets_are_nowhere(tmp_path: Path, trace: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    names = {"--html": "r.html", "--json": "r.json", "--markdown": "r.md", "--perfetto": "r.perfetto"}
    options = [word for option, name in names.items() for word in (option, str(out / name))]
    with web_server(tmp_path) as server:
        done = run("analyze", signed(f"{server}/rank0.json"), *options)
        assert done.returncode == 0, done.stderr
        written = [done.stdout, done.stderr, *(path.read_text() for path in out.iterdir())]
        assert json.loads((out / "r.json").read_text())["provenance"]["sources"][0]["path"] == f"{server}/rank0.json"
    assert len(written) == 6
    assert all(SECRET not in text for text in written)


@pytest.mark.slow
def test_secrets_are_not_in_refusals(bucket: Bucket, tmp_path: Path, trace: Path) -> None:
    (tmp_path / "text.json").write_text("hello")
    with web_server(tmp_path) as server:
        wrong = [signed(f"{server}/{name}") for name in ("none.json", "text.json", "folder/", "x.nsys-rep", "no*.json")]
        wrong += [signed(f"{bucket.url}/{name}") for name in ("none.json", "none/", "no*.json")]
        wrong += [signed("http://127.0.0.1:9/x.json"), signed("foo://b/x.json"), signed("s3://Not A Bucket/x")]
        command = [
            "import sys; from diagnose.storage import filesystem; filesystem.FIRST_WAIT_S = 0.001",
            "from diagnose.cli import analyze",
            "for url in sys.argv[1:]:",
            "    try: analyze.command.main([url], standalone_mode=False)",
            "    except Exception as error: print(type(error).__name__, error.format_message())",
        ]
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(command), *wrong], cwd=ROOT, capture_output=True, text=True, check=True
        )
    said = [line for line in done.stdout.splitlines() if line.startswith("ClickException")]
    assert len(said) == len(wrong), done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert done.stderr == ""


def test_a_damaged_answer_shows_nothing_either(bucket: Bucket) -> None:
    seen: list[Request] = []

    def fault(request: Request) -> int:
        seen.append(request)
        return 400

    bucket.proxy.fault = fault
    with pytest.raises(InputError) as refusal:
        diagnose.analyze(signed(f"{bucket.url}/x.json"))
    assert seen
    assert str(refusal.value) == f"Cannot read {bucket.url}/x.json: the storage answers with HTTP 400."


@pytest.mark.parametrize("kind", ["http", "s3", "foo"])
def test_secrets_are_not_in_refusals_of_outputs(kind: str) -> None:
    url = signed(f"{kind}://no-such-bucket-anywhere/out.json")
    with pytest.raises(click.ClickException) as refusal:
        refuse_unwritable([url], [Remote(url)])
    assert SECRET not in str(refusal.value)
    with pytest.raises(click.ClickException) as refusal:
        write(url, "text")
    assert SECRET not in str(refusal.value)


@pytest.mark.slow
def test_a_recording_goes_to_a_url_and_stays_here_if_it_cannot(bucket: Bucket, tmp_path: Path) -> None:
    path = script(tmp_path, STEP + "for _ in range(400): step()\n")
    url = f"{bucket.url}/runs/a"
    done = run("profile", "--out", url, "--warmup", "1", "--steps", "2", path, cwd=tmp_path, **environment())
    assert done.returncode == 0, done.stderr
    assert f"the recording is also in {url}" in done.stderr
    (local,) = (tmp_path / "diagnose-runs").iterdir()
    assert bucket.keys() == sorted(f"runs/a/{one.name}" for one in local.iterdir())
    assert bucket.get("runs/a/manifest.json") == (local / "manifest.json").read_bytes()
    again = run("profile", "--out", url, path, cwd=tmp_path, **environment())
    refused(again, f"{url} is not empty. Choose a new URL.\n")
    bucket.proxy.fault = times(1000, 403, "PUT", ".gz")
    other = f"{bucket.url}/runs/b"
    lost = run(
        "profile", "--no-analyze", "--out", other, "--warmup", "1", "--steps", "2", path, cwd=tmp_path, **environment()
    )
    assert lost.returncode == 2
    assert f"Cannot write {other}: access is denied" in lost.stderr
    assert "The recording is still in diagnose-runs/" in lost.stderr
    assert len(list((tmp_path / "diagnose-runs").iterdir())) == 2
