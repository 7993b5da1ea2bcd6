"""Work on a Dask cluster that runs here: the same results, whoever is killed, and refusals in one sentence."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from diagnose.cli.analyze import command
from diagnose.source import processes
from diagnose.source.base import InputError
from diagnose.source.ranks import TraceFile
from diagnose.source.recording import RankFiles

pytestmark = pytest.mark.slow

distributed = pytest.importorskip("distributed")

SAMPLE = Path(__file__).parent.parent.parent / "sample_traces" / "jobs" / "healthy_tensor"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scheduler with two workers in processes of their own."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as started:
        yield started.scheduler_address


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker starts as fast as a busy machine lets it."""
    monkeypatch.setattr(processes, "WORKERS_S", 600.0)


def files(folder: Path, count: int) -> list[RankFiles]:
    return [RankFiles(TraceFile(folder / f"rank{index}.json", named=False)) for index in range(count)]


def name(one: RankFiles) -> str:
    return one.trace.path.name


def kills_its_first_worker(one: RankFiles) -> str:
    mark = one.trace.path.parent / "killed"
    if name(one) == "rank3.json" and not mark.exists():
        mark.touch()
        os._exit(9)
    return name(one)


def kills_every_worker(one: RankFiles) -> str:
    if name(one) == "rank3.json":
        os._exit(9)
    return name(one)


def names(count: int) -> dict[int, str]:
    return {at: f"rank{at}.json" for at in range(count)}


def test_all_files_are_worked_on(address: str, tmp_path: Path) -> None:
    assert dict(processes.results(name, files(tmp_path, 12), 1, address)) == names(12)


def test_a_worker_that_is_killed_changes_nothing(address: str, tmp_path: Path) -> None:
    assert dict(processes.results(kills_its_first_worker, files(tmp_path, 12), 1, address)) == names(12)
    assert (tmp_path / "killed").exists()


def test_a_file_that_kills_every_worker_costs_that_file_alone(address: str, tmp_path: Path) -> None:
    found = dict(processes.results(kills_every_worker, files(tmp_path, 8), 1, address))
    lost = found.pop(3)
    assert isinstance(lost, InputError)
    assert "rank3.json was killed" in str(lost)
    assert found == {at: one for at, one in names(8).items() if at != 3}


def test_a_cluster_that_has_lost_all_its_workers_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only worker ends with the file that kills it, and nobody starts another."""
    monkeypatch.setattr(processes, "LOOK_S", 0.1)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as started,
        joined(started.scheduler_address, "--no-nanny"),
        distributed.Client(started.scheduler_address) as client,
    ):
        client.wait_for_workers(1)
        monkeypatch.setattr(processes, "WORKERS_S", 0.5)
        with pytest.raises(InputError, match=r"^tcp://\S+ lost all its workers\. Start some: dask worker"):
            dict(processes.results(kills_every_worker, files(tmp_path, 8), 1, started.scheduler_address))


@contextmanager
def joined(address: str, *options: str, **variables: str) -> Iterator[None]:
    words = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", *options]
    worker = subprocess.Popen(words, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait()


def test_workers_of_another_version_are_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "version", lambda: "0.0.1 (00000000)")
    with pytest.raises(InputError, match=r"has a worker with diagnose .*, but this is 0\.0\.1 \(00000000\)\. Install"):
        list(processes.results(name, files(tmp_path, 2), 1, address))


def test_workers_without_this_program_are_refused(tmp_path: Path) -> None:
    """A worker is started whose Python finds Dask, but not diagnose."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'diagnose' or name.startswith('diagnose.'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as started,
        joined(started.scheduler_address, PYTHONPATH=str(tmp_path)),
        pytest.raises(InputError, match=r"1 of 1 workers of .* lack diagnose"),
    ):
        list(processes.results(name, files(tmp_path, 2), 1, started.scheduler_address))


@pytest.mark.parametrize("nowhere", ["tcp://127.0.0.1:9", "nonsense://?"])
def test_a_scheduler_that_is_not_there_is_one_sentence(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CONNECT_S", 0.5)
    with pytest.raises(InputError, match=rf"no Dask scheduler at {re.escape(nowhere)}\. "):
        list(processes.results(name, files(Path(), 2), 1, nowhere))


def test_a_scheduler_without_workers_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "WORKERS_S", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0", processes=False) as started,
        pytest.raises(InputError, match="No worker has joined"),
    ):
        list(processes.results(name, files(tmp_path, 2), 1, started.scheduler_address))


def test_the_diagnosis_is_the_same_to_the_byte(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*options: str) -> str:
        done = CliRunner().invoke(command, [str(SAMPLE), "--format", "json", *options])
        assert done.exit_code == 0, done.output
        return done.output

    alone = said("--jobs", "1")
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    assert said("--jobs", "2") == alone
    assert said("--cluster", address) == alone


def test_relative_paths_are_found_by_workers_that_run_elsewhere(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLE.parent)
    alone, elsewhere = (
        CliRunner().invoke(command, [SAMPLE.name, "--format", "json", *options])
        for options in (["--jobs", "1"], ["--cluster", address])
    )
    assert elsewhere.exit_code == 0
    assert elsewhere.output == alone.output


def test_ctrl_c_takes_back_what_has_not_been_done(address: str, tmp_path: Path) -> None:
    trace = (SAMPLE / "rank0.trace.json.gz").read_bytes()
    for rank in range(200):
        (tmp_path / f"rank{rank}.trace.json.gz").write_bytes(trace)
    words = [sys.executable, "-m", "diagnose", "analyze", "-q", str(tmp_path), "--cluster", address]
    with distributed.Client(address) as client, subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as run:

        def handed_over() -> int:
            return int(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))

        until(lambda: handed_over() > 0)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=600)
        assert (run.returncode, said.strip()) == (130, "Interrupted.")
        until(lambda: handed_over() == 0)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
