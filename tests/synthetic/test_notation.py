"""A drawing, read back by the real reader, is what was drawn: spans, kinds, tracks, links, steps and every column."""

import doctest
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose.source import ranks
from diagnose.synthetic import notation
from diagnose.synthetic.notation import DrawingError
from diagnose.trace import kinds
from diagnose.trace.hardware import peaks
from diagnose.trace.kinds import Activity
from diagnose.trace.model import Rank, Step
from tests import laws

Read = Callable[[str], Rank]
MS = 1_000_000
LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SGEMM = "ampere_sgemm_128x64_nn"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reader(text: str) -> Rank:
        path = tmp_path / "drawn.json"
        path.write_bytes(notation.trace(text))
        rank = ranks.read(path)
        assert laws.broken(rank) == ()
        return rank

    return reader


def base_ns() -> int:
    return int(json.loads(notation.trace("cpu a 0-1"))["baseTimeNanoseconds"])


def spans(rank: Rank) -> list[tuple[str, str, float, float]]:
    """(kind, name, start, end), in ms of the drawing, in order of start and end."""
    zero = rank.zero_unix_ns - base_ns()
    rows = rank.spans[["kind", "name", "start_ns", "dur_ns"]].itertuples(index=False)
    found = [(str(kind), str(name), (zero + at) / MS, (zero + at + dur) / MS) for kind, name, at, dur in rows]
    return sorted(found, key=lambda span: (span[2:], span[:2]))


def names(rank: Rank, kind: str) -> list[str]:
    return rank.spans["name"][rank.spans["kind"] == kind].astype(str).tolist()


def launches(rank: Rank) -> Counter[tuple[str, str]]:
    """How often a call of one name launched work of another."""
    links = rank.links[rank.links["kind"] == "launch"]
    name = rank.spans["name"]
    return Counter((str(name[call]), str(name[work])) for call, work in zip(links.from_id, links.to_id, strict=True))


def only_args(text: str) -> dict[str, Any]:
    (event,) = (event for event in json.loads(notation.trace(text))["traceEvents"] if event["ph"] == "X")
    return dict(event["args"])


def test_the_example_of_the_docstring() -> None:
    assert doctest.testmod(notation) == (0, 2)


def test_the_example_of_the_notation(read: Read) -> None:
    """The drawing at the head of the module."""
    rank = read((notation.__doc__ or "").split("\n\n")[1])
    assert rank.steps == tuple(Step(k, 100 * MS * k, 100 * MS * (k + 1)) for k in range(3))
    assert [span for span in spans(rank) if 100 <= span[2] < 200] == [
        ("runtime", "cudaMemcpyAsync", 100, 101),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)", 100, 105),
        ("loader", LOAD, 100, 160),
        ("annotation", "ProfilerStep#1", 100, 200),
        ("runtime", "cudaLaunchKernel", 160, 160.005),
        ("op", "aten::mm", 160, 161),
        ("kernel", SGEMM, 160, 200),
        ("runtime", "cudaStreamSynchronize", 161.2, 200),
        ("op", "aten::add", 170, 171),
    ]
    assert len(rank.spans) == 3 * 9
    assert launches(rank) == {("cudaLaunchKernel", SGEMM): 3, ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)"): 3}
    tracks = [tuple(track) for track in rank.tracks[["thread", "device", "stream", "name"]].itertuples(index=False)]
    threads = [
        (str(number), -1, -1, f"thread {number} ({name})") for number, name in ((100, "main"), (101, "autograd"))
    ]
    assert sorted(tracks) == [*threads, ("stream 20", 0, 20, ""), ("stream 7", 0, 7, "")]
    copies = rank.copies[["stream", "bytes", "direction", "host_memory"]].to_numpy().tolist()
    assert copies == 3 * [[20, 64_000_000, "HtoD", "pinned"]]
    assert rank.provenance.recorded == {"device", "launches", "ops"}


