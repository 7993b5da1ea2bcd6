"""From a reader's columns to a Rank: one clock, sorted tables, tracks, links and steps. The same for every format."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from diagnose.source import beside, clock, integrity, joins
from diagnose.source.base import Damage, InputError
from diagnose.source.columns import DEVICE_WORK, ON_DEVICE, Array, Columns, Vocabulary, is_kind, matched, printable
from diagnose.source.header import Header
from diagnose.source.tables import category, sampled_lines, side_tables
from diagnose.storage.remote import Place
from diagnose.trace import enums, kinds, schema, steps
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.model import Device, Provenance, Rank


class Recording(Struct):
    """One file as read, before it becomes a Rank."""

    path: Place
    format: str
    events: int
    header: Header
    columns: Columns
    damage: Damage


def assemble(recording: Recording) -> Rank:
    """The Rank of a recording. Raises InputError when no event in it has a time."""
    columns = recording.columns
    if not columns.rows:
        raise InputError(f"{recording.path} has no timed events, so there is nothing to analyse.")
    raw = {name: _joined(columns.spans, name) for name in list(columns.spans)}
    working = is_kind(raw["kind"], DEVICE_WORK)
    times = clock.to_ns(raw.pop("ts_ns"), raw.pop("dur_us"), working, recording.header.base_ns, recording.damage)
    if not times.keep.any():
        raise InputError(f"{recording.path} has no event with a valid time, so there is nothing to analyse.")
    tracks, track_of = _tracks(columns)
    on_device = is_kind(raw["kind"], ON_DEVICE)
    raw["track"] = np.where(on_device, raw["track"] + len(columns.host_tracks), raw["track"])
    raw["track"] = track_of[raw["track"]]
    raw |= {"start_ns": times.start_ns, "dur_ns": times.dur_ns}
    clock.clip(raw, times.keep, working, recording.damage)
    labels = columns.names.labels()
    times = _aligned(raw, times, tracks, labels, recording.damage)
    raw["start_ns"] = times.start_ns
    told = beside.told(beside.Told(raw, times.keep, labels))
    raw = told.raw
    order = clock.order(raw, told.keep, recording.damage)
    raw = {name: values[order] for name, values in raw.items()}
    origin_ns = times.zero_unix_ns - recording.header.base_ns
    recording.damage.outside_window = clock.outside(raw["start_ns"], columns.windows, origin_ns)
    id_of = np.full(len(told.keep), -1, dtype=np.int64)
    id_of[order] = np.arange(len(order))
    spans = _spans(raw, told.names)
    links = _links(spans, columns, id_of, recording.damage)
    marks = steps.find(spans, links)
    spans = spans.assign(step=_step_of(spans, links, marks.steps)).loc[:, list(schema.SPANS.columns)]
    tables = side_tables(columns, id_of, spans, tracks, links)
    if columns.samples:
        tables["lines"] = sampled_lines(columns, spans, track_of, origin_ns)
    for table in schema.TABLES:
        schema.check({"spans": spans, "tracks": tracks, "links": links, **tables}[table.name], table)
    provenance = _provenance(recording, spans, tracks, tables, marks.marker, times)
    return Rank(
        index=recording.header.rank or 0,
        zero_unix_ns=times.zero_unix_ns,
        spans=spans,
        tracks=tracks,
        links=links,
        steps=marks.steps,
        provenance=provenance,
        integrity=integrity.notes(recording.damage, spans, tables, links, marks.steps, provenance),
        context=None,
        peers=None,
        graph=None,
        values=None,
        varying=None,
        measured=None,
        **tables,
    )


def _joined(columns: dict[str, list[Array]], name: str) -> Array:
    """A whole column; its pieces are let go, so that memory holds one copy."""
    pieces = columns.pop(name)
    return np.concatenate(pieces) if len(pieces) != 1 else pieces[0]


def _aligned(
    raw: dict[str, Array], times: clock.Times, tracks: pd.DataFrame, labels: list[str], damage: Damage
) -> clock.Times:
    """The times on the clock of the host, as far as they show that a device's clock differs from it."""
    device = tracks["device"].to_numpy()[raw["track"]]
    damage.shifts = list(joins.shifts(joins.Events(raw, times.keep, device, labels)))
    if not damage.shifts:
        return times
    # CUPTI takes the times of synchronisations on the host: they lie within those of their calls.
    by_host = raw["kind"] == enums.code(SpanKind.SYNC)
    return clock.shifted(times, np.where(by_host, -1, device), damage.shifts)


