"""The tables of a rank, from a reader's columns.

Device work is joined to the calls that launched it: by correlation, else by the op of both, else by order.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from diagnose.source.base import Damage
from diagnose.source.columns import DEVICE_WORK, Array, Columns, Vocabulary, is_kind, matched, printable
from diagnose.trace import enums, kinds, sampling, schema
from diagnose.trace.enums import LinkKind, SpanKind, SyncKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, ApiKind, api_kind
from diagnose.trace.sampling import Samples


def _category(codes: Array, labels: Iterable[str]) -> pd.Categorical:
    """A categorical from codes into a list of labels that may repeat itself. Its categories include ""."""
    merged = Vocabulary({"": 0})
    target = np.fromiter((merged[label] for label in labels), np.int32)
    return pd.Categorical.from_codes(target[codes] if len(target) else codes, categories=pd.Index(list(merged)))


def spans_table(raw: dict[str, Array], names: list[str]) -> pd.DataFrame:
    """All spans but for their steps; `names` is the text of each code of the column `name`."""
    name = _category(raw["name"], names)
    kind = _kinds_by_name(raw["kind"], name)
    return pd.DataFrame(
        {
            "start_ns": raw["start_ns"],
            "dur_ns": raw["dur_ns"],
            "kind": pd.Categorical.from_codes(kind, dtype=schema.enum_dtype(SpanKind)),
            "name": name,
            "track": raw["track"].astype(np.int32),
            "correlation": raw["correlation"],
            "external_id": raw["external_id"],
        },
        copy=False,
    )


def _kinds_by_name(kind: Array, name: pd.Categorical) -> Array:
    """Kinds, with loader fetches, collectives and markers told from other ops and annotations by their name."""
    op, annotation = enums.code(SpanKind.OP), enums.code(SpanKind.ANNOTATION)
    host = (kind == op) | (kind == annotation)
    marks = (Activity.STEP, Activity.OPTIMIZER_STEP, Activity.ZERO_GRAD, Activity.GARBAGE_COLLECTION)
    becomes = dict.fromkeys(marks, annotation)
    becomes |= {Activity.LOADER: enums.code(SpanKind.LOADER), Activity.COLLECTIVE: enums.code(SpanKind.COLLECTIVE)}
    by_code = np.array([becomes.get(kinds.activity(label), -1) for label in name.categories], dtype=np.int8)
    target = by_code[name.codes]
    return np.where(host & (target >= 0), target, kind).astype(np.int8)


def tracks_table(columns: Columns) -> tuple[pd.DataFrame, IntArray]:
    """The tracks table, and for each raw track code (host codes first, then device codes) its row."""
    rows = Vocabulary()
    host = [rows[printable(str(pid)), printable(str(tid)), -1, -1] for pid, tid in columns.host_tracks]
    device = [rows[_device_track(*key)] for key in columns.device_tracks]
    frame = pd.DataFrame(list(rows), columns=["process", "thread", "device", "stream"])
    frame["name"] = [printable(columns.thread_names.get((process, thread), "")) for process, thread, *_ in rows]
    text = {name: pd.Series(frame[name].tolist(), dtype="str") for name in ("process", "thread", "name")}
    frame = frame.assign(**text).astype({"device": np.int32, "stream": np.int64})
    return frame.loc[:, list(schema.TRACKS.columns)], np.array(host + device, dtype=np.int64)


_SYNC_ROW = 1_000_000  # kineto since 2026-04: stream syncs are on row stream + 1 000 000 (CuptiActivity.h).


def _device_track(pid: object, tid: object, device: object, stream: object) -> tuple[str, str, int, int]:
    """(process, thread, device, stream) of device work: from its arguments, else from the row it is drawn on."""
    row = _digits(tid)
    in_stream = _digits(stream)
    if in_stream < 0:
        in_stream = row - _SYNC_ROW if row >= _SYNC_ROW else row
    on_device = _digits(device)
    if on_device < 0:
        on_device = _digits(pid)
    on_device, in_stream = min(max(on_device, 0), 1 << 30), min(max(in_stream, 0), 1 << 62)
    return str(on_device), f"stream {in_stream}", on_device, in_stream


def _digits(value: object) -> int:
    text = str(value).removeprefix("stream").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


def links_table(spans: pd.DataFrame, columns: Columns, id_of: IntArray, damage: Damage) -> pd.DataFrame:
    """The links between spans: launches, forward ops, waits. `id_of`: the span of each of the reader's rows, or -1."""
    kind, correlation = spans["kind"].cat.codes.to_numpy(), spans["correlation"].to_numpy()
    calls = np.flatnonzero(is_kind(kind, (SpanKind.RUNTIME, SpanKind.DRIVER)))
    launch = _launches(spans, calls, np.flatnonzero(is_kind(kind, DEVICE_WORK)), damage)
    waits = forward = (np.zeros(0, dtype=np.int64),) * 2
    if syncs := columns.side.get(SpanKind.SYNC):
        ids = id_of[np.concatenate(syncs["row"])]
        awaited = np.concatenate(syncs["wait_on_correlation"])[ids >= 0]
        waits = matched(calls, correlation[calls], ids[ids >= 0], awaited)
    if ops := columns.side.get(SpanKind.OP):
        forward = _forward_of(ops, id_of)
    parts = ((LinkKind.LAUNCH, launch), (LinkKind.FORWARD_OF, forward), (LinkKind.WAITS_FOR, waits))
    codes = np.repeat([enums.code(one) for one, _ in parts], [len(ids) for _, (ids, _) in parts])
    return pd.DataFrame(
        {
            "from_id": np.concatenate([pair[0] for _, pair in parts]),
            "to_id": np.concatenate([pair[1] for _, pair in parts]),
            "kind": pd.Categorical.from_codes(codes, dtype=schema.enum_dtype(LinkKind)),
        }
    )