def test_without_steps_everything_is_drawn_once(read: Read) -> None:
    rank = read("cpu aten::mm 0.5-2.000001 | gc 3-4")
    assert spans(rank) == [("op", "aten::mm", 0.5, 2.000001), ("python", "Python GC", 3, 4)]
    assert rank.steps == ()
    assert rank.zero_unix_ns == base_ns() + 500_000
    assert rank.spans["dur_ns"].tolist() == [1_500_001, 1_000_000]


def test_times_are_exact_to_the_nanosecond(read: Read) -> None:
    rank = read("cpu a 1-1.000001 | b 123457.789012-123457.789013")
    assert rank.spans["start_ns"].tolist() == [0, 123_456_789_012]
    assert rank.spans["dur_ns"].tolist() == [1, 1]


def test_work_belongs_to_the_step_of_its_launch(read: Read) -> None:
    rank = read("2 steps of 10\ngpu sgemm 8-12 @8 | h2d 12.5-13")
    assert rank.spans["step"][rank.kernels.index].tolist() == [0, 1]
    assert rank.spans["step"][rank.copies.index].tolist() == [-1, -1]
    assert launches(rank) == {("cudaLaunchKernel", SGEMM): 2}


def test_lines_stand_in_any_order_and_anyhow_indented(read: Read) -> None:
    rows = "\n      gpu  sgemm 1-2 @1   # a comment | of no item\n\n\tcpu load 0-1\n"
    head = "   2 steps of 10\nrank 3 of 8\n  device A100"
    first, last = read(head + rows), read(rows + head)
    assert spans(first) == spans(last)
    assert len(spans(first)) == 2 * 4
    for rank in (first, last):
        assert (rank.provenance.rank, rank.provenance.world_size, rank.index) == (3, 8, 3)
        assert [device.multiprocessors for device in rank.provenance.devices] == [108]


# Devices


@pytest.mark.parametrize(
    ("line", "name", "multiprocessors", "gigabytes"),
    [
        ("", "NVIDIA H100 80GB HBM3", 132, 85),
        ("device NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", 108, 85),
        ("device MI300X", "AMD Instinct MI300X", 304, 206),
    ],
)
def test_devices_are_whole_ones_whose_peaks_are_known(
    read: Read, line: str, name: str, multiprocessors: int, gigabytes: int
) -> None:
    (device,) = read(f"{line}\ngpu sgemm 0-1").provenance.devices
    assert (device.name, device.multiprocessors, round(device.memory_bytes / 1e9)) == (name, multiprocessors, gigabytes)
    assert peaks(device).scaled == 1.0


def test_a_device_whose_peaks_are_not_known(read: Read) -> None:
    (device,) = read("device 1080\ngpu sgemm 0-1").provenance.devices
    assert device.name == "NVIDIA GeForce GTX 1080 Ti"
    assert peaks(device) is None


def test_amd_records_as_rocm_does(read: Read) -> None:
    rank = read("device MI300X\ncpu sync 5-6\ngpu sgemm 0-1 @0 | h2d 1-2 @1 pinned | memset 2-3 @2 | fill 3-4 @3 graph")
    assert rank.provenance.backend == "rocm"
    calls = ["LaunchKernel", "MemcpyAsync", "MemsetAsync", "GraphLaunch", "StreamSynchronize"]
    assert names(rank, "runtime") == [f"hip{call}" for call in calls]
    assert rank.copies["host_memory"].tolist() == ["unknown"]
    assert rank.kernels["stream"].tolist() == [0, 0]
    assert rank.kernels["occupancy"].isna().all()
    assert rank.kernels["registers"].tolist() == [-1, -1]


def test_memory_in_use_grows_from_step_to_step(read: Read) -> None:
    drawing = "memory 1 of 2.5 GB, 0.5 GB more a step\n2 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-2 @0.5"
    memory = read(drawing).memory
    assert memory["allocated_bytes"].tolist() == [1_000_000_000, 1_500_000_000]
    assert memory["reserved_bytes"].tolist() == [2_500_000_000, 3_000_000_000]
    assert memory["device_type"].tolist() == [1, 1]