def _spans(raw: dict[str, Array], names: list[str]) -> pd.DataFrame:
    name = category(raw["name"], names)
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
    becomes = {
        kinds.Activity.LOADER: enums.code(SpanKind.LOADER),
        kinds.Activity.COLLECTIVE: enums.code(SpanKind.COLLECTIVE),
        kinds.Activity.STEP: annotation,
        kinds.Activity.OPTIMIZER_STEP: annotation,
        kinds.Activity.ZERO_GRAD: annotation,
        kinds.Activity.GARBAGE_COLLECTION: annotation,
    }
    by_code = np.array([becomes.get(kinds.activity(label), -1) for label in name.categories], dtype=np.int8)
    target = by_code[name.codes]
    return np.where(host & (target >= 0), target, kind).astype(np.int8)


def _tracks(columns: Columns) -> tuple[pd.DataFrame, IntArray]:
    """The tracks table, and for each raw track code (host codes first, then device codes) its row."""
    rows = Vocabulary()
    host = [rows[printable(str(pid)), printable(str(tid)), -1, -1] for pid, tid in columns.host_tracks]
    device = [rows[_device_track(*key)] for key in columns.device_tracks]
    frame = pd.DataFrame(list(rows), columns=["process", "thread", "device", "stream"])
    frame["name"] = [printable(columns.thread_names.get((process, thread), "")) for process, thread, *_ in rows]
    text = {name: pd.Series(frame[name].tolist(), dtype="str") for name in ("process", "thread", "name")}
    frame = frame.assign(**text).astype({"device": np.int32, "stream": np.int64})
    return frame.loc[:, list(schema.TRACKS.columns)], np.array(host + device, dtype=np.int64)


_SYNC_ROW = 1_000_000
"""kineto since 2026-04 puts stream syncs on row stream + 1 000 000 (libkineto/src/CuptiActivity.h)."""


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


def _links(spans: pd.DataFrame, columns: Columns, id_of: IntArray, damage: Damage) -> pd.DataFrame:
    kind = spans["kind"].cat.codes.to_numpy()
    correlation = spans["correlation"].to_numpy()
    calls = np.flatnonzero(is_kind(kind, (SpanKind.RUNTIME, SpanKind.DRIVER)))
    launch = joins.launches(spans, damage)
    syncs = columns.side.get(SpanKind.SYNC)
    waits = forward = (np.zeros(0, dtype=np.int64),) * 2
    if syncs:
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


def _step_of(spans: pd.DataFrame, links: pd.DataFrame, marks: tuple[Any, ...]) -> Array:
    """Step of each span, int32: a host span's by its start, device work's by its launch, else -1.

    Where no launch is known, device work's is by its start, too.
    """
    step = steps.assign(marks, spans["start_ns"].to_numpy())
    kind = spans["kind"].cat.codes.to_numpy()
    launch = links[links["kind"] == LinkKind.LAUNCH.value]
    step[is_kind(kind, ON_DEVICE if len(launch) else (SpanKind.SYNC, SpanKind.GPU_ANNOTATION))] = steps.NO_STEP
    step[launch["to_id"].to_numpy()] = step[launch["from_id"].to_numpy()]
    return step.astype(np.int32)


