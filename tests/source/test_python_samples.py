"""Lines from samples of Python's stacks in Nsight Systems' exports."""

import base64
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import sites_of
from diagnose.source import nsight, ranks
from diagnose.trace import nsys_files
from diagnose.trace.frames import Site
from diagnose.trace.model import Rank
from tests.capture.test_nsys import program
from tests.source.nsight import PROCESS, Export, pid, read

DOMAIN, SCHEMA = 3, 4_294_967_299
NO_BLOBS = {"NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "domainId")}
SAMPLER = 777  # The thread that takes the samples.

Frame = tuple[str, str, int]
STACK: list[Frame] = [("forward", "/home/me/run/net.py", 12), ("&lt;module&gt;", "/home/me/run/train.py", 30)]


def payload(made: Export, stack: Sequence[Frame], *, newer: bool = False, junk: int = 0) -> bytes:
    """A stack, the innermost frame first, in the layout of 2024.2 or of later ones; `junk` fills gaps."""
    counted = (junk, len(stack)) if newer else (len(stack), junk)
    frames = [struct.pack("<QQII", made.string(name), made.string(file), line, junk) for name, file, line in stack]
    return struct.pack("<4I", 1, 1, *counted) + b"".join(frames)


def blob(values: bytes) -> bytes:
    return struct.pack("<4Q", DOMAIN, SCHEMA, len(values), 32 + len(values)) + values


def sample(made: Export, at: int, value: bytes, process: int = PROCESS, domain: int = DOMAIN) -> Export:
    thread = pid(process) | SAMPLER
    return made.range(None, at, None, eventType=34, domainId=domain, globalTid=thread, binaryData=value)


def trained(process: int = PROCESS, domain: int = DOMAIN, name: str = "Python Backtrace") -> Export:
    """A step of 1 ms with an op from 0.2 to 0.8 ms, and the domain in which samples are marks."""
    made = Export().range(name, 0, None, eventType=75, domainId=domain, process=process)
    made.range("ProfilerStep#1", 1_000_000, 2_000_000, process=process)
    return made.range("aten::mm, seq = 1", 1_200_000, 1_800_000, process=process)


def site(rank: Rank) -> Site | None:
    ids = rank.spans.index[rank.spans["name"] == "aten::mm"].to_numpy()
    (found,) = sites_of(Facts(rank), ids)
    return found


@pytest.mark.parametrize("newer", [False, True])
def test_the_innermost_frame_of_the_users_own_code_is_the_line(newer: bool, tmp_path: Path) -> None:
    made = trained()
    torch = ("linear", "/env/lib/python3.12/site-packages/torch/nn/functional.py", 5)
    value = payload(made, [torch, *STACK], newer=newer, junk=0xDEADBEEF)
    rank = read(sample(made, 1_500_000, blob(value)), tmp_path)
    assert site(rank) == Site("net.py", 12, "forward")  # Without the folder that all of them share.
    assert "samples" in rank.provenance.recorded
    assert "stacks" not in rank.provenance.recorded  # A garbage collection is in no sample.
    assert rank.provenance.knows("stacks")
    said = {note.what for note in rank.integrity}
    assert "Source lines are known from samples." in said
    assert "Call stacks were not recorded." not in said


def test_files_of_several_folders_keep_what_tells_them_apart(tmp_path: Path) -> None:
    made = trained()
    made.range("aten::add", 1_900_000, 1_950_000)
    other = [("step", "/home/me/lib/optim.py", 4), STACK[1]]
    sample(sample(made, 1_500_000, blob(payload(made, STACK))), 1_910_000, blob(payload(made, other)))
    rank = read(made, tmp_path)
    assert [*rank.lines["name"]] == ["run/net.py(12): forward", "lib/optim.py(4): step"]


@pytest.mark.parametrize(
    "stack",
    [
        [("work", "/home/me/run/net.py", 3), ("_bootstrap", "/usr/lib/python3.12/threading.py", 1012)],
        [("work", "/home/me/run/net.py", 3)],
        [("&lt;module&gt;", "/usr/lib/python3.12/json/decoder.py", 9)],
        [],
    ],
    ids=["another thread", "a thread of C++", "none of the user's", "empty"],
)
def test_stacks_that_tell_nothing_of_the_main_thread(stack: list[Frame], tmp_path: Path) -> None:
    made = trained()
    rank = read(sample(made, 1_500_000, blob(payload(made, stack))), tmp_path)
    assert site(rank) is None
    assert "Call stacks were not recorded." in {note.what for note in rank.integrity}


def test_a_module_that_is_run_by_its_name(tmp_path: Path) -> None:
    made = trained()
    stack = [*STACK, ("_run_code", "&lt;frozen runpy&gt;", 88), ("_run_module_as_main", "&lt;frozen runpy&gt;", 198)]
    assert site(read(sample(made, 1_500_000, blob(payload(made, stack))), tmp_path)) == Site("net.py", 12, "forward")


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"x" * 47, b"x" * 48, b"\xff" * 48 + b"\xff" * 24),
        blob(struct.pack("<4I", 1, 1, 5, 5) + b"\xff" * 24),  # Says five frames, and holds one.
        blob(struct.pack("<4I", 1, 1, 1, 1) + b"\xff" * 24),  # Ids of no text.
        blob(struct.pack("<4I", 1, 1, 1 << 20, 0) + b"\0" * (24 << 20)),  # A deeper stack than there is.
        *("text", 7),
    ],
    ids=["null", "empty", "short", "no frame", "noise", "another count", "no texts", "deep", "text", "number"],
)
def test_payloads_that_are_no_samples(value: object, tmp_path: Path) -> None:
    made = trained()
    made.range(None, 1_500_000, None, eventType=34, domainId=DOMAIN, globalTid=pid() | SAMPLER, binaryData=value)
    assert not len(read(made, tmp_path).lines)