def test_streams_and_devices(read: Read) -> None:
    rank = read("gpu sgemm 0-1\ngpu 20 sgemm 0-1\ngpu 1:20 sgemm 0-1 | h2d 1-2")
    assert sorted(rank.kernels[["device", "stream"]].to_numpy().tolist()) == [[0, 7], [0, 20], [1, 20]]
    assert rank.copies[["device", "stream"]].to_numpy().tolist() == [[1, 20]]
    assert [device.index for device in rank.provenance.devices] == [0, 1]


# Names


@pytest.mark.parametrize(
    ("synthetic", "name", "kind", "activity"),
    [
        ("load", LOAD, "loader", Activity.LOADER),
        ("next", LOAD.replace("SingleProcess", "MultiProcessing"), "loader", Activity.LOADER),
        ("optimizer", "Optimizer.step#AdamW.step", "annotation", Activity.OPTIMIZER_STEP),
        ("zero_grad", "Optimizer.zero_grad#AdamW.zero_grad", "annotation", Activity.ZERO_GRAD),
        # As torch 2.13 wrote them on a CPU: dynamo_timed as cpu_op, collections and frames as python_function.
        ("compile", "_compile.compile_inner (dynamo_timed)", "op", Activity.COMPILE),
        ("gc", "Python GC", "python", Activity.GARBAGE_COLLECTION),
        ("save", "torch/serialization.py(944): save", "python", Activity.CHECKPOINT),
        ('"train.py(12): step"', "train.py(12): step", "python", Activity.OTHER),
        ("malloc", "cudaMalloc", "runtime", Activity.OTHER),
        ("free", "cudaFree", "runtime", Activity.OTHER),
        ("custom_range", "custom_range", "annotation", Activity.OTHER),
        ("aten::mm", "aten::mm", "op", Activity.OTHER),
    ],
)
def test_names_on_the_host(read: Read, synthetic: str, name: str, kind: str, activity: Activity) -> None:
    rank = read(f"cpu {synthetic} 1-2")
    assert spans(rank) == [(kind, name, 1, 2)]
    assert kinds.activity(name) is activity
    a_stack = kind == "python" and activity is not Activity.GARBAGE_COLLECTION
    assert ("stacks" in rank.provenance.recorded) == a_stack


@pytest.mark.parametrize(
    ("synthetic", "direction", "memory"),
    [
        *(("h2d 0-1", "HtoD", "pageable"), ("h2d 0-1 pinned", "HtoD", "pinned"), ("d2h 0-1", "DtoH", "pageable")),
        *(("d2h 0-1 pinned", "DtoH", "pinned"), ("d2h 0-1 pageable", "DtoH", "pageable")),
        *(("d2d 0-1", "DtoD", "none"), ("p2p 0-1", "PtoP", "none")),
    ],
)
def test_copies(read: Read, synthetic: str, direction: str, memory: str) -> None:
    rank = read(f"gpu {synthetic} @0")
    assert rank.copies[["bytes", "direction", "host_memory"]].to_numpy().tolist() == [[-1, direction, memory]]
    assert names(rank, "runtime") == ["cudaMemcpyAsync"]
    assert len(launches(rank)) == 1


# Words


@pytest.mark.parametrize(("size", "expected"), [("512B", 512), ("4KB", 4e3), ("64MB", 64e6), ("2GB", 2e9)])
def test_sizes(read: Read, size: str, expected: float) -> None:
    assert read(f"gpu d2h 0-1 {size} @0").copies["bytes"].tolist() == [expected]


def starts(rank: Rank, name: str) -> list[float]:
    return [at for _, synthetic, at, _ in spans(rank) if synthetic == name]


def test_in_some_steps(read: Read) -> None:
    rank = read(
        "4 steps of 10\ncpu a 1-2 in 1,3 | b 2-3 not in 0 | c 3-4 not in 1,2 | d 4-5 in 1,2 not in 2 | e 5-6 in 0"
    )
    assert [starts(rank, name) for name in "abcde"] == [[11, 31], [12, 22, 32], [3, 33], [14], [5]]


