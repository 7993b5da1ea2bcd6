"""`diagnose profile --tracer nsys`: with a real Nsight Systems where there is one, on a machine without a GPU."""

import fcntl
import math
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import diagnose
from diagnose.capture import nsys
from diagnose.capture.agent import nsys as agent
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.plan import WORK, Part
from diagnose.capture.doctor import CannotRecord
from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import sites_of
from diagnose.source import nvtx, ranks, recording
from diagnose.trace.frames import Site
from diagnose.trace.manifest import RankManifest
from tests.capture.scripts import STEP, command, manifest_of, profile, script, started, wait_for
from tests.drawing import Drawing
from tests.source.nsight import Export, pid, synthetic

pytestmark = pytest.mark.slow

SLOW = STEP + "for i in range(int(sys.argv[1])):\n    step()\n    time.sleep(0.004)\nprint('whole')\n"


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nsight Systems, and an NVTX for a torch that has none. One test at a time: two may stop each other's service."""
    pytest.importorskip("torch")
    if shutil.which("nsys") is None:
        pytest.skip("records with Nsight Systems: there is no nsys on PATH")
    if not any((Path(folder) / "nvidia/nvtx/lib/libnvToolsExt.so.1").is_file() for folder in sys.path):
        pytest.skip("records with Nsight Systems: torch for the CPU needs nvidia-nvtx-cu12")
    with (tmp_path_factory.getbasetemp().parent / "nsys.lock").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        yield


def texts(path: Path) -> set[str]:
    with sqlite3.connect(path) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        found = {str(value) for (value,) in db.execute("SELECT value FROM StringIds")}
    db.close()
    return found


@pytest.mark.usefixtures("real")
def test_a_run_is_recorded_and_compared_to_the_last_nanosecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVATE_KEY", "never-to-be-passed-on")
    done = profile(tmp_path, "--tracer", "nsys", "--steps", 4, "train.py", 100_000, text=SLOW)
    assert (done.code, "whole" in done.stdout) == (0, False), done.stderr
    assert done.files == [
        *("manifest.json", "rank0.graph.json.gz", "rank0.trace.sqlite", "rank0.values.json.gz", "trace.nsys-rep")
    ]
    assert done.manifest.complete
    assert (done.rank.trace, done.rank.detail, done.rank.ended) == ("rank0.trace.sqlite", None, "recorded")
    # One more than asked for, in whole cycles: steps of a busy machine may seem to have one.
    count = done.rank.cycle * math.ceil(4 / done.rank.cycle) + 1
    assert len(done.rank.timing.wall_ns) == count
    # A step of its own lies between them, without any profiler.
    assert done.rank.timing.first_step > done.rank.unprofiled.first_step + len(done.rank.unprofiled.wall_ns)
    assert "are for Nsight Systems and contain the environment of all processes here\n" in done.stderr
    assert b"never-to-be-passed-on" not in (done.folder / "rank0.trace.sqlite").read_bytes()

    (files,) = recording.find([done.folder]).ranks
    rank = recording.read(files)
    numbers = [step.number for step in rank.steps]
    assert numbers == list(range(done.rank.timing.first_step, done.rank.timing.first_step + count))
    assert min(step.end_ns - step.start_ns for step in rank.steps) >= 4_000_000  # Each sleeps that long.
    asleep = rank.spans[(rank.spans["kind"] == "system") & (rank.spans["name"] == "clock_nanosleep")]
    assert (asleep["dur_ns"] >= 4_000_000).sum() >= 4
    assert nvtx.CAPTURE not in set(rank.spans["name"])

    (tmp_path / "after").mkdir()
    script(tmp_path / "after", SLOW.replace("0.004", "0.104"))
    assert profile(tmp_path / "after", "--tracer", "nsys", "--steps", 4, "train.py", 100_000).code == 0
    found = diagnose.compare(tmp_path / "out", tmp_path / "after" / "out")
    assert sum(part.ns for part in found.parts) == found.after_ns - found.before_ns
    assert (found.verdict, found.incomparable) == ("slower", ())
    # Each step of the second sleeps 100 ms longer.
    waited = sum(part.ns for part in found.parts if part.of in ("blocked", "python"))
    assert waited == pytest.approx(100e6, rel=0.5)