def test_marks_of_other_domains_and_processes_are_no_samples(tmp_path: Path) -> None:
    made = trained()
    sample(made, 1_500_000, blob(payload(made, STACK)), domain=4)
    sample(made, 1_500_000, blob(payload(made, STACK)), process=200)
    made.range("Python Backtrace", 0, None, eventType=75, domainId=4, process=200)
    made.kernel("k", 0, 10).kernel("k", 0, 10, process=200, deviceId=1)
    path = made.write(tmp_path / "report.sqlite")
    assert not len(ranks.read(path, pid()).lines)


def test_times_are_moved_as_those_of_the_ranges(tmp_path: Path) -> None:
    """A recording may begin before its zero."""
    made = Export().range("Python Backtrace", 0, None, eventType=75, domainId=DOMAIN)
    made.range("aten::add", -5_000_000, -4_000_000).range("aten::mm", -1_000_000, 1_000_000)
    sample(made, 500_000, blob(payload(made, STACK)))
    assert site(read(made, tmp_path)) == Site("net.py", 12, "forward")


def event(values: bytes, at: int) -> str:
    data = base64.b64encode(values).decode()
    inner = {"Type": 34, "Timestamp": str(at), "Payload": {"BinaryData": [{"SchemaId": str(SCHEMA), "Data": data}]}}
    return json.dumps({"Type": 34, "NvtxEvent": {**inner, "GlobalTid": str(pid() | SAMPLER), "DomainId": str(DOMAIN)}})


