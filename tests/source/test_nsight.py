"""Nsight Systems' exports: real ones against SQL by hand, synthetic ones against torch.profiler's of the same."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import breakdown, launches
from diagnose.facts.core.device import device_work
from diagnose.facts.core.idle import idle
from diagnose.facts.core.steps import steps
from diagnose.facts.device.transfers import copies
from diagnose.facts.host.waits import syncs
from diagnose.source import ranks
from diagnose.source.base import InputError
from diagnose.synthetic.reading import facts_of
from tests.source.nsight import TABLES, Export, pid, read, synthetic

FILES = (
    "h100_2gpu_1s.sqlite",
    "healthy_1pct.sqlite",
    "mock.sqlite",
    "nsight-2025.5.2.sqlite",
    "saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
)
KINDS = {"KERNEL": "kernel", "MEMCPY": "memcpy", "MEMSET": "memset", "SYNCHRONIZATION": "sync"}


def asked(path: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as db:
        db.text_factory = bytes
        found = db.execute(sql, values).fetchall()
    db.close()
    return found


def has(path: Path, table: str, column: str = "start") -> bool:
    return any(row[1] == column.encode() for row in asked(path, f'PRAGMA table_info("{table}")'))


def mask(process: int | None, column: str) -> str:
    return "1" if process is None else f'("{column}" & ~16777215) = {process}'


@pytest.mark.parametrize("name", FILES)
def test_what_is_read_of_real_files_is_what_sql_says(corpus: Path, name: str) -> None:
    path = corpus / "nsight" / name
    files = ranks.find([path])
    for file in files:
        rank = ranks.read(path, file.part)
        process = file.part if has(path, "CUPTI_ACTIVITY_KIND_KERNEL", "globalPid") else None
        counts = rank.spans["kind"].value_counts()
        for table, kind in KINDS.items():
            full = f"CUPTI_ACTIVITY_KIND_{table}"
            sql = f'SELECT COUNT(*), SUM("end" - "start"), MIN(start) FROM "{full}" WHERE {mask(process, "globalPid")}'
            count, total, _ = asked(path, sql)[0] if has(path, full) else (0, 0, 0)
            mine = rank.spans["kind"] == kind
            graphs = rank.spans["name"].astype(str).str.startswith("CUDA graph ")
            assert (counts[kind] - int((mine & graphs).sum()), int(rank.spans["dur_ns"][mine & ~graphs].sum())) == (
                count,
                total or 0,
            ), table
        calls = asked(path, f"SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {mask(process, 'globalTid')}")
        assert counts["runtime"] + counts["driver"] == calls[0][0]
        if has(path, "NVTX_EVENTS"):
            closed = f'eventType IN (59, 60) AND "end" >= start AND {mask(process, "globalTid")}'
            sql = f"SELECT COUNT(*) FROM NVTX_EVENTS WHERE {closed}"
            ranges = counts["op"] + counts["annotation"] + counts["collective"] + counts["loader"]
            assert ranges == asked(path, sql)[0][0]


def test_two_processes_of_one_file_are_ranks_and_their_ids_are_not_mixed(corpus: Path) -> None:
    path = corpus / "nsight" / "h100_2gpu_1s.sqlite"
    files = ranks.find([path])
    assert len(files) == 2
    for number, file in enumerate(files):
        rank = ranks.read(path, file.part)
        assert (rank.index, rank.provenance.world_size, rank.provenance.format) == (number, 2, "nsight")
        pairs = asked(
            path,
            "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE globalPid = ? AND EXISTS (SELECT 1 FROM"
            " CUPTI_ACTIVITY_KIND_RUNTIME r WHERE r.correlationId = k.correlationId"
            " AND (r.globalTid & ~16777215) = k.globalPid)",
            file.part,
        )[0][0]
        kernels = rank.spans.index[rank.spans["kind"] == "kernel"]
        launches_ = rank.links[rank.links["kind"] == "launch"]
        assert int(launches_["to_id"].isin(kernels).sum()) == pairs


def test_copies_of_real_files_by_direction_and_memory(corpus: Path) -> None:
    path = corpus / "nsight" / "h100_2gpu_1s.sqlite"
    process = ranks.find([path])[0].part
    rank = ranks.read(path, process)
    sql = "SELECT SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE globalPid = ? AND copyKind = ? AND srcKind = ?"
    for direction, memory, kind, source in (("HtoD", "pinned", 1, 1), ("HtoD", "pageable", 1, 0), ("DtoD", None, 8, 2)):
        mine = rank.copies[rank.copies["direction"] == direction]
        mine = mine if memory is None else mine[mine["host_memory"] == memory]
        assert int(mine["bytes"].sum()) == asked(path, sql, process, kind, source)[0][0]


def test_the_gpu_of_real_files(corpus: Path) -> None:
    (device,) = ranks.read(corpus / "nsight" / "saxpy-mpi-cuda_nsys_perlmutter0.sqlite").provenance.devices
    assert (device.name, device.multiprocessors, device.compute_capability) == ("NVIDIA A100-SXM4-40GB", 108, (8, 0))
    assert (device.max_threads_per_multiprocessor, device.warp_size) == (2048, 32)


BUSY = """
    4 steps of 100
    cpu     load 0-20 | aten::mm 21-22 shapes=[[8,16],[16,4]] | sync 30-60 | aten::add 62-63 sequence=4
    cpu     record 64-64.1 | wait 65-65.1 stream=20
    gpu     sgemm 21.6-50 @21.5 | pointwise 62.6-80 @62.5 | h2d 81-85 @66-67 pinned 64MB
    gpu 20  allreduce 82-90 @68 | d2h 91-92 @70-71 pageable 4KB
