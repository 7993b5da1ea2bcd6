"""From a reader's columns to a Rank: one clock, sorted tables, tracks, links and steps. The same for every format."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from diagnose.source import clock, integrity, lines
from diagnose.source.base import Damage, Header, InputError
from diagnose.source.columns import DEVICE_WORK, ON_DEVICE, Array, Columns, is_kind
from diagnose.source.tables import links_table, sampled_lines, side_tables, spans_table, tracks_table
from diagnose.storage.remote import Place
from diagnose.trace import enums, kinds, schema, steps
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.model import Device, Provenance, Rank


def assemble(path: Place, form: str, header: Header, columns: Columns, damage: Damage) -> Rank:
    """The Rank of a file. Empties `columns.spans`, adds to `damage`. Raises InputError if no event has a valid time."""
    if not columns.rows:
        raise InputError(f"{path} has no timed events, so there is nothing to analyse.")
    raw = {name: _joined(columns.spans, name) for name in list(columns.spans)}
    working = is_kind(raw["kind"], DEVICE_WORK)
    times = clock.to_ns(raw.pop("ts_ns"), raw.pop("dur_us"), working, header.base_ns, damage)
    if not times.keep.any():
        raise InputError(f"{path} has no event with a valid time, so there is nothing to analyse.")
    tracks, track_of = tracks_table(columns)
    on_device = is_kind(raw["kind"], ON_DEVICE)
    raw["track"] = track_of[np.where(on_device, raw["track"] + len(columns.host_tracks), raw["track"])]
    raw |= {"start_ns": times.start_ns, "dur_ns": times.dur_ns}
    clock.clip(raw, times.keep, working, damage)
    labels = columns.names.labels()
    times = _aligned(raw, times, tracks, labels, damage)
    raw["start_ns"] = times.start_ns
    rows = lines.marked(lines.Rows(raw, times.keep, labels))
    order = clock.order(rows.raw, rows.keep, damage)
    raw = {name: values[order] for name, values in rows.raw.items()}
    origin_ns = times.zero_unix_ns - header.base_ns
    damage.outside_window = clock.outside(raw["start_ns"], columns.windows, origin_ns)
    id_of = np.full(len(rows.keep), -1, dtype=np.int64)
    id_of[order] = np.arange(len(order))
    spans = spans_table(raw, rows.names)
    links = links_table(spans, columns, id_of, damage)
    marks = steps.find(spans, links)
    spans = spans.assign(step=_step_of(spans, links, marks.steps)).loc[:, list(schema.SPANS.columns)]
    tables: dict[str, Any] = side_tables(columns, id_of, spans, tracks, links)
    if columns.samples:
        tables["lines"] = sampled_lines(columns, spans, track_of, origin_ns)
    for table in schema.TABLES:
        schema.check({"spans": spans, "tracks": tracks, "links": links, **tables}[table.name], table)
    provenance = _provenance(path, form, header, columns, times, marks, tables | {"spans": spans, "tracks": tracks})
    return Rank(
        index=header.rank or 0,
        zero_unix_ns=times.zero_unix_ns,
        spans=spans,
        tracks=tracks,
        links=links,
        steps=marks.steps,
        provenance=provenance,
        integrity=integrity.notes(damage, spans, tables, links, marks.steps, provenance),
        **tables,
    )


def _provenance(
    path: Place,
    form: str,
    header: Header,
    columns: Columns,
    times: clock.Times,
    marks: steps.StepMarks,
    tables: dict[str, Any],
) -> Provenance:
    """Where the recording comes from and what it holds. `tables`: the rank's by name, without its links."""
    spans = tables["spans"]
    return Provenance(
        path=str(path),
        format=form,
        bytes=path.stat().st_size,
        events=columns.events,
        rank=header.rank,
        world_size=header.world_size,
        step_marker=marks.marker,
        resolution_ns=times.resolution_ns,
        versions=header.versions,
        groups=header.groups,
        python=kinds.names_python(columns.process_name),
        machine=header.machine,
        machine_devices=len(header.devices),
        begin_unix_ns=times.zero_unix_ns,
        end_unix_ns=times.zero_unix_ns + int((spans["start_ns"] + spans["dur_ns"]).max()),
        process=_process(spans, tables["tracks"]),
        **_recorded(form, header, spans, tables),
    )


def _joined(columns: dict[str, list[Array]], name: str) -> Array:
    """The pieces of a column as one array; they are taken out of `columns`, so that memory holds one copy."""
    pieces = columns.pop(name)
    return np.concatenate(pieces) if len(pieces) != 1 else pieces[0]