TOOL = """
for one in "$@"; do case $one in --output=*) target="${one#--output=}";; --type=*) type="${one#--type=}";; esac; done
[ "$2" = --help ] && exit 0
cp "{folder}/report.$type" "$target"
"""


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
def test_an_nsys_without_blobs_tells_them_as_json(tmp_path: Path) -> None:
    made = trained()
    value = payload(made, STACK)
    for at in (1_500_000, 1_600_000):
        sample(made, at, b"")
    made.write(tmp_path / "report.sqlite", NO_BLOBS)
    broken = [event(value, 1_600_000)[:-9], '{"BinaryData": 1}', '{"NvtxEvent": {"Payload": {"BinaryData": []}}}', "[]"]
    unknown = event(value, 1_700_000)
    (tmp_path / "report.json").write_text("\n".join([*broken, unknown, event(value, 1_500_000)]))
    report, target = tmp_path / "run.nsys-rep", tmp_path / "out" / "run.sqlite"
    report.write_bytes(b"a report")
    target.parent.mkdir()
    assert nsys_files.export(program(tmp_path, TOOL.replace("{folder}", str(tmp_path))), report, target) == ""
    assert site(ranks.read(target)) == Site("net.py", 12, "forward")
    assert [path.name for path in target.parent.iterdir()] == ["run.sqlite"]
    with sqlite3.connect(target) as db:
        blobs = [one for (one,) in db.execute("SELECT binaryData FROM NVTX_EVENTS WHERE eventType = 34 ORDER BY start")]
    db.close()
    assert blobs == [blob(value), None]


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
@pytest.mark.parametrize("size", [8, nsys_files.MOST_JSON + 1], ids=["no JSON", "a large report"])
def test_without_payloads_only_lines_are_not_known(size: int, tmp_path: Path) -> None:
    made = sample(trained(), 1_500_000, b"")
    made.write(tmp_path / "report.sqlite", NO_BLOBS)
    report = tmp_path / "run.nsys-rep"
    with report.open("wb") as file:
        file.truncate(size)
    tool = program(tmp_path, TOOL.replace("{folder}", str(tmp_path)))
    assert nsys_files.export(tool, report, tmp_path / "run.sqlite") == ""
    rank = ranks.read(tmp_path / "run.sqlite")
    assert (len(rank.ops), len(rank.lines)) == (1, 0)


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
def test_no_room_for_payloads_spoils_no_export(tmp_path: Path) -> None:
    made = sample(trained(), 1_500_000, b"")
    made.write(tmp_path / "report.sqlite", NO_BLOBS)
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "run.payloads.json").mkdir()  # No file can be written in its place.
    (tmp_path / "run.nsys-rep").write_bytes(b"a report")
    tool = program(tmp_path, TOOL.replace("{folder}", str(tmp_path)))
    assert nsys_files.export(tool, tmp_path / "run.nsys-rep", tmp_path / "run.sqlite") == ""
    assert len(ranks.read(tmp_path / "run.sqlite").ops) == 1


REAL = """
import ctypes, sys, time
from pathlib import Path
places = [Path(folder) / "nvidia/nvtx/lib/libnvToolsExt.so.1" for folder in sys.path]
nvtx = ctypes.CDLL(str(next(place for place in places if place.is_file())))

def op(name, work):
    nvtx.nvtxRangePushA(name.encode())
    work()
    nvtx.nvtxRangePop()

def wait():
    time.sleep(0.02)

def forward():
    op("aten::mm", lambda: time.sleep(0.02))
    wait()
    op("aten::relu",
       lambda: time.sleep(0.02))

for number in range(10):
    nvtx.nvtxRangePushA(f"ProfilerStep#{number}".encode())
    forward()
    nvtx.nvtxRangePop()
"""


def test_lines_that_a_real_nsys_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("records with Nsight Systems: there is no nsys on PATH")
    if not any((Path(folder) / "nvidia/nvtx/lib/libnvToolsExt.so.1").is_file() for folder in sys.path):
        pytest.skip("records with Nsight Systems: needs nvidia-nvtx-cu12")
    if sys.version_info >= (3, 13):
        pytest.skip("nsys 2023.4 samples Python up to 3.12")
    (tmp_path / "train.py").write_text(REAL)
    line = ["nsys", "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--python-sampling=true"]
    subprocess.run(
        [*line, "--output=run", sys.executable, "train.py"], cwd=tmp_path, check=True, capture_output=True, timeout=120
    )
    rank = ranks.read(nsight.exported(tmp_path / "run.nsys-rep"))
    source = REAL.splitlines()
    seen = Counter[tuple[str, str]]()
    for start, dur, name in zip(rank.lines["start_ns"], rank.lines["dur_ns"], rank.lines["name"], strict=True):
        within = rank.spans[(rank.spans["start_ns"] == start) & (rank.spans["kind"] == "op")]["name"].tolist()
        seen[(within or ["wait"])[0], str(name)] += dur > 6_000_000
    sleeps = [k for k, text in enumerate(source, 1) if "sleep(0.02)" in text]
    # Of ten times each: what else stands still by chance does not do so in most.
    assert {one for one, count in seen.items() if count > 5} == {
        ("wait", f"train.py({sleeps[0]}): wait"),
        ("aten::mm", f"train.py({sleeps[1]}): <lambda>"),
        ("aten::relu", f"train.py({sleeps[2]}): <lambda>"),
    }