"""


@pytest.mark.parametrize(
    "text",
    [
        BUSY,
        "3 steps of 10\ncpu aten::mm 0-1 | device_sync 2-9\ngpu sgemm 0.5-8 @0.2 x1",
        "3 steps of 10\ncpu optimizer 8-9 | zero_grad 0-1\ngpu foreach 8.6-9.5 @8.5 | memset 1-2 @0.5",
        "cpu aten::mm 0-1\ngpu sgemm 0.5-8 @0.2",
    ],
)
def test_the_same_recorded_both_ways_gives_the_same_facts(text: str, tmp_path: Path) -> None:
    kineto, nsight = facts_of(text), Facts(read(synthetic(text), tmp_path))
    for fact in (breakdown, idle, launches, copies, syncs):
        assert fact(nsight) == fact(kineto), fact.__name__
    used = steps(nsight), steps(kineto)
    assert (used[0].numbers, used[0].times_ns.tolist()) == (used[1].numbers, used[1].times_ns.tolist())
    assert nsight.rank.zero_unix_ns == kineto.rank.zero_unix_ns
    assert nsight.rank.provenance.devices == kineto.rank.provenance.devices
    for table in ("kernels", "copies"):
        columns = [name for name in getattr(kineto.rank, table).columns if name not in ("occupancy", "graph_id")]
        ours, theirs = (getattr(facts.rank, table)[columns].to_numpy().tolist() for facts in (nsight, kineto))
        assert ours == theirs, table
    ops = kineto.rank.ops[["shapes", "sequence"]].to_numpy().tolist()
    assert [
        [str(shapes).replace(" ", ""), seq] for shapes, seq in nsight.rank.ops[["shapes", "sequence"]].to_numpy()
    ] == [[str(shapes).replace(" ", ""), seq] for shapes, seq in ops]


def test_names_of_ranges_lose_what_pytorch_appends(tmp_path: Path) -> None:
    made = Export()
    made.range("aten::mul, seq = 45328, op_id = 990726", 0, 10)
    made.range("aten::mm, op_id = 7, sizes = [[8, 16], [16, 4]], input_op_ids = [(1,0), (2,0)]", 20, 30)
    made.range("FSDP::pre_forward (blocks.15), op_id = 1", 40, 50).range("ProfilerStep#3", 0, 60)
    made.range("AddmmBackward0, seq = 12", 51, 52).range(None, 53, 54, textId=made.string("ncclAllReduce"))
    made.range("open", 55, None).range("mark", 56, 56, eventType=34)
    rank = read(made, tmp_path)
    assert sorted(zip(rank.spans["name"].astype(str), rank.spans["kind"], strict=True)) == [
        ("AddmmBackward0", "op"),
        ("FSDP::pre_forward (blocks.15)", "annotation"),
        ("ProfilerStep#3", "annotation"),
        ("aten::mm", "op"),
        ("aten::mul", "op"),
        ("ncclAllReduce", "collective"),
    ]
    assert set(rank.spans["external_id"]) == {-1}
    ops = rank.ops.assign(name=rank.spans["name"].astype(str)).set_index("name")
    assert ops["sequence"].to_dict() == {"aten::mul": 45328, "aten::mm": -1, "AddmmBackward0": 12}
    assert ops.loc["aten::mm", "shapes"] == "[[8, 16], [16, 4]]"
    assert [step.number for step in rank.steps] == [3]


def test_a_graph_launched_as_a_whole_is_work(tmp_path: Path) -> None:
    made = Export().call("cudaGraphLaunch_v10000", 0, 10, correlation=5)
    ran = {"start": 20, "end": 90, "deviceId": 0, "streamId": 7, "globalPid": pid()}
    made.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **ran, correlationId=5, graphId=3)
    rank = read(made, tmp_path)
    work = device_work(Facts(rank))
    assert (work.start_ns.tolist(), work.end_ns.tolist()) == ([20], [90])
    assert rank.kernels["graph_id"].tolist() == [3]
    assert rank.spans["name"].astype(str).tolist() == ["cudaGraphLaunch", "CUDA graph 3"]
    assert len(rank.links) == 1


def test_what_a_synchronisation_is_follows_from_the_call(tmp_path: Path) -> None:
    """syncType is wrong before schema 3.25: here it says "event" of all."""
    calls = (
        "cudaStreamSynchronize_v3020",
        "cudaDeviceSynchronize_v3020",
        "cudaStreamWaitEvent_v3020",
        "cudaFree_v3020",
    )
    made = Export().kernel("k", 0, 500)
    for number, name in enumerate(calls, start=1):
        made.call(name, 100 * number, 100 * number + 50, correlation=number)
        stream, event = 4294967295 if number == 2 else 7, 9 if number == 3 else 4294967295
        made.sync(100 * number, 100 * number + 50, number, streamId=stream, eventId=event, syncType=1)
    for stamp, stream in ((10, 13), (250, 20), (350, 21)):
        made.event(stamp, 9, stream, 1000 + stamp)
    rank = read(made, tmp_path)
    assert rank.syncs["sync_kind"].tolist() == ["stream", "context", "stream_wait_event", "unknown"]
    assert rank.syncs["stream"].tolist() == [7, -1, 7, 7]
    assert rank.syncs["wait_on_stream"].tolist() == [-1, -1, 20, -1]  # recorded last before the wait
    assert rank.syncs["wait_on_correlation"].tolist() == [-1, -1, 1250, -1]


def test_columns_that_a_version_lacks_are_unknown(tmp_path: Path) -> None:
    made = Export().kernel("k", 0, 10, correlation=1).call("cudaLaunchKernel", 0, 1, correlation=1)
    few = {"CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "streamId", "correlationId", "demangledName")}
    rank = ranks.read(made.write(tmp_path / "old.sqlite", few))
    assert rank.kernels[["grid_x", "registers", "shared_bytes", "graph_id"]].to_numpy().tolist() == [[0, -1, -1, 0]]
    assert len(rank.links) == 1
    assert rank.provenance.devices == ()


def test_what_the_recorder_warns_of_is_told(tmp_path: Path) -> None:
    made = Export().kernel("k", 0, 10)
    for severity, text in ((1, "fine"), (2, "Some events were\nlost.\x1b[31m"), (3, "x" * 1000)):
        made.add("DIAGNOSTIC_EVENT", timestamp=0, source=1, severity=severity, text=text)
    told = [note.what for note in read(made, tmp_path).integrity if note.what.startswith("The recorder says: ")]
    assert sorted(told) == ["The recorder says: Some events were lost.\\x1b[31m.", f"The recorder says: {'x' * 300}."]


def test_values_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    made = Export().kernel("k", 0, 10).kernel("k", 20, 15)  # ends before it starts
    made.kernel("k", "thirty", 40.5, deviceId="x", gridX=-5)  # type: ignore[arg-type]
    made.add("StringIds", id="1", value=b"\xff\xfe")
    rank = read(made, tmp_path)
    assert sorted(zip(rank.spans["start_ns"], rank.spans["dur_ns"], strict=True)) == [(0, 10), (0, 40), (20, 0)]
    assert any("negative" in note.what for note in rank.integrity)


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"\xaa" * 4096, b"SQLite format 3\0"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as an SQLite database"):
        ranks.read(path)
    assert ranks.find([path])[0].part is None


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_truncated_files_are_refused_or_read(tmp_path: Path, at: float) -> None:
    made = Export()
    for number in range(2000):
        made.kernel(f"kernel {number}", 10 * number, 10 * number + 5)
    path = made.write(tmp_path / "whole.sqlite")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * at)])
    with pytest.raises(InputError, match="cannot be read as an SQLite database"):
        ranks.read(path)


def renamed(path: Path, names: dict[str, str]) -> Path:
    """The same file with the tables whose names hold one of these parts under other names."""
    with sqlite3.connect(path) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table, part in ((table, part) for table in tables for part in names if part in table):
            db.execute(f'ALTER TABLE "{table}" RENAME TO "{names[part]}"')
    db.close()
    return path


@pytest.mark.parametrize(
    "names",
    [
        {
            "KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL_V3",
            "RUNTIME": "CUPTI_ACTIVITY_KIND_RUNTIME_V3",
            "NVTX": "NVTX_EVENTS_V2",
        },
        {"KERNEL": "GPU_WORK", "MEMCPY": "COPIES", "NVTX": "RANGES", "StringIds": "StringIds_V2"},
    ],
)
def test_tables_are_known_by_their_columns(tmp_path: Path, names: dict[str, str]) -> None:
    path = synthetic(BUSY).write(tmp_path / "report.sqlite")
    whole = ranks.read(path)
    found = ranks.read(renamed(path, names))
    assert found.spans.equals(whole.spans)
    assert found.integrity == whole.integrity


def test_tables_that_are_not_known_are_named(tmp_path: Path) -> None:
    """Calls that lack what tells them from those of other interfaces."""
    path = renamed(synthetic(BUSY).write(tmp_path / "report.sqlite"), {"RUNTIME": "CALLS"})
    assert "Tables that are not known were left out: CALLS." in [note.what for note in ranks.read(path).integrity]


@pytest.mark.parametrize("lost", [("gridX",), ("KERNEL", "RUNTIME", "NVTX", "MEMCPY")])
def test_work_that_cannot_be_read_is_no_idle_time(tmp_path: Path, lost: tuple[str, ...]) -> None:
    """A table of kernels under another name, and without their sizes; an export without most tables."""
    made = synthetic(BUSY)
    kept = {name: rows for name, rows in made.tables.items() if not any(part in name for part in lost)}
    made.tables, unread = kept, len(kept) == len(made.tables)
    path = made.write(
        tmp_path / "report.sqlite",
        {name: [one for one in columns if one not in lost] for name, columns in TABLES.items()},
    )
    renamed(path, {"KERNEL": "WORK"})
    with pytest.raises(InputError, match="without GPU work, CUDA calls or NVTX ranges that can be read") as refusal:
        ranks.read(path)
    assert ("Tables that are not known: WORK." in str(refusal.value)) == unread


def test_views_and_virtual_tables_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "hostile.sqlite"
    with sqlite3.connect(path) as db:
        names = ", ".join(f"1 AS {name}" for name in TABLES["CUPTI_ACTIVITY_KIND_KERNEL"])
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
        db.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless} SELECT {names} FROM n")
        db.execute("CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(text)")
    db.close()
    with pytest.raises(InputError, match="without GPU work, CUDA calls or NVTX ranges"):
        ranks.read(path)


def test_other_databases_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE people (name)")
    db.close()
    with pytest.raises(InputError, match="nsys export --type sqlite"):
        ranks.read(tmp_path / "other.sqlite")


NSYS = """#!/bin/sh
# What nsys export does, as far as it matters here.
[ "$1 $2" = "export --type=sqlite" ] && target="${3#--output=}" && report="$4" && {then}
"""


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (None, "this machine has no nsys. On a machine with nsys, run: nsys export --type sqlite --output run.sqlite"),
        ("{ echo 'Version number is invalid' >&2; exit 1; }", "could not export .*: Version number is invalid"),
        ("exit 0", "could not export .*: nsys ended with 0"),
    ],
)
def test_reports_that_cannot_be_exported(
    then: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"a report")
    with_nsys(tmp_path / "bin", then, monkeypatch)
    with pytest.raises(InputError, match=said):
        ranks.find([report])


def test_reports_are_exported_by_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report holds an export here, which is all that this nsys hands on."""
    report = Export().kernel("k", 0, 10).write(tmp_path / "run.nsys-rep")
    with_nsys(tmp_path / "bin", 'cp "$report" "$target"', monkeypatch)
    (file,) = ranks.find([report])
    assert (file.path.name, file.named) == ("run.sqlite", True)
    assert len(ranks.read(file.path, file.part).kernels) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "run.nsys-rep"]