LIKE_EMIT_NVTX = """
from torch.utils._python_dispatch import TorchDispatchMode
knowing = [one for one in [*sys.modules.values()] if hasattr(one, "tells_ops")]
agent = next(one for one in knowing if one.__name__.endswith(".nsys"))

class Ranges(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        nvtx.push("aten::" + func.__name__.partition(".")[0] + ", seq = 1")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            nvtx.pop()

nvtx, agent._ops_as_ranges = agent._Nvtx(), lambda: Ranges().__enter__()
for one in knowing:
    one.tells_ops = one.uses_gpu = lambda: True

def wait():
    time.sleep(0.004)

for i in range(100_000):
    step()
    torch.relu(torch.ones(4))
    wait()
    torch.ones(4)
"""
"""What emit_nvtx would do, which a torch for the CPU does not have."""


@pytest.mark.exhaustive
@pytest.mark.usefixtures("real")
def test_torch_records_stacks_and_shapes_in_other_steps(tmp_path: Path) -> None:
    done = profile(tmp_path, "--tracer", "nsys", "--memory", "--steps", 4, "train.py", text=STEP + LIKE_EMIT_NVTX)
    assert done.code == 0, done.stderr
    assert done.files == [
        *("device.nsys-rep", "manifest.json", "rank0.detail.json.gz", "rank0.device.sqlite", "rank0.graph.json.gz"),
        *("rank0.trace.sqlite", "rank0.values.json.gz", "trace.nsys-rep"),
    ]
    assert len(done.rank.attribution.wall_ns) == 3
    count = done.rank.cycle * math.ceil(4 / done.rank.cycle) + 1  # As above.
    for timed in (done.rank.device_timing, done.rank.timing):
        assert len(timed.wall_ns) == count + (timed.settling or 0)  # It goes on while its recorder becomes faster.
    without = ranks.read(done.folder / "rank0.device.sqlite")
    assert (len(without.ops), len(without.steps)) == (0, len(done.rank.device_timing.wall_ns))
    (files,) = recording.find([done.folder]).ranks
    rank = recording.read(files)
    assert (rank.provenance.format, rank.provenance.joined) == ("nsight", {"shapes", "stacks"})
    assert len(rank.memory)
    names = rank.spans["name"].to_numpy()[rank.ops.index]
    assert set(rank.ops["shapes"][names == "aten::addmm"]) == {
        "[[128], [64, 64], [64, 128], [], []]",
        "[[10], [64, 128], [128, 10], [], []]",
    }
    facts = Facts(rank)
    sites = sites_of(facts, rank.ops.index.to_numpy()[names == "aten::addmm"])
    assert {site.function for site in sites if site} == {"step"}
    asleep = np.flatnonzero((rank.spans["name"] == "clock_nanosleep") & (rank.spans["dur_ns"] >= 4_000_000))
    # How many of them a sample met, if any, is a matter of what else the machine does.
    assert {site.function for site in sites_of(facts, asleep) if site} <= {"wait"}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("real")
