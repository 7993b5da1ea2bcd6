"""The side tables of a rank, from a reader's columns."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from diagnose.source.columns import Array, Columns, Vocabulary
from diagnose.trace import enums, kinds, sampling, schema
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.sampling import Samples


def category(codes: Array, labels: Iterable[str]) -> pd.Categorical:
    """A categorical from codes into a list of labels that may repeat itself. Its categories include ""."""
    merged = Vocabulary({"": 0})
    target = np.fromiter((merged[label] for label in labels), np.int32)
    return pd.Categorical.from_codes(target[codes] if len(target) else codes, categories=pd.Index(list(merged)))


def side_tables(
    columns: Columns, id_of: IntArray, spans: pd.DataFrame, tracks: pd.DataFrame, links: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Every side table by name, labelled by span id; `id_of` gives the id of each of the reader's rows, or -1."""
    texts = columns.texts
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
        kernels["occupancy"] = _share(kernels["occupancy_percent"].to_numpy())
        _work_items_to_blocks(kernels, spans, links)
    if copies is not None:
        names = spans["name"].cat
        codes = names.codes.to_numpy()[copies.index]
        for name, of_name in (("direction", kinds.copy_direction), ("host_memory", kinds.host_memory)):
            labels = np.array([enums.code(of_name(label)) for label in names.categories], dtype=np.int8)
            copies[name] = pd.Categorical.from_codes(labels[codes], dtype=schema.enum_dtype(type(of_name(""))))
    if syncs is not None:
        by_code = [enums.code(_SYNC_KINDS.get(label, enums.SyncKind.UNKNOWN)) for label in columns.sync_kinds]
        codes = np.array(by_code, dtype=np.int8)[syncs["sync_kind"].to_numpy()]
        syncs["sync_kind"] = pd.Categorical.from_codes(codes, dtype=schema.enum_dtype(enums.SyncKind))
    frames = {
        "kernels": kernels,
        "copies": copies,
        "syncs": syncs,
        "collectives": collectives,
        "ops": side.get(SpanKind.OP),
        "memory": side.get(SpanKind.MEMORY),
        "lines": None,
    }
    tables = {table.name: table for table in schema.TABLES}
    return {name: _typed(frame, tables[name], texts) for name, frame in frames.items()}


def sampled_lines(columns: Columns, spans: pd.DataFrame, track_of: IntArray, origin_ns: int) -> pd.DataFrame:
    """The table `lines` from a reader's samples. `origin_ns`: what 0 in the tables is in the reader's times."""
    found = columns.samples
    at = Samples(found["ts_ns"] - origin_ns, track_of[found["track"]], found["frame"], tuple(columns.frames))
    return sampling.lines(spans, at)


_SYNC_KINDS = {
    "Stream Sync": enums.SyncKind.STREAM,
    "Context Sync": enums.SyncKind.CONTEXT,
    "Event Sync": enums.SyncKind.EVENT,
    "Stream Wait Event": enums.SyncKind.STREAM_WAIT_EVENT,
}


def _side(columns: dict[str, list[Array]], id_of: IntArray) -> pd.DataFrame:
    ids = id_of[np.concatenate(columns.pop("row"))]
    order = np.argsort(ids, kind="stable")[np.count_nonzero(ids < 0) :]
    found = {name: np.concatenate(pieces)[order] for name, pieces in columns.items()}
    return pd.DataFrame(found, index=pd.Index(ids[order], name="id"), copy=False)


def _typed(frame: pd.DataFrame | None, table: schema.Table, texts: dict[str, Vocabulary]) -> pd.DataFrame:
    columns: dict[str, object] = {}
    index = pd.Index([], dtype=np.int64, name="id") if frame is None else frame.index
    for name, column in table.columns.items():
        values = np.zeros(0, dtype=np.int64) if frame is None else frame[name]
        if column.dtype == "names":
            columns[name] = category(np.asarray(values), texts[name].labels() if name in texts else [])
        elif column.dtype in schema.ENUMS:
            dtype = schema.enum_dtype(schema.ENUMS[column.dtype])
            columns[name] = pd.Categorical([], dtype=dtype) if frame is None else values
        else:
            columns[name] = _cast(np.asarray(values), np.dtype(column.dtype))
    return pd.DataFrame(columns, index=index, copy=False)


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        values = np.clip(values, info.min, info.max)
    return values.astype(dtype)


def _share(percent: Array) -> Array:
    """Percent as a share; -100 and the like mean that the recorder could not compute it."""
    return np.where((percent >= 0) & (percent <= 100), percent / 100, np.nan)


def _work_items_to_blocks(kernels: pd.DataFrame, spans: pd.DataFrame, links: pd.DataFrame) -> None:
    """HIP's module launches record the grid in work-items: divide it by the block (trace-format survey, ROCm)."""
    launch = links[links["kind"] == LinkKind.LAUNCH.value]
    names = spans["name"].cat
    module_launch = np.flatnonzero([name.startswith("hipExtModuleLaunch") for name in names.categories])
    in_items = np.isin(names.codes.to_numpy()[launch["from_id"].to_numpy()], module_launch)
    rows = kernels.index.isin(launch["to_id"].to_numpy()[in_items])
    for axis in "xyz":
        block = np.maximum(kernels[f"block_{axis}"].to_numpy(), 1)
        grid = kernels[f"grid_{axis}"].to_numpy()
        kernels[f"grid_{axis}"] = np.where(rows, -(-grid // block), grid)