def with_nsys(folder: Path, then: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only these programs on the PATH, besides what a shell script needs; without `then` no nsys."""
    folder.mkdir()
    if then is not None:
        (folder / "nsys").write_text(NSYS.replace("{then}", then), encoding="utf-8")
        (folder / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    path = Export().kernel("k", 0, 10).write(tmp_path / "report.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    ranks.read(path)
    assert [one.name for one in tmp_path.iterdir()] == ["report.sqlite"]
    assert path.read_bytes() == before


def test_processes_are_ranks_by_device(tmp_path: Path) -> None:
    made = Export()
    for process, device in ((300, 0), (200, 1), (250, 0)):
        made.kernel("k", process, process + device + 1, process=process, deviceId=device)
    path = made.write(tmp_path / "report.sqlite")
    found = [ranks.read(path, file.part) for file in ranks.find([path])]
    assert [int(rank.spans["dur_ns"].sum()) for rank in found] == [1, 1, 2]
    assert [rank.index for rank in found] == [0, 1, 2]
    assert [file.part for file in ranks.find([path])] == [pid(250), pid(300), pid(200)]
    assert np.isin([rank.provenance.world_size for rank in found], [3]).all()


def test_absurd_numbers_damage_nothing_but_themselves(tmp_path: Path) -> None:
    made = Export().kernel("k", 100, 110, correlation=3).call("cudaStreamWaitEvent", 90, 95, correlation=3)
    made.kernel("k", -(1 << 63), 5).kernel("k", 120, (1 << 63) - 1)
    for stamp in (50, (1 << 63) - 1, -(1 << 63)):
        made.event(stamp, 2, 9, 1)
    made.sync(91, 92, 3, eventId=2)
    made.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=(1 << 63) - 1)
    rank = read(made, tmp_path)
    kernels = rank.spans[rank.spans["kind"] == "kernel"]
    assert list(zip(kernels["start_ns"], kernels["dur_ns"], strict=True)) == [(10, 10), (30, 0)]
    assert rank.syncs["wait_on_stream"].tolist() == [9]
    assert rank.zero_unix_ns == 90


def test_ranges_without_a_text_of_their_own(tmp_path: Path) -> None:
    """Registered texts are looked up once each; a table that has neither holds no ranges that could be named."""
    made = Export().range("aten::mul, seq = 1", 0, 5).kernel("k", 0, 9)
    made.range(None, 6, 7, textId=made.string("registered")).range(None, 7, 8).range(None, 8, 9, textId=77)
    made.range(
        None, 10, 12, textId=made.string("aten::add, seq = 2, op_id = 3, sizes = [[4], [4]], input_op_ids = [1]")
    )
    rank = read(made, tmp_path)
    assert sorted(rank.spans["name"].astype(str)) == ["aten::add", "aten::mul", "k", "registered"]
    assert rank.ops["sequence"].tolist() == [1, 2]
    assert rank.ops["shapes"].tolist() == ["", "[[4], [4]]"]
    few = {"NVTX_EVENTS": ("start", "end", "eventType", "globalTid")}
    assert len(ranks.read(made.write(tmp_path / "few.sqlite", few)).spans) == 1