def _forward_of(ops: dict[str, list[Array]], id_of: IntArray) -> tuple[IntArray, IntArray]:
    """(forward op, backward op) by sequence number: the last forward op of the number before the backward op."""
    ids = id_of[np.concatenate(ops["row"])]
    sequence, thread = np.concatenate(ops["sequence"]), np.concatenate(ops["forward_thread"])
    known = (ids >= 0) & (sequence >= 0)
    forward, backward = known & (thread <= 0), known & (thread > 0)
    order = np.lexsort((ids[forward], sequence[forward]))
    f_ids, f_seq = ids[forward][order], sequence[forward][order]
    big = np.int64(len(id_of) + 1)
    at = np.searchsorted(f_seq * big + f_ids, sequence[backward] * big + ids[backward]) - 1
    hit = at >= 0
    hit[hit] = f_seq[at[hit]] == sequence[backward][hit]
    return f_ids[at[hit]], ids[backward][hit]


_ASKED = {ApiKind.KERNEL_LAUNCH: "kernel", ApiKind.COPY: "memcpy", ApiKind.MEMSET: "memset"}  # Kinds of spans.


def _launches(spans: pd.DataFrame, calls: IntArray, work: IntArray, damage: Damage) -> tuple[IntArray, IntArray]:
    """(call ids, work ids) of device work with a known launch: by correlation; where work has none, by op or order."""
    correlation = spans["correlation"].to_numpy()
    call_of, work_of = matched(calls, correlation[calls], work, correlation[work])
    if (correlation[work] > 0).all():
        return call_of, work_of
    # Other work that names a call was launched by one that is not in the file.
    free_work = spans.iloc[np.setdiff1d(work[correlation[work] <= 0], work_of)]
    free_calls = spans.iloc[np.setdiff1d(calls, call_of)]
    what = free_calls["name"].map(lambda name: _ASKED.get(api_kind(name)))
    free_calls = free_calls.assign(what=what.astype(object))[what.notna()].rename_axis("call").reset_index()
    free_work = free_work.assign(what=free_work["kind"].astype(object)).rename_axis("work").reset_index()
    by_op = _by_op(free_calls, free_work)
    unpaired = free_calls[~free_calls["call"].isin(by_op["call"])], free_work[~free_work["work"].isin(by_op["work"])]
    found = pd.concat([by_op, _by_order(*unpaired)])
    damage.joined += len(found)
    return np.append(call_of, found["call"]).astype(np.int64), np.append(work_of, found["work"]).astype(np.int64)