def test_each_rank_gets_a_file_of_its_own(tmp_path: Path) -> None:
    source = STEP.replace(
        "import torch\n", "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    )
    source += """
wrapped = torch.nn.parallel.DistributedDataParallel(model)
for i in range(100_000):
    optimizer.zero_grad()
    wrapped(torch.randn(64, 64)).sum().backward()
    optimizer.step()
    if dist.get_rank():
        time.sleep(0.004)
"""
    script(tmp_path, source)
    run = ["--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = profile(tmp_path, "--tracer", "nsys", "--steps", 4, *run)
    assert done.code == 0, done.stderr
    of_ranks = [f"rank{rank}.{kind}" for rank in (0, 1) for kind in ("graph.json.gz", "trace.sqlite", "values.json.gz")]
    assert done.files == ["manifest.json", *of_ranks, "trace.nsys-rep"]
    sleeps, numbers = [], []
    for files in recording.find([done.folder]).ranks:
        rank = recording.read(files)
        assert [one[1] & 0xFFFFFF for one in asked(files.trace.path)] == [files.context.rank.pid]
        sleeps.append(int(((rank.spans["name"] == "clock_nanosleep") & (rank.spans["step"] >= 0)).sum()))
        numbers.append([step.number for step in rank.steps])
    assert sleeps == [0, len(numbers[1])]
    assert len(numbers[0]) == 5
    assert numbers[0][1:] == numbers[1][-4:]  # nsys may come a little later to the second process.


def asked(path: Path) -> list[tuple[int, int]]:
    with sqlite3.connect(path) as db:
        found = db.execute('SELECT COUNT(*), "globalTid" >> 24 FROM NVTX_EVENTS GROUP BY 2').fetchall()
    db.close()
    return found


@pytest.mark.usefixtures("real")
def test_a_run_that_ends_too_early_and_one_that_fails(tmp_path: Path) -> None:
    done = profile(tmp_path, "--tracer", "nsys", "train.py", 5, text=SLOW + "sys.exit(7)\n")
    assert (done.code, done.stderr) == (7, "")  # What a script that fails says of itself stands alone.
    assert done.files == ["manifest.json"]


@pytest.mark.usefixtures("real")
def test_an_interrupt_keeps_what_was_recorded(tmp_path: Path) -> None:
    script(tmp_path, SLOW.replace("    step()\n", "    step()\n    open('at', 'a').write('.')\n"))
    words = command("-o", tmp_path / "out", "--no-analyze", "--tracer", "nsys", "--steps", 1000, "train.py", 100_000)
    child = started(tmp_path, *words)
    opened = f"*/{agent.OPENED}timing.post"
    wait_for(lambda: child.poll() is not None or list((tmp_path / "out" / WORK).glob(opened)), 600)
    assert child.poll() is None
    made = (tmp_path / "at").stat().st_size
    wait_for(lambda: (tmp_path / "at").stat().st_size > made + 10)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=600)
    assert child.returncode == 130, stderr
    assert "See the recording so far with: diagnose analyze" in stderr
    assert [(rank.trace, rank.ended) for rank in manifest_of(tmp_path / "out").ranks] == [
        ("rank0.trace.sqlite", "interrupted")
    ]
    assert len(ranks.read(tmp_path / "out" / "rank0.trace.sqlite").steps) >= 2


def test_reader_and_agent_mean_the_same_range() -> None:
    assert nvtx.CAPTURE == agent.CAPTURE


@pytest.mark.parametrize(
    ("given", "words", "said"),
    [
        ({"PATH": "/nowhere"}, [], "nsys is not on PATH. Install NVIDIA's package nsight-systems-cli"),
        ({agent.SESSION: "1"}, [], "diagnose itself runs under nsys. Start it without nsys, or without --tracer."),
        ({"CUDA_INJECTION64_PATH": "x"}, [], "Another profiler is loaded into CUDA programs: unset CUDA_INJECTION64"),
    ],
)
def test_what_the_user_can_mend_is_said_before_anything_is_made(
    given: dict[str, str], words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    done = profile(tmp_path, "--tracer", "nsys", *words, "train.py", text=SLOW)
    assert (done.code, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
    assert not done.folder.exists()


def program(folder: Path, text: str) -> str:
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
def test_an_nsys_that_is_too_old_or_broken(tmp_path: Path) -> None:
    with pytest.raises(CannotRecord, match="is too old to record twice in a run"):
        nsys.command(program(tmp_path, "echo '--capture-range-end= stop, none'"), tmp_path, ["train"], print)
    with pytest.raises(CannotRecord, match="does not run: "):
        nsys.command(str(tmp_path / "not-there"), tmp_path, ["train"], print)


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
def test_the_line_that_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, said = program(tmp_path, "echo \"'repeat[:N]'\""), list[str]()
    monkeypatch.setattr(nsys.doctor, "check_sampling", lambda root: iter(()))
    line = nsys.command(tool, tmp_path / "90%", ["python", "-u", "train.py"], said.append)
    assert line[:2] == [tool, "profile"]
    assert line[-3:] == ["python", "-u", "train.py"]
    assert "--trace=cuda,nvtx,osrt,cudnn,cublas" in line
    assert "--cpuctxsw=process-tree" in line
    assert f"--output={tmp_path}/90%%/nsys" in line
    assert said == []
    check = nsys.doctor.Check("CPU sampling", "limited", "not for nsys: the level is 4", "As root: lower it.")
    monkeypatch.setattr(nsys.doctor, "check_sampling", lambda root: iter([check]))
    assert "--cpuctxsw=none" in nsys.command(tool, tmp_path, ["python"], said.append)
    (sentence,) = said
    assert sentence == (
        "CPU scheduling of threads cannot be recorded: not for nsys: the level is 4. As root: lower it."
    )


TEXT = "4 steps of 100\ncpu aten::mm 21-22 | sync 30-60\ngpu sgemm 21.6-50 @21.5"


def two_processes() -> Export:
    made = synthetic(TEXT)
    for at in (10, 120):
        made.call("cudaLaunchKernel_v7000", at, at + 5, 1, process=200).kernel("other", at + 3, at + 9, 1, process=200)
    made.range("secret of another process", 5, 400, process=200)
    made.add("StringIds", id=900, value="TOKEN=secret").add("ThreadNames", nameId=900, globalTid=pid(200) | 200)
    made.add("DIAGNOSTIC_EVENT", severity=1, text="started /home/me").add("DIAGNOSTIC_EVENT", severity=3, text="Lost.")
    return made


def test_a_file_of_one_process_reads_as_its_part_of_the_whole(tmp_path: Path) -> None:
    whole = two_processes().write(tmp_path / "whole.sqlite")
    assert nsys._cut(whole, 100, tmp_path / "rank0.trace.sqlite")
    part, cut = ranks.read(whole, pid(100)), ranks.read(tmp_path / "rank0.trace.sqlite")
    for table in ("spans", "kernels", "ops", "links", "tracks", "syncs"):
        assert getattr(cut, table).equals(getattr(part, table)), table
    assert cut.steps == part.steps
    assert cut.provenance.devices == part.provenance.devices
    assert any("Lost." in note.what for note in cut.integrity)
    raw = (tmp_path / "rank0.trace.sqlite").read_bytes()
    assert [one for one in (b"secret", b"/home/me", b"other") if one in raw] == []
    assert not nsys._cut(whole, 7, tmp_path / "rank1.trace.sqlite")
    assert not (tmp_path / "rank1.trace.sqlite").exists()


def collected(tmp_path: Path, tool: str, reports: list[str], number: int) -> list[str]:
    part = Part(tmp_path)
    part.work.mkdir(parents=True)
    for name in reports:
        (tmp_path / name).write_text(name)
    Board(part.work).post(f"{agent.POSTED}timing", number=number)
    return list(nsys.collect(part, tool, [RankManifest(rank=0, pid=100, trace="rank0.trace.sqlite")]))


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
def test_reports_are_told_apart_by_number(tmp_path: Path) -> None:
    """The recording was interrupted and made again: the first report is of no use."""
    export = synthetic(TEXT).write(tmp_path / "export.sqlite")
    tool = program(
        tmp_path, f'for one in "$@"; do case $one in --output=*) cp {export} "${{one#--output=}}";; esac; done'
    )
    assert collected(tmp_path, tool, ["nsys.1.nsys-rep", "nsys.2.nsys-rep"], 2) == []
    kept = {path.name: path.read_text() for path in tmp_path.glob("*.nsys-rep")}
    assert kept == {"trace.nsys-rep": "nsys.2.nsys-rep"}
    assert len(ranks.read(tmp_path / "rank0.trace.sqlite").steps) == 4
    assert list((tmp_path / WORK).glob("*/*.sqlite")) == []


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
@pytest.mark.parametrize(
    ("does", "reports", "said"),
    [
        ("exit 3", ["nsys.nsys-rep"], "The report of Nsight Systems could not be exported: nsys ended with 3."),
        ("echo bad >&2; exit 1", ["nsys.nsys-rep"], "The report of Nsight Systems could not be exported: bad."),
        ("exit 0", [], "Nsight Systems left no report."),
        (
            "exit 0",
            ["nsys.qdstrm"],
            "Nsight Systems left no report: it could not convert nsys.qdstrm, as parts of it are not installed.",
        ),
    ],
)
def test_what_went_wrong_is_said(does: str, reports: list[str], said: str, tmp_path: Path) -> None:
    assert collected(tmp_path, program(tmp_path, does), reports, 1) == [said]
    assert not (tmp_path / "rank0.trace.sqlite").exists()
    assert len(list(tmp_path.glob("trace.nsys-rep"))) == reports.count("nsys.nsys-rep")


def test_what_torch_tells_besides_is_joined(tmp_path: Path) -> None:
    """Its recording has ops, stacks, shapes and memory, and nothing of the device."""
    synthetic(TEXT).write(tmp_path / "rank0.trace.sqlite")
    rich = Drawing()
    for step in range(4):
        rich.step(step, 100 * step, 100 * step + 100)
        rich.op(
            "aten::mm", 100 * step + 21, 100 * step + 22, **{"Input Dims": [[8, 16], [16, 4]], "Input type": ["float"]}
        )
        rich.frame("net.py(7): forward", 100 * step + 20, 100 * step + 70)
    rich.write(tmp_path / "rank0.detail.json")
    (files,) = recording.find([tmp_path]).ranks
    assert files.beside["detail"] == tmp_path / "rank0.detail.json"
    rank = recording.read(files)
    assert set(rank.ops["shapes"]) == {"[[8, 16], [16, 4]]"}
    calls = rank.spans.index[rank.spans["name"].isin(["cudaLaunchKernel", "cudaDeviceSynchronize"])].to_numpy()
    assert set(sites_of(Facts(rank), calls)) == {Site("net.py", 7, "forward")}
