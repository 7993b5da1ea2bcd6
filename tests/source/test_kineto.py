"""Every form a Kineto trace takes gives the same tables, and every field gets where the schema says."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from diagnose.source import ranks
from diagnose.trace.model import Rank
from tests.drawing import MAIN, Drawing


def training() -> Drawing:
    draw = Drawing(distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8})
    for number in range(3):
        at = 1000 + number * 100
        draw.step(number, at, at + 100).op("aten::mm", at + 1, at + 9).launch(
            "gemm", (at + 2, at + 3), (at + 10, at + 60)
        )
    return draw


def read(tmp_path: Path, content: str | bytes, name: str = "trace.json") -> Rank:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ranks.read(path)


def same(one: Rank, other: Rank) -> bool:
    tables = ("spans", "kernels", "copies", "syncs", "collectives", "ops", "memory", "tracks", "links")
    return all(getattr(one, name).equals(getattr(other, name)) for name in tables) and one.steps == other.steps


def forms() -> dict[str, bytes]:
    draw = training()
    compact, pretty = (json.dumps({**draw.header, "traceEvents": draw.events}, indent=indent) for indent in (None, 2))
    events = json.dumps(draw.events)
    kineto = ",\n".join(
        f'  {{\n    "ph": "X", "cat": {json.dumps(e["cat"])}, "name": {json.dumps(e["name"])}, "pid": {e["pid"]}, '
        f'"tid": {e["tid"]},\n    "ts": {e["ts"]}.000, "dur": {e["dur"]}.000,\n'
        f'    "args": {json.dumps(e["args"])}\n  }}'
        for e in draw.events
    )
    return {
        "compact": compact.encode(),
        "pretty": pretty.encode(),
        "as Kineto writes it": f'\n{{\n  "a": 1,\n  "traceEvents": [\n\n{kineto}\n  ],\n  "traceName": "x"}}'.encode(),
        "no spaces": json.dumps({"traceEvents": draw.events}, separators=(",", ":")).encode(),
        "bare list": events.encode(),
        "byte order mark": b"\xef\xbb\xbf" + compact.encode(),
        "carriage returns": pretty.replace("\n", "\r\n").encode(),
        "empty last event": f'{{"traceEvents": {events[:-1]}, {{}}]}}'.encode(),
        "trailing comma": f'{{"traceEvents": {events[:-1]},]}}'.encode(),
        "header last": f'{{"traceEvents": {events}, "a": {{"b": 3}}, "c": [{{"name": "x"}}, {{"ts": 1}}]}}'.encode(),
        "unknown first": f'{{"metadata": {{"a": ["]", {{"traceEvents": [1]}}]}}, "traceEvents": {events}}}'.encode(),
        "strings for numbers": json.dumps(
            {"traceEvents": [{**e, "ts": str(e["ts"]), "dur": str(e["dur"])} for e in draw.events]}
        ).encode(),
        "gzip": gzip.compress(compact.encode()),
        "gzip in members": gzip.compress(compact.encode()[:999]) + gzip.compress(compact.encode()[999:]),
        "gzip with padding": gzip.compress(compact.encode()) + b"\0" * 512,
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("piece", [64, 1000, 1 << 22])
def test_every_form_gives_the_same_tables(
    tmp_path: Path, form: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the text comes in pieces so small that every event and key is cut."""
    monkeypatch.setattr("diagnose.source.stream.PIECE_BYTES", piece)
    found = read(tmp_path, forms()[form])
    assert same(found, training().rank())
    assert not [note for note in found.integrity if note.severity != "note"]