def _aligned(
    raw: dict[str, Array], times: clock.Times, tracks: pd.DataFrame, labels: list[str], damage: Damage
) -> clock.Times:
    """The times on the host's clock: a device's are shifted where they contradict it. Fills `damage.shifts`."""
    device = tracks["device"].to_numpy()[raw["track"]]
    damage.shifts = list(clock.shifts(clock.Events(raw, times.keep, device, labels)))
    if not damage.shifts:
        return times
    # CUPTI takes the times of synchronisations on the host: they lie within those of their calls.
    by_host = raw["kind"] == enums.code(SpanKind.SYNC)
    return clock.shifted(times, np.where(by_host, -1, device), damage.shifts)


def _step_of(spans: pd.DataFrame, links: pd.DataFrame, marks: tuple[Any, ...]) -> Array:
    """Position of each span's step in `marks`, int32: a host span's by its start, device work's by its launch; else -1.
    Where the file has no launch at all, that of kernels, copies and memsets is by their start, too."""
    step, kind = steps.assign(marks, spans["start_ns"].to_numpy()), spans["kind"].cat.codes.to_numpy()
    launch = links[links["kind"] == LinkKind.LAUNCH.value]
    step[is_kind(kind, ON_DEVICE if len(launch) else (SpanKind.SYNC, SpanKind.GPU_ANNOTATION))] = steps.NO_STEP
    step[launch["to_id"].to_numpy()] = step[launch["from_id"].to_numpy()]
    return step.astype(np.int32)


def _recorded(form: str, header: Header, spans: pd.DataFrame, tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """The fields `backend`, `devices` and `recorded` of Provenance."""
    present, ops = set(spans["kind"].unique()), tables["ops"]
    used = {int(device) for name in ("kernels", "copies") for device in tables[name]["device"].unique()}
    frames = spans.loc[spans["kind"] == SpanKind.PYTHON.value, "name"].unique()
    # torch writes garbage collections as frames too, also without stacks.
    stacks = any(kinds.activity(str(name)) is not kinds.Activity.GARBAGE_COLLECTION for name in frames)
    recorded = {
        "shapes": bool((ops["shapes"] != "").any()),
        "stacks": stacks or bool((ops["stack"] != "").any()),
        "memory": len(tables["memory"]) > 0,
        "sync_events": len(tables["syncs"]) > 0,
        "device": bool(present & {kind.value for kind in DEVICE_WORK}),
        "launches": SpanKind.RUNTIME.value in present or SpanKind.DRIVER.value in present,
        "ops": len(ops) > 0,
        "samples": len(tables["lines"]) > 0,
    }
    return {
        "backend": _maker(form, header, spans, tables) if recorded["device"] else "cpu",
        "devices": tuple(_devices(header.devices, used)),
        "recorded": frozenset(name for name, there in recorded.items() if there),
    }


def _process(spans: pd.DataFrame, tracks: pd.DataFrame) -> str:
    """The id of the process with most host spans, as text; "" if it is no number: rows of recorders have names."""
    owner = tracks["process"].to_numpy()[spans["track"].to_numpy()]
    on_host = tracks["device"].to_numpy()[spans["track"].to_numpy()] < 0
    counted = pd.Series(owner[on_host]).value_counts()
    return str(counted.index[0]) if len(counted) and str(counted.index[0]).isdigit() else ""


_CALLS_OF = {"rocm": re.compile("hip[A-Z]"), "cuda": re.compile("(cuda|cu)[A-Z]")}
_NAMES_OF = {"rocm": re.compile("AMD|Radeon|gfx"), "cuda": re.compile("NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN")}


def _maker(form: str, header: Header, spans: pd.DataFrame, tables: dict[str, pd.DataFrame]) -> str:
    """ "rocm" or "cuda", if the recorder, a device's name or a call of the API shows it; else "unknown"."""
    kind = spans["kind"]
    calls = spans["name"][kind.isin([SpanKind.RUNTIME.value, SpanKind.DRIVER.value])].unique()
    recorded = {
        "rocm": header.rocm,
        # CUPTI alone knows registers; Nsight Systems records no other maker's devices.
        "cuda": form == "nsight"
        or any("cu" in version for version in header.versions)
        or bool((tables["kernels"]["registers"] > 0).any()),
    }
    for maker, known in recorded.items():
        named = any(_NAMES_OF[maker].match(device.name) for device in header.devices)
        if known or named or any(_CALLS_OF[maker].match(str(name)) for name in calls):
            return maker
    return "unknown"


def _devices(listed: tuple[Device, ...], used: set[int]) -> Iterator[Device]:
    """Devices that did work. One that is not listed is taken to be like the listed ones, if those are alike."""
    kinds_listed = {replace(device, index=0) for device in listed}
    by_index = {device.index: device for device in listed}
    for index in sorted(used):
        if index in by_index:
            yield by_index[index]
        elif len(kinds_listed) == 1:
            yield replace(next(iter(kinds_listed)), index=index)
