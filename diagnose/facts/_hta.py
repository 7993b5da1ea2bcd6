"""The bridge to HolisticTraceAnalysis (package `traceinsight`, module `hta`): our tables as its parsed trace.

The frames are those of HTA's own loader in its default configuration, but for this:

- HTA moves starts up and ends down to whole us, from doubles that cannot hold every ns; here from exact ns, so a time
  may differ by 1 us. HTA_DISABLE_NS_ROUNDING=1 keeps the ns here too. Ranks are aligned by Unix time.
- `index` is the span id plus 1 (HTA takes a partner at index 0 for none), not the place in the file. So what HTA writes
  onto the trace it writes onto one made of our tables.
- Categories have the names they have since 2022; one that no `SpanKind` stands for becomes "other".
- Host events are on stream -1. HTA believes the stream that Triton ops and HIP calls may record, and takes them for
  device work. Work on stream 0 has an iteration, which HTA leaves empty. `end` counts from the first event, as `ts`.
- Shapes and types are JSON text. A copy's bandwidth is its size over its recorded duration. What our tables do not hold
  (Python ids, strides, split sizes, the size of memsets) has HTA's default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.facts.core.base import Missing
from diagnose.trace import kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.model import Rank, Run

Array = npt.NDArray[Any]
_NUMBER = re.compile("-?[0-9]{1,18}")

CATEGORIES = {
    SpanKind.OP: "cpu_op",
    SpanKind.RUNTIME: "cuda_runtime",
    SpanKind.DRIVER: "cuda_driver",
    SpanKind.KERNEL: "kernel",
    SpanKind.MEMCPY: "gpu_memcpy",
    SpanKind.MEMSET: "gpu_memset",
    SpanKind.SYNC: "cuda_sync",
    SpanKind.ANNOTATION: "user_annotation",
    SpanKind.LOADER: "user_annotation",
    SpanKind.COLLECTIVE: "user_annotation",
    SpanKind.GPU_ANNOTATION: "gpu_user_annotation",
    SpanKind.PYTHON: "python_function",
    SpanKind.OVERHEAD: "overhead",
}
"""Kind -> Kineto's category, except that every span in `ops` is a "cpu_op"."""

ARGUMENTS = {
    "bytes": ("copies", "bytes"),
    "wait_on_stream": ("syncs", "wait_on_stream"),
    "wait_on_cuda_event_record_corr_id": ("syncs", "wait_on_correlation"),
    "input_dims": ("ops", "shapes"),
    "input_type": ("ops", "dtypes"),
    "collective_name": ("collectives", "operation"),
    "in_msg_nelems": ("collectives", "in_elements"),
    "out_msg_nelems": ("collectives", "out_elements"),
    "msg_dtype": ("collectives", "dtype"),
    "group_size": ("collectives", "group_size"),
}
"""HTA's column -> our side table and its column."""


def to_hta(run: Run) -> Any:
    """A filled `hta.trace_analysis.TraceAnalysis` of the run. Raises Missing if HTA is not installed."""
    try:
        from hta.common.trace import Trace
        from hta.common.trace_parser import infer_gpu_type
        from hta.trace_analysis import TraceAnalysis
    except ImportError:
        raise Missing("HolisticTraceAnalysis", "Install torch-diagnose[hta].") from None
    # A whole number of us, so that rounding to whole us is not affected.
    base_ns = min((rank.zero_unix_ns for rank in run.ranks), default=0) // 1000 * 1000
    trace = Trace(trace_files={})
    for rank in run.ranks:
        frame = _frame(rank, base_ns, trace.symbol_table)
        if len(frame):
            trace.traces[rank.index] = frame
            trace.trace_files[rank.index] = rank.provenance.path
            device_type = infer_gpu_type(None, trace.symbol_table.get_sym_id_map())
            trace.meta_data[rank.index] = {"baseTimeNanoseconds": base_ns, "device_type": device_type}
    trace.align_and_filter_trace()
    for frame in trace.traces.values():
        frame["end"] = frame["ts"] + frame["dur"]
        frame.index = pd.Index(frame["index"].to_numpy())
    trace.get_raw_trace_for_one_rank = _raw_traces(run, base_ns)
    trace.is_parsed = True
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = trace
    return analysis


def _frame(rank: Rank, base_ns: int, symbols: Any) -> pd.DataFrame:
    """The rank as HTA's parser leaves it. Its names and categories are added to the symbol table."""
    from hta.common.trace import transform_correlation_to_index
    from hta.configs.parser_config import ParserConfig

    frame = _events(rank)
    frame["ts"], frame["dur"] = _times(rank, base_ns)
    frame["end"] = frame["ts"] + frame["dur"]
    for argument in ParserConfig.get_default_cfg().get_args():
        if argument.name in ARGUMENTS:
            table, column = ARGUMENTS[argument.name]
            frame[argument.name] = _spread(getattr(rank, table)[column], len(frame), argument.default_value)
        elif argument.name not in frame:
            frame[argument.name] = argument.default_value
    dur_ns = rank.spans["dur_ns"].to_numpy()[rank.copies.index]
    bandwidth = np.zeros(len(frame))
    bandwidth[rank.copies.index] = np.where(dur_ns > 0, rank.copies["bytes"] / np.maximum(dur_ns, 1), 0)  # B/ns = GB/s
    frame["memory_bw_gbps"] = bandwidth
    # HTA reads no instants. Where it takes the i-th or the last row: Kineto writes the annotations on devices last.
    last = frame["cat"] == CATEGORIES[SpanKind.GPU_ANNOTATION]
    frame = pd.concat([frame[~last & (rank.spans["kind"] != SpanKind.MEMORY.value).to_numpy()], frame[last]])
    for column in ("cat", "name"):
        codes, labels = pd.factorize(frame[column])
        symbols.add_symbols(labels)
        frame[column] = np.array([symbols.get_sym_id_map()[label] for label in labels])[codes]
    linked: pd.DataFrame = transform_correlation_to_index(frame, symbols)
    return linked.assign(iteration=_iterations(linked, symbols.get_sym_table()))