@pytest.mark.parametrize(
    "form", ["as Kineto writes it", "header last", "gzip", "strings for numbers", "trailing comma"]
)
def test_decoding_in_other_processes_gives_the_same(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.source.stream.PIECE_BYTES", 700)
    monkeypatch.setattr("diagnose.source.kineto.WORTH_WORKERS_BYTES", 0)
    assert same(read(tmp_path, forms()[form]), training().rank())


def test_real_traces_are_the_same_from_other_processes(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.source.stream.PIECE_BYTES", 1 << 18)
    for name in ("hta/nccl_a100_rank0_of_2", "hta/resnet_v100_5_steps", "tracelens/h100_qwen05b", "param/resnet"):
        path = corpus / f"kineto/{name}.json.gz"
        alone = ranks.read(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("diagnose.source.kineto.WORTH_WORKERS_BYTES", 0)
            assert same(ranks.read(path), alone), name


def test_times_are_relative_to_the_first_event_and_unix_time_is_kept(tmp_path: Path) -> None:
    text = training().text()
    based = text.replace('"schemaVersion": 1', '"schemaVersion": 1, "baseTimeNanoseconds": 1711964646000000000')
    at_end = text[:-1] + ', "baseTimeNanoseconds": 1711964646000000000}'
    assert read(tmp_path, text).zero_unix_ns == 1_000_000
    assert read(tmp_path, based).zero_unix_ns == 1711964646001000000
    assert read(tmp_path, at_end).zero_unix_ns == 1711964646001000000


@pytest.mark.parametrize("first", ["1712170274000000.123", "7889237999999.987", "1000.001", "12"])
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, first: str) -> None:
    """Up to the 19 digits of kineto's absolute times of spring 2024, which no double holds."""
    offsets = ["0.000", "0.001", "0.999", "1.000", "12345.678", "86399.999"]
    stamps = [Decimal(first) + Decimal(offset) for offset in offsets]
    events = ",".join(f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{ts},"dur":0.001}}' for ts in stamps)
    found = read(tmp_path, f'{{"traceEvents":[{events}]}}')
    assert found.spans["start_ns"].tolist() == [int(Decimal(offset) * 1000) for offset in offsets]
    assert found.spans["dur_ns"].tolist() == [1] * 6
    assert found.zero_unix_ns == int(Decimal(first) * 1000)
    assert found.provenance.resolution_ns == 1


def test_categories_and_keys_of_2020() -> None:
    found = ranks.read(Path(__file__).parents[1] / "data" / "kineto_2020.json")
    assert sorted(found.spans["kind"]) == ["kernel", "memcpy", "memory", "memset", "op", "python", "runtime"]
    assert found.links[["from_id", "to_id"]].to_numpy().tolist() == [
        [found.spans.index[found.spans["kind"] == kind][0] for kind in ("runtime", "kernel")]
    ]
    assert found.spans["external_id"][found.spans["kind"] == "runtime"].tolist() == [4]
    assert found.ops["shapes"].tolist() == ["[[2, 3], [3, 4]]"]
    assert found.tracks["stream"].tolist() == [-1, 7, -1] or set(found.tracks["stream"]) == {-1, 7}
    assert found.memory["allocated_bytes"].tolist() == [-1]


def test_every_column_of_a_kernel() -> None:
    sizes: dict[str, Any] = {"grid": [8, 4, 2], "block": [128, 2, 1], "registers per thread": 40, "shared memory": 4096}
    more: dict[str, Any] = {"est. achieved occupancy %": 62, "graph id": 3}
    (row,) = (
        Drawing().launch("k", (1, 2), (5, 9), stream=20, device=1, **sizes, **more).rank().kernels.to_dict("records")
    )
    grid = {"grid_x": 8, "grid_y": 4, "grid_z": 2, "block_x": 128, "block_y": 2, "block_z": 1}
    rest = {"registers": 40, "shared_bytes": 4096, "occupancy": 0.62, "graph_id": 3}
    assert row == {"device": 1, "stream": 20, **grid, **rest}
    (row,) = Drawing().work("k", (5, 9), **{"est. achieved occupancy %": -100}).rank().kernels.to_dict("records")
    assert (row["registers"], row["shared_bytes"], row["grid_x"]) == (-1, -1, 0)  # Unknown.
    assert row["occupancy"] != row["occupancy"]


def test_grids_in_work_items_become_blocks() -> None:
    draw = Drawing(hip_runtime_version=60032830)
    draw.launch("Cijk_x", (1, 2), (5, 9), api="hipExtModuleLaunchKernel", grid=[250880, 1, 1], block=[256, 1, 1])
    draw.launch("triton_poi_x", (3, 4), (9, 12), api="hipModuleLaunchKernel", grid=[64, 1, 1], block=[256, 1, 1])
    found = draw.rank()
    assert found.kernels["grid_x"].tolist() == [980, 64]
    assert found.provenance.backend == "rocm"


def test_copies_syncs_and_collectives() -> None:
    draw = Drawing().copy("DtoH (Device -> Pinned)", (1, 2), (5, 9), 123)
    waits_on: dict[str, Any] = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 1, "correlation": 99}
    kind = "Stream Wait Event"
    draw.work(kind, (10, 10), cat="cuda_sync", stream=20, cuda_sync_kind=kind, **waits_on)
    said: dict[str, Any] = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1024}
    said |= {"Out msg nelems": 2048, "Group size": 8, "Process Group Description": "mesh_dp"}
    group = {"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}
    draw.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", (11, 12), (15, 30), stream=20, **said, **group, Seq=17)
    found = draw.rank()
    assert found.copies.to_dict("records") == [
        {"device": 0, "stream": 7, "bytes": 123, "direction": "DtoH", "host_memory": "pinned"}
    ]
    assert found.syncs.to_dict("records") == [
        {"sync_kind": "stream_wait_event", "stream": 20, "wait_on_stream": 7, "wait_on_correlation": 1}
    ]
    grouped = {"group": "", "group_ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "group_description": "mesh_dp", "group_size": 8}
    moved = {"dtype": "BFloat16", "in_elements": 1024, "out_elements": 2048}
    told = {"operation": "allreduce", **grouped, "sequence": 17, "peer": -1, **moved}
    assert found.collectives.to_dict("records") == [told]
    waits = found.links[found.links["kind"] == "waits_for"]
    assert found.spans["name"][waits["from_id"]].tolist() == ["cudaMemcpyAsync"]
    assert found.spans["kind"][waits["to_id"]].tolist() == ["sync"]


def test_a_sync_row_of_2026_is_on_its_stream() -> None:
    draw = Drawing().launch("k", (1, 2), (5, 9))
    place = {"pid": 0, "tid": 1_000_007, "ts": 10, "dur": 1}
    sync = {"cat": "cuda_sync", "name": "Stream Sync", "args": {"cuda_sync_kind": "Stream Sync"}}
    draw.events.append({"ph": "X", **sync, **place})
    found = draw.rank()
    assert found.tracks["stream"][found.spans["track"][found.syncs.index]].tolist() == [7]


def test_ops_sequences_and_forward_links() -> None:
    draw = Drawing()
    inputs: dict[str, Any] = {"Input Dims": [[2], []], "Input type": ["float", ""], "Input Strides": [[1], []]}
    forward: dict[str, Any] = {"Sequence number": 5, "Fwd thread id": 0}
    draw.op("aten::linear", 0, 10, **inputs, **forward, **{"Concrete Inputs": ["", "[0]"]})
    draw.op("aten::addmm", 1, 9, **forward)
    draw.op("AddmmBackward0", 20, 30, tid=7, **{"Sequence number": 5, "Fwd thread id": 1, "finished": "false"})
    found = draw.rank()
    shown = {"shapes": "[[2], []]", "dtypes": '["float", ""]', "strides": "[[1], []]", "scalars": "", "stack": ""}
    assert found.ops.to_dict("records")[0] == {**shown, "sequence": 5, "forward_thread": 0, "finished": True}
    assert found.ops["finished"].tolist() == [True, True, False]
    assert found.links.to_dict("records") == [{"from_id": 1, "to_id": 2, "kind": "forward_of"}]


def test_numbers_are_kept_of_ops_that_compute_by_them() -> None:
    draw = Drawing()
    draw.op("aten::convolution", 0, 10, **{"Concrete Inputs": ["", "", "[2, 2]"]})
    draw.op("aten::empty", 11, 12, **{"Concrete Inputs": ["[8, 8]", "6"]})
    assert draw.rank().ops["scalars"].tolist() == ['["", "", "[2, 2]"]', ""]


def test_a_span_s_place_is_its_category_s_not_its_pid_s() -> None:
    """In containers process ids reach down to the device ordinals."""
    draw = Drawing().launch("k", (1, 2), (5, 9))
    for event in draw.events:
        event["pid"] = 0
    found = draw.rank()
    devices = found.tracks["device"][found.spans["track"]]
    assert dict(zip(found.spans["kind"], devices, strict=True)) == {"runtime": -1, "kernel": 0}


def test_odd_ids_numbers_categories_and_keys_do_no_harm(tmp_path: Path) -> None:
    draw = training()
    plain = len(draw.rank().spans)
    draw.span("brand_new", "x", 5, 6, tid=-3).span(
        "cpu_op", "y", 5, 6, tid="pt_autograd_0", **{"Input Dims": "none", "grid": "(1,)"}
    )
    odd: dict[str, Any] = {"grid": "oops", "bytes": None, "registers per thread": "<unsupported metadata type>"}
    odd |= {"shared memory": 1 << 70, "est. achieved occupancy %": "inf"}
    draw.launch("z", (7, 8), (9, 10), **odd)
    draw.op("w", 5, 6, **{"Sequence number": "12", "External id": 1 << 63, "args": [{"ph": "X", "name": "}, {"}]})
    found = draw.rank()
    assert len(found.spans) == plain + 5
    assert "other" in set(found.spans["kind"])
    assert {"-3", "pt_autograd_0"} <= set(found.tracks["thread"])
    row = found.kernels.iloc[0]
    assert (row["registers"], row["shared_bytes"], row["grid_x"]) == (-1, -1, 0)
    assert 12 in found.ops["sequence"].tolist()


def test_names_of_threads() -> None:
    draw = training()
    draw.events.append(
        {"ph": "M", "name": "thread_name", "pid": MAIN, "tid": MAIN, "ts": 0, "args": {"name": "thread 100 (python3)"}}
    )
    found = draw.rank()
    assert "thread 100 (python3)" in set(found.tracks["name"])


def test_devices_are_those_that_worked() -> None:
    memory = {"totalGlobalMem": 85_000_000_000, "maxThreadsPerMultiprocessor": 2048, "warpSize": 32}
    known = {"computeMajor": 9, "computeMinor": 0, "numSms": 132, **memory}
    devices = [{"id": k, "name": f"NVIDIA H100 {k}", **known} for k in range(8)]
    (device,) = Drawing(deviceProperties=devices).launch("k", (1, 2), (5, 9), device=5).rank().provenance.devices
    assert (device.index, device.name, device.multiprocessors) == (5, "NVIDIA H100 5", 132)
    assert device.compute_capability == (9, 0)


@pytest.mark.parametrize(
    ("names", "found"), [(["MI300X"], [(2, "MI300X")]), (["A100", "A100"], [(2, "A100")]), (["A100", "T4"], [])]
)
def test_a_device_that_is_not_listed_is_like_the_others(names: list[str], found: list[tuple[int, str]]) -> None:
    """As in a container, where kernels run on device 2 of a machine and device 0 of the list."""
    listed = [{"id": k, "name": name} for k, name in enumerate(names)]
    devices = Drawing(deviceProperties=listed).launch("k", (1, 2), (5, 9), device=2).rank().provenance.devices
    assert [(device.index, device.name) for device in devices] == found


def test_the_python_writer_of_torch_2_13_puts_the_sm_count_elsewhere() -> None:
    odd = {"id": 0, "name": "\x1b[2J" + "x" * 1000, "maxThreadsPerMultiprocessor": 132}
    (device,) = Drawing(deviceProperties=[odd]).work("k", (5, 9)).rank().provenance.devices
    assert (device.multiprocessors, device.max_threads_per_multiprocessor) == (132, 0)
    assert device.name == "\\x1b[2J" + "x" * 196  # printable and short


def test_versions_are_readable_and_ranks_below_zero_unknown() -> None:
    provenance = Drawing(distributedInfo={"rank": -1, "world_size": -1}).op("x", 0, 1).rank().provenance
    assert (provenance.rank, provenance.world_size) == (None, None)
    of_makers = {"cuda_runtime_version": 12040, "cupti_version": 24, "hip_runtime_version": 60032830}
    draw = Drawing(**of_makers, distributedInfo={"nccl_version": "2.21.5"})
    versions = draw.work("k", (0, 1)).rank().provenance.versions
    assert versions == {"cuda_runtime": "12.4", "cupti": "24", "hip_runtime": "6.0.32830", "nccl": "2.21.5"}


def test_names_are_made_printable_and_stay_distinct() -> None:
    draw = Drawing().op("a\x1b[31m\n", 0, 1).op("\u202egnp", 2, 3).op("schön 漢字 🙂", 4, 5).op("\ud800x", 6, 7)
    assert draw.rank().spans["name"].tolist() == ["a\\x1b[31m\\n", "\\u202egnp", "schön 漢字 🙂", "\\ud800x"]


REAL = ("hta", "param", "tensorboard", "tracelens")


@pytest.mark.parametrize("folder", REAL)
def test_real_traces_agree_with_a_plain_reader(corpus: Path, folder: str) -> None:
    """Spans, total durations in ns and launches, against json.load and dictionaries."""
    for path in sorted((corpus / "kineto" / folder).rglob("*.json*")):
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        document = json.loads(text.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
        events = document if isinstance(document, list) else document["traceEvents"]
        found = ranks.read(path)
        count, length, launches = plain(events)
        kinds = (
            found.spans["kind"].astype(str).replace(dict.fromkeys(("loader", "collective", "annotation", "op"), "host"))
        )
        assert Counter(kinds) == count, path
        assert found.spans["dur_ns"].groupby(kinds).sum().to_dict() == length, path
        assert int((found.links["kind"] == "launch").sum()) == launches, path


SAME = {"cpu_op": "host", "user_annotation": "host", "Operator": "host", "kernel": "kernel", "Kernel": "kernel"}
SAME |= {"gpu_memcpy": "memcpy", "Memcpy": "memcpy", "gpu_memset": "memset", "Memset": "memset"}
SAME |= {"cuda_runtime": "runtime", "Runtime": "runtime", "cuda_driver": "driver", "cuda_sync": "sync"}
SAME |= {"python_function": "python", "overhead": "overhead", "gpu_user_annotation": "gpu_annotation"}


def plain(events: list[dict[str, Any]]) -> tuple[Counter[str], dict[str, int], int]:
    """Spans and ns per kind, and device operations whose correlation a call has."""
    count: Counter[str] = Counter()
    length: Counter[str] = Counter()
    calls, work = set(), []
    for event in events:
        category = event.get("cat", "")
        if event.get("ph") == "i" and event["name"] == "[memory]":
            count["memory"] += 1
            length["memory"] += 0
        if event.get("ph") != "X" or category in ("Trace", "cuda_profiler_range", "cuda_event"):
            continue
        kind = SAME.get(category, "other")
        count[kind] += 1
        length[kind] += int(event["dur"] * 1000)
        correlation = (event.get("args") or {}).get("correlation", -1)
        if kind in ("runtime", "driver"):
            calls.add(correlation)
        elif kind in ("kernel", "memcpy", "memset"):
            work.append(correlation)
    return count, dict(length), sum(one in calls and one > 0 for one in work)


def test_a_span_without_a_sound_duration_is_noted(tmp_path: Path) -> None:
    good = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 5, "dur": 2}
    memory = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 6, "args": {"Bytes": 4, "Device Type": 0}}
    for bad, count in (({}, 1), ({"dur": None}, 1), ({"dur": "abc"}, 1), ({"dur": "nan"}, 1), ({"dur": "3.5"}, 0)):
        odd = {**{key: good[key] for key in good if key != "dur"}, "name": "b", **bad}
        found = read(tmp_path, json.dumps([good, odd, memory]))
        assert found.spans["dur_ns"].tolist() == [2000, 0 if count else 3500, 0]
        noted = [note.what for note in found.integrity if "had no duration" in note.what]
        assert noted == ["1 events had no duration or a negative one, taken as 0."] * count


@pytest.mark.parametrize(
    "stamp", ["1e99999999", "9e18", "-5.5", '"sNaN"', '"NaN"', '"Infinity"', "null", "9999999999999999.5"]
)
def test_a_time_that_is_none_among_absolute_ones_costs_its_event(tmp_path: Path, stamp: str) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"dur":1,"ts":%s}'
    found = read(tmp_path, f"[{event % '1712170274000000.123'}, {event % stamp}, {event % '1712170274000001.124'}]")
    assert found.spans["start_ns"].tolist() == [0, 1001]
    assert any("1 events had no usable time" in note.what for note in found.integrity)


@pytest.mark.parametrize("base", [-1, 1 << 62, 1 << 70, "x", [], 1e300])
def test_a_base_time_that_can_be_none_is_noted(tmp_path: Path, base: Any) -> None:
    found = read(tmp_path, json.dumps({"baseTimeNanoseconds": base, "traceEvents": training().events}))
    assert found.zero_unix_ns == 1_000_000
    assert "The header value baseTimeNanoseconds could not be read." in [note.what for note in found.integrity]


def test_a_garbage_collection_alone_is_no_call_stack() -> None:
    """record_python_gc_info writes collections as Python frames, also where no stacks were asked for."""
    draw = Drawing().op("aten::mm", 0, 10).frame("Python GC", 20, 30)
    assert "stacks" not in draw.rank().provenance.recorded
    draw.frame("train.py(3): main", 0, 40)
    assert "stacks" in draw.rank().provenance.recorded