def _by_op(calls: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """Pairs of calls and work of one op (External id), matched by their order; work does not start before its call."""
    keys = ["external_id", "what"]
    sides = [side[side["external_id"] > 0] for side in (calls, work)]
    numbered = [side.assign(place=side.groupby(keys).cumcount()) for side in sides]
    pairs = numbered[0].merge(numbered[1], on=[*keys, "place"])
    return pairs[pairs["start_ns_x"] <= pairs["start_ns_y"]]


def _by_order(calls: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """Pairs of the last calls and the last work on a single stream, if each work starts after its call; else none."""
    work, sure = work.tail(len(calls)), work["track"].nunique() == 1 and len(calls) <= len(work)
    pairs = calls.reset_index(drop=True).merge(work.reset_index(drop=True), left_index=True, right_index=True)
    sure &= bool(((pairs["what_x"] == pairs["what_y"]) & (pairs["start_ns_x"] <= pairs["start_ns_y"])).all())
    return pairs if sure else pairs.iloc[:0]


def side_tables(
    columns: Columns, id_of: IntArray, spans: pd.DataFrame, tracks: pd.DataFrame, links: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Every side table by name, labelled by span id; `id_of`: the span of each of the reader's rows, or -1."""
    side = {kind: _side(columns.side.pop(kind), id_of) for kind in list(columns.side)}
    kernels = side.get(SpanKind.KERNEL)
    copies = side.get(SpanKind.MEMCPY)
    syncs = side.get(SpanKind.SYNC)
    collectives = _side(columns.collectives, id_of) if columns.collectives else None
    for frame in (kernels, copies):
        if frame is not None:
            of_span = tracks.iloc[spans["track"].to_numpy()[frame.index]]
            frame["device"] = of_span["device"].to_numpy()
            frame["stream"] = of_span["stream"].to_numpy()
    if kernels is not None:
        percent = kernels["occupancy_percent"].to_numpy()  # -100 and the like: the recorder could not compute it.
        kernels["occupancy"] = np.where((percent >= 0) & (percent <= 100), percent / 100, np.nan)
        _work_items_to_blocks(kernels, spans, links)
    if copies is not None:
        names = spans["name"].cat
        codes = names.codes.to_numpy()[copies.index]
        for name, of_name in (("direction", kinds.copy_direction), ("host_memory", kinds.host_memory)):
            labels = np.array([enums.code(of_name(label)) for label in names.categories], dtype=np.int8)
            copies[name] = pd.Categorical.from_codes(labels[codes], dtype=schema.enum_dtype(type(of_name(""))))
    if syncs is not None:
        by_code = [enums.code(_SYNC_KINDS.get(label, SyncKind.UNKNOWN)) for label in columns.sync_kinds]
        codes = np.array(by_code, dtype=np.int8)[syncs["sync_kind"].to_numpy()]
        syncs["sync_kind"] = pd.Categorical.from_codes(codes, dtype=schema.enum_dtype(SyncKind))
    frames = {"kernels": kernels, "copies": copies, "syncs": syncs, "collectives": collectives, "lines": None}
    frames |= {"ops": side.get(SpanKind.OP), "memory": side.get(SpanKind.MEMORY)}
    known = [table for table in schema.TABLES if table.name in frames]
    return {table.name: _typed(frames[table.name], table, columns.texts) for table in known}


def sampled_lines(columns: Columns, spans: pd.DataFrame, track_of: IntArray, origin_ns: int) -> pd.DataFrame:
    """The table `lines` from a reader's samples. `origin_ns`: what 0 in the tables is in the reader's times."""
    found = columns.samples
    at = Samples(found["ts_ns"] - origin_ns, track_of[found["track"]], found["frame"], tuple(columns.frames))
    return sampling.lines(spans, at)


_SYNC_KINDS = {
    "Stream Sync": SyncKind.STREAM,
    "Context Sync": SyncKind.CONTEXT,
    "Event Sync": SyncKind.EVENT,
    "Stream Wait Event": SyncKind.STREAM_WAIT_EVENT,
}


def _side(columns: dict[str, list[Array]], id_of: IntArray) -> pd.DataFrame:
    """A side table by span id, in order of id; rows of spans that were dropped (id < 0) are left out."""
    ids = id_of[np.concatenate(columns.pop("row"))]
    order = np.argsort(ids, kind="stable")[np.count_nonzero(ids < 0) :]
    found = {name: np.concatenate(pieces)[order] for name, pieces in columns.items()}
    return pd.DataFrame(found, index=pd.Index(ids[order], name="id"), copy=False)


def _typed(frame: pd.DataFrame | None, table: schema.Table, texts: dict[str, Vocabulary]) -> pd.DataFrame:
    """The frame with exactly the columns and types of the schema; empty if it is None."""
    columns: dict[str, object] = {}
    index = pd.Index([], dtype=np.int64, name="id") if frame is None else frame.index
    for name, column in table.columns.items():
        values = np.zeros(0, dtype=np.int64) if frame is None else frame[name]
        if column.dtype == "names":
            columns[name] = _category(np.asarray(values), texts[name].labels() if name in texts else [])
        elif column.dtype in schema.ENUMS:
            dtype = schema.enum_dtype(schema.ENUMS[column.dtype])
            columns[name] = pd.Categorical([], dtype=dtype) if frame is None else values
        else:
            columns[name] = _cast(np.asarray(values), np.dtype(column.dtype))
    return pd.DataFrame(columns, index=index, copy=False)


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """The values in this type; integers are clipped to its range."""
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        values = np.clip(values, info.min, info.max)
    return values.astype(dtype)


def _work_items_to_blocks(kernels: pd.DataFrame, spans: pd.DataFrame, links: pd.DataFrame) -> None:
    """In place, divide the grid of HIP's module launches by the block: they record it in work-items."""
    launch = links[links["kind"] == LinkKind.LAUNCH.value]
    names = spans["name"].cat
    module_launch = np.flatnonzero([name.startswith("hipExtModuleLaunch") for name in names.categories])
    in_items = np.isin(names.codes.to_numpy()[launch["from_id"].to_numpy()], module_launch)
    rows = kernels.index.isin(launch["to_id"].to_numpy()[in_items])
    for axis in "xyz":
        block = np.maximum(kernels[f"block_{axis}"].to_numpy(), 1)
        grid = kernels[f"grid_{axis}"].to_numpy()
        kernels[f"grid_{axis}"] = np.where(rows, -(-grid // block), grid)