def _events(rank: Rank) -> pd.DataFrame:
    """Every span, labelled by HTA's index, with what does not depend on HTA's times."""
    spans, tracks = rank.spans, rank.tracks
    category = np.array([CATEGORIES.get(kind, "other") for kind in SpanKind], dtype=object)[spans["kind"].cat.codes]
    category[rank.ops.index] = "cpu_op"
    track = spans["track"].to_numpy()
    thread = np.where(tracks["device"] >= 0, tracks["stream"].astype(str), tracks["thread"])
    stream = tracks["stream"].to_numpy()[track]
    stream[~spans["kind"].isin([SpanKind.KERNEL.value, SpanKind.MEMCPY.value, SpanKind.MEMSET.value])] = -1
    stream[rank.syncs.index] = rank.syncs["stream"]
    columns = {
        "index": np.arange(1, len(spans) + 1),
        "cat": category,
        "name": spans["name"].array,
        "pid": _numbers(tracks["process"])[track],
        "tid": _numbers(thread)[track],
        "stream": stream,
        "correlation": spans["correlation"].array,
        "external_id": spans["external_id"].array,
    }
    return pd.DataFrame(columns, index=columns["index"])


def _numbers(texts: Iterable[str]) -> Array:
    return np.array([int(text) if _NUMBER.fullmatch(text) else text for text in texts], dtype=object)


def _times(rank: Rank, base_ns: int) -> tuple[Array, Array]:
    """Start and duration in us. What lasts under 1 us may get -1, as in HTA."""
    from hta.configs.env_options import disable_ns_rounding

    start = rank.spans["start_ns"].to_numpy() + (rank.zero_unix_ns - base_ns)
    dur = rank.spans["dur_ns"].to_numpy()
    if disable_ns_rounding() and rank.provenance.resolution_ns < 1000:
        return start / 1000, dur / 1000
    ts = -(-start // 1000)
    return ts, ((start + dur) // 1000 - ts).astype(np.float64)


def _spread(column: pd.Series[Any], count: int, default: Any) -> Array:
    """One value for each event: the column's at its ids, `default` at all others."""
    values = column.to_numpy()
    if isinstance(column.dtype, pd.CategoricalDtype):
        values = np.where(values == "", default, values)
    spread = np.full(count, default, dtype=values.dtype)
    spread[column.index] = values
    return spread


def _iterations(frame: pd.DataFrame, names: list[str]) -> Array:
    """Number of the last `ProfilerStep#` row that a host event starts in; device work has its launch's; else -1."""
    ts = frame["ts"].to_numpy()
    order = np.argsort(ts, kind="stable")
    iteration = np.full(len(frame), -1, dtype=np.int64)
    steps = frame[frame["name"].isin([code for code, name in enumerate(names) if name.startswith("ProfilerStep#")])]
    for code, start, dur in zip(steps["name"], steps["ts"], steps["dur"], strict=True):
        first, last = np.searchsorted(ts, [start, start + dur], sorter=order)
        iteration[order[first:last]] = kinds.step_number(names[code]) or 0
    of_launch = pd.Series(iteration, index=frame.index).reindex(frame["index_correlation"]).fillna(-1)
    return np.where(frame["stream"] >= 0, of_launch, iteration).astype(np.int64)


def _raw_traces(run: Run, base_ns: int) -> Callable[..., dict[str, Any]]:
    """Stands in for HTA's method of that name: a Chrome trace of a rank, whose event k has index k. HTA marks it."""
    ranks = {rank.index: rank for rank in run.ranks}

    def raw_trace(rank: int = 0) -> dict[str, Any]:
        """One rank as the Chrome trace that HTA would have parsed."""
        tables, spans = ranks[rank], ranks[rank].spans
        start_us = (spans["start_ns"].to_numpy() + (tables.zero_unix_ns - base_ns)) / 1000
        frame = _events(tables).assign(ts=start_us, dur=spans["dur_ns"].to_numpy() / 1000)
        args = frame[["external_id", "correlation", "stream"]].to_dict("records")
        # HTA puts its legend on the event that Kineto gives this name.
        legend: dict[Any, Any] = {"name": "PyTorch Profiler (0)", "pid": "Spans", "tid": 0, "ts": 0, "dur": 0}
        events = [legend, *frame[["name", "cat", "pid", "tid", "ts", "dur"]].to_dict("records")]
        return {"traceEvents": [{"ph": "X", **e, "args": a} for e, a in zip(events, [{}, *args], strict=True)]}

    return raw_trace