def test_repeats_of_host_spans(read: Read) -> None:
    rank = read("2 steps of 10\ncpu a 1-1.5 x3 every 2 | b 7-8 x2")
    assert starts(rank, "a") == [1, 3, 5, 11, 13, 15]
    assert starts(rank, "b") == [7, 8, 17, 18]


def test_repeats_of_work_repeat_the_call(read: Read) -> None:
    rank = read("gpu pointwise 1-1.004 @0.5 x100 every 0.02")
    (name,) = set(names(rank, "kernel"))
    assert launches(rank) == {("cudaLaunchKernel", name): 100}
    work = rank.links["to_id"].to_numpy()
    calls = rank.links["from_id"].to_numpy()
    start, dur = rank.spans["start_ns"].to_numpy(), rank.spans["dur_ns"].to_numpy()
    assert start[work].tolist() == [500_000 + 20_000 * k for k in range(100)]
    assert start[calls].tolist() == [20_000 * k for k in range(100)]
    assert set(dur[work]) == {4_000}
    assert set(dur[calls]) == {5_000}


def test_the_launching_call(read: Read) -> None:
    rank = read("gpu sgemm 60-100 @60 | h2d 100-105 @61-70 from loader | fill 105-106")
    assert [span for span in spans(rank) if span[0] == "runtime"] == [
        ("runtime", "cudaLaunchKernel", 60, 60.005),
        ("runtime", "cudaMemcpyAsync", 61, 70),
    ]
    assert len(rank.links) == 2
    thread = rank.tracks["name"].to_numpy()[rank.spans["track"].to_numpy()]
    assert thread[rank.spans["name"] == "cudaLaunchKernel"].tolist() == ["thread 100 (main)"]
    assert thread[rank.spans["name"] == "cudaMemcpyAsync"].tolist() == ["thread 101 (loader)"]


def test_a_graph_launches_all_work_with_its_call(read: Read) -> None:
    rank = read("""
        2 steps of 10
        gpu sgemm 1-2 @0.5 graph | my_kernel 2-2.5 @0.5 graph x3 | h2d 4-5 @0.6 graph
        gpu 9 sgemm 1-2 @0.5-0.51 graph from other
    """)
    work = {SGEMM: 4, "my_kernel": 6, "Memcpy HtoD (Pageable -> Device)": 2}
    assert launches(rank) == {("cudaGraphLaunch", name): count for name, count in work.items()}
    assert Counter(Counter(rank.links["from_id"].tolist()).values()) == {4: 2, 1: 4}
    assert starts(rank, "my_kernel") == [2, 2.5, 3, 12, 12.5, 13]
    assert set(rank.kernels["graph_id"]) == {1}