def _provenance(
    recording: Recording,
    spans: pd.DataFrame,
    tracks: pd.DataFrame,
    tables: dict[str, pd.DataFrame],
    marker: str,
    times: clock.Times,
) -> Provenance:
    header = recording.header
    present = set(spans["kind"].unique())
    used = {int(device) for name in ("kernels", "copies") for device in tables[name]["device"].unique()}
    recorded = {
        "shapes": bool(len(tables["ops"]) and (tables["ops"]["shapes"] != "").any()),
        "stacks": _has_frames(spans) or bool((tables["ops"]["stack"] != "").any()),
        "memory": len(tables["memory"]) > 0,
        "sync_events": len(tables["syncs"]) > 0,
        "device": bool(present & {kind.value for kind in DEVICE_WORK}),
        "launches": SpanKind.RUNTIME.value in present or SpanKind.DRIVER.value in present,
        "ops": len(tables["ops"]) > 0,
        "samples": len(tables["lines"]) > 0,
    }
    return Provenance(
        path=str(recording.path),
        format=recording.format,
        bytes=recording.path.stat().st_size,
        events=recording.events,
        rank=header.rank,
        world_size=header.world_size,
        backend=_maker(recording, spans, tables) if recorded["device"] else "cpu",
        devices=tuple(_devices(header.devices, used)),
        recorded=frozenset(name for name, there in recorded.items() if there),
        resolution_ns=times.resolution_ns,
        versions=header.versions,
        step_marker=marker,
        groups=header.groups,
        python=kinds.names_python(recording.columns.process_name),
        begin_unix_ns=times.zero_unix_ns,
        end_unix_ns=times.zero_unix_ns + int((spans["start_ns"] + spans["dur_ns"]).max()),
        machine=header.machine,
        process=_process(spans, tracks),
        machine_devices=len(header.devices),
    )


def _process(spans: pd.DataFrame, tracks: pd.DataFrame) -> str:
    """The process with most spans on the host, if that is a number: rows of recorders have names."""
    owner = tracks["process"].to_numpy()[spans["track"].to_numpy()]
    on_host = tracks["device"].to_numpy()[spans["track"].to_numpy()] < 0
    counted = pd.Series(owner[on_host]).value_counts()
    return str(counted.index[0]) if len(counted) and str(counted.index[0]).isdigit() else ""


_CALLS_OF = {"rocm": re.compile("hip[A-Z]"), "cuda": re.compile("(cuda|cu)[A-Z]")}
_NAMES_OF = {"rocm": re.compile("AMD|Radeon|gfx"), "cuda": re.compile("NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN")}


def _maker(recording: Recording, spans: pd.DataFrame, tables: dict[str, pd.DataFrame]) -> str:
    """ "rocm" or "cuda", where the recorder, the device's name or a call of its API tells; else "unknown"."""
    header = recording.header
    kind = spans["kind"]
    calls = spans["name"][kind.isin([SpanKind.RUNTIME.value, SpanKind.DRIVER.value])].unique()
    told = {
        "rocm": header.rocm,
        # CUPTI alone knows registers; Nsight Systems records no other maker's devices.
        "cuda": recording.format == "nsight"
        or any("cu" in version for version in header.versions)
        or bool((tables["kernels"]["registers"] > 0).any()),
    }
    for maker, known in told.items():
        named = any(_NAMES_OF[maker].match(device.name) for device in header.devices)
        if known or named or any(_CALLS_OF[maker].match(str(name)) for name in calls):
            return maker
    return "unknown"


def _devices(listed: tuple[Device, ...], used: set[int]) -> Iterator[Device]:
    """Those that did work. One that is not listed, as in a container that shows a part, is like all others if these
    are alike.
    """
    kinds_listed = {replace(device, index=0) for device in listed}
    by_index = {device.index: device for device in listed}
    for index in sorted(used):
        if index in by_index:
            yield by_index[index]
        elif len(kinds_listed) == 1:
            yield replace(next(iter(kinds_listed)), index=index)


def _has_frames(spans: pd.DataFrame) -> bool:
    """Whether Python frames were recorded; torch writes garbage collections as frames too, also without stacks."""
    names = spans.loc[spans["kind"] == SpanKind.PYTHON.value, "name"].unique()
    return any(kinds.activity(str(name)) is not kinds.Activity.GARBAGE_COLLECTION for name in names)