def test_how_much_of_the_device_a_kernel_fills(read: Read) -> None:
    rank = read("device A100\ngpu sgemm 0-1 | sgemm 1-2 blocks=108 | sgemm 2-3 blocks=8 occupancy=42")
    grids = rank.kernels[["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]].to_numpy().tolist()
    assert grids == [[16 * 108, 1, 1, 256, 1, 1], [108, 1, 1, 256, 1, 1], [8, 1, 1, 256, 1, 1]]
    # One block of 256 threads on each multiprocessor, which holds 2048.
    assert rank.kernels["occupancy"].tolist() == [1.0, 0.12, 0.42]
    assert rank.kernels["registers"].tolist() == [32, 32, 32]


def test_arguments_of_ops(read: Read) -> None:
    rank = read(
        'cpu aten::mm 0-1 shapes=[[8,16],[16,4]] types=["float","float"] stack="train.py(3): f;train.py(9): g" '
        'sequence=5 "Fwd thread id"=3 finished=false'
    )
    (op,) = rank.ops.to_dict("records")
    assert (json.loads(op["shapes"]), json.loads(op["dtypes"])) == ([[8, 16], [16, 4]], ["float", "float"])
    assert (op["stack"], op["sequence"]) == ("train.py(3): f;train.py(9): g", 5)
    assert (op["forward_thread"], op["finished"]) == (3, False)
    assert rank.provenance.recorded == {"ops", "shapes", "stacks"}


def test_arguments_of_collectives(read: Read) -> None:
    rank = read(
        'gpu allreduce 0-1 operation=allreduce group_ranks="[0, 1]" group_size=2 dtype=Float in_elements=1000 '
        'out_elements=1000 Seq=3 "registers per thread"=96'
    )
    (row,) = rank.collectives.to_dict("records")
    assert (row["operation"], row["group_ranks"], row["group_size"], row["sequence"]) == ("allreduce", "[0, 1]", 2, 3)
    assert (row["dtype"], row["in_elements"], row["out_elements"], row["peer"]) == ("Float", 1000, 1000, -1)
    assert rank.kernels["registers"].tolist() == [96]


def test_values_are_json_or_text() -> None:
    args = only_args(r'cpu aten::mm 0-1 b=2.5 c=[1,2] d=text e="two words" f=true g="C:\x"')
    given = {"b": 2.5, "c": [1, 2], "d": "text", "e": "two words", "f": True, "g": r"C:\x"}
    assert args == {**given, "External id": 1}


def test_quotes_keep_bars_and_hashes(read: Read) -> None:
    rank = read('cpu "loader thread" "[param|cuda]" 0-1 | Optimizer.step#SGD.step 1-2 #no comment x\n#cpu c 0-1')
    assert [name for _, name, *_ in spans(rank)] == ["[param|cuda]", "Optimizer.step#SGD.step"]
    assert rank.tracks["name"].tolist() == ["thread 101 (loader thread)"]


# Ids


def test_calls_and_their_work_carry_the_id_of_the_innermost_open_op(read: Read) -> None:
    rank = read("""
        cpu range 0-10 | aten::linear 1-5 | aten::addmm 1-4 | "nn.Module: A" 2-3 | sync 6-7
        cpu other aten::relu 0-10
        gpu sgemm 2-8 @2 | fill 8-9 @4.5 | cast 9-10 @8
        gpu 8 h2d 3-4 @2.5 from other
    """)
    name, external = rank.spans["name"].astype(str), rank.spans["external_id"]
    id_of = {name[k]: external[k] for k in rank.spans.index if name[k].startswith("aten::")}
    called = {str(name[work]): (external[call], external[work]) for call, work, _ in rank.links.itertuples(index=False)}
    assert len(set(id_of.values())) == 3
    assert called == {
        SGEMM: (id_of["aten::addmm"],) * 2,
        kernel_named("fill"): (id_of["aten::linear"],) * 2,
        kernel_named("cast"): (-1, -1),
        "Memcpy HtoD (Pageable -> Device)": (id_of["aten::relu"],) * 2,
    }
    assert external[name == "cudaStreamSynchronize"].tolist() == [-1]


def kernel_named(alias: str) -> str:
    (event,) = (e for e in json.loads(notation.trace(f"gpu {alias} 0-1"))["traceEvents"] if e["ph"] == "X")
    return str(event["name"])


def test_of_equal_spans_a_call_is_inside_an_op_and_an_op_inside_a_frame(read: Read) -> None:
    rank = read('cpu sync 1-2 | aten::item 1-2 | "train.py(1): f" 1-2 | range 1-2')
    assert rank.spans["kind"].tolist() == ["python", "annotation", "op", "runtime"]
    assert rank.spans["external_id"].tolist()[2:] == [rank.spans["external_id"][2]] * 2


def test_sync_events(read: Read) -> None:
    rows = """
        2 steps of 10
        cpu sync 1-2 stream=20 | record 2-2.1 stream=20 | wait 3-3.1 stream=9 | event_sync 4-5 | device_sync 6-7
    """
    plain, rank = read(rows), read("sync events" + rows)
    assert "sync_events" not in plain.provenance.recorded
    assert [span for span in spans(rank) if span[0] != "sync"] == spans(plain)
    kinds_of = [("Stream Sync", 1, 2), ("Stream Wait Event", 3, 3.1), ("Event Sync", 4, 5), ("Context Sync", 6, 7)]
    assert [span for span in spans(rank) if span[0] == "sync"][:4] == [("sync", *one) for one in kinds_of]
    records = rank.spans["correlation"][rank.spans["name"] == "cudaEventRecord"].tolist()
    waits = [["stream", 20, -1, -1], ["stream_wait_event", 9, 20, 0], ["event", -1, 20, 0], ["context", -1, -1, -1]]
    for step, record in enumerate(records):
        expected = [[*wait[:3], record if wait[3] == 0 else -1] for wait in waits]
        assert rank.syncs.to_numpy().tolist()[4 * step :][:4] == expected
    assert (rank.links["kind"] == "waits_for").sum() == 4


# What is wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("gup sgemm 0-1", "a line is of cpu or gpu"),
        ("3 steps of 0.0000001", "0.0000001 is no time in ms, with at most six decimals"),
        ("device B100", "the device is one of NVIDIA H100 80GB HBM3, "),
        ("cpu load", "load is no item"),
        ('cpu "load 0-1', "a quote is not closed"),
        ("cpu load 1-0", "load ends before it starts"),
        ("cpu load 0-1 twice", "twice is no word of load"),
        ("cpu load 0-1 in 2", "there is no step 2"),
        ("cpu aten::mm 0-1 shapes=[[8, 16]]", "16]] is no word of aten::mm"),
        ("gpu main sgemm 0-1", "main is no stream"),
        ("gpu sgemm 0-1 @0.5", "sgemm starts before its launch"),
        ("gpu sgemm 2-3 @1-0.5", "or the launch ends before it starts"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(line: str, wrong: str) -> None:
    with pytest.raises(DrawingError) as error:
        notation.trace(f"cpu next 5-6\n\n   {line}  \n1 step of 10" if "steps" not in line else f"\n\n{line}")
    assert str(error.value).startswith(f"line 3 ({' '.join(line.split())}): ")
    assert wrong in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("cpu load 0-5\ncpu aten::mm 4-6", f"line 2 (cpu aten::mm 4-6): aten::mm 4-6 overlaps {LOAD} 0-5, of line 1"),
        ("2 steps of 10\ncpu sync 9-11", "line 2 (cpu sync 9-11): cudaStreamSynchronize 9-11 overlaps ProfilerStep#0"),
        (
            "gpu h2d 8-9 @2.5\ngpu sgemm 9-10 @0.5",
            f"{SGEMM} 9-10 runs after work of its stream that was launched later",
        ),
        ("cpu sync 1-9\ngpu sgemm 5-6 @4", "cudaLaunchKernel 4-4.005 overlaps cudaStreamSynchronize 1-9, of line 1"),
        ("gpu sgemm 0-5\ngpu fill 4-4.5", f"overlaps {SGEMM} 0-5, of line 1"),
    ],
)
def test_what_cannot_be_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(DrawingError) as error:
        notation.trace(text)
    assert wrong in str(error.value)


@pytest.mark.parametrize("text", ["", "# nothing", "rank 0 of 1\nsync events", "cpu", "cpu |"])
def test_nothing_drawn(text: str) -> None:
    with pytest.raises(DrawingError, match="the drawing is empty"):
        notation.trace(text)


def test_events_have_only_fields_that_recorded_ones_have(corpus: Path) -> None:
    synthetic = """
        rank 0 of 8
        sync events
        cpu aten::mm 0-1 shapes=[[8,16]] types=["float"] sequence=1 | range 1-2 | "train.py(3): f" 2-3
        cpu sync 3-4 | record 4-5 | wait 5-6 | event_sync 6-7 | device_sync 7-8
        gpu sgemm 2-3 @0.5 | h2d 3-4 @1 4KB | memset 4-5 @1.1
        gpu 20 allreduce 2-3 operation=allreduce group_ranks="[0,1]" group_size=8 in_elements=9 dtype=Float
    """
    recorded: dict[str, set[str]] = {"header": set()}
    for name in ("hta/alexnet_a100_sync_events", "hta/event_sync", "tracelens/b200_eager"):
        document = json.loads(gzip.decompress((corpus / f"kineto/{name}.json.gz").read_bytes()))
        recorded["header"] |= document.keys()
        fields_of(document["traceEvents"], recorded)
    document = json.loads(notation.trace(synthetic))
    found = {"header": set(document)}
    fields_of(document["traceEvents"], found)
    assert not any(fields - recorded[category] for category, fields in found.items())
    assert len(found) == 10


def fields_of(events: list[dict[str, Any]], found: dict[str, set[str]]) -> None:
    """Add, by category, the fields of events and of their arguments."""
    for event in events:
        fields = found.setdefault(event.get("cat", event["ph"]), set())
        fields |= event.keys() | {f"args.{key}" for key in event.get("args") or {}}


def test_what_diagnose_profile_would_have_noted() -> None:
    text = "2 steps of 50\n 3 threads, 8 cores  # of one process\nrival watch 0.7\nrival log 0.25\ncpu aten::mm 0-40"
    found = notation.context(text, rank=1, ranks=2)
    assert (found.rank.rank, found.rank.world_size, found.ranks, found.host.cpus_allowed) == (1, 2, 2, 8)
    assert found.rank.flags.threads == 3
    assert (found.rank.unprofiled.wall_ns, found.rank.unprofiled.device_ns) == ((50_000_000,), None)
    assert [(one.name, one.cpu_share) for one in found.rank.python_threads] == [("watch", 0.7), ("log", 0.25)]
    assert notation.trace(text) == notation.trace("2 steps of 50\ncpu aten::mm 0-40")
    assert notation.context("2 steps of 50\ncpu aten::mm 0-40", rank=0, ranks=1) is None


def test_times_without_the_profiler() -> None:
    text = "2 steps of 50\ntimed 40 41.5 40  # quicker\ncpu aten::mm 0-40"
    found = notation.context(text, rank=0, ranks=1)
    assert found.rank.unprofiled.wall_ns == (40_000_000, 41_500_000, 40_000_000)
    assert notation.trace(text) == notation.trace("2 steps of 50\ncpu aten::mm 0-40")
    with pytest.raises(notation.DrawingError):
        notation.trace("timed soon")


def test_ranks_are_drawn_one_after_the_other() -> None:
    one, other = notation.ranks("4 steps of 10\ncpu a 0-1\n  --- and now the other\n4 steps of 10\ncpu b 0-1\n")
    assert ("cpu a" in one, "cpu b" in one, "cpu b" in other) == (True, False, True)
    assert notation.ranks("cpu a 0-1") == ["cpu a 0-1"]


def test_what_is_drawn_of_values() -> None:
    """Two steps of five ops: the third makes what the first made, the fourth the same in each step."""
    synthetic = "values aten::mm | aten::exp takes 0,- | aten::mm as 0 back | aten::arange always | aten::mul # so"
    found = notation.values(f"1 steps of 100\n{synthetic}\ncpu  aten::mm 0-1")
    first = [found.names[one].removeprefix("aten::") for one in found.name.tolist()[:4]]
    assert first == ["mm", "exp", "mm", "arange"]
    assert found.step.tolist() == [0] * 5 + [1] * 5
    assert found.same.tolist() == [-1, -1, 0, -1, -1, -1, -1, 5, 3, -1]
    assert found.backward.tolist() == [0, 0, 1, 0, 0] * 2
    edges = list(zip(found.uses.tolist(), found.used.tolist(), strict=True))
    assert edges == [(1, 0), (1, -1), (6, 5), (6, -1)]
    assert notation.values("cpu  aten::mm 0-1") is None


@pytest.mark.parametrize("line", ["values aten::mm as", "values aten::mm as 3", "values aten::mm twice"])
def test_values_that_cannot_be_drawn(line: str) -> None:
    with pytest.raises(DrawingError, match=r"^values: "):
        notation.values(line)
