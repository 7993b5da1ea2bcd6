"""What the host does, and what the recorder noted besides: ops, lines, synchronisations, memory, spans, links."""

from __future__ import annotations

import numpy as np
import pandas as pd

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.source_lines import sites_of, user_frames
from diagnose.facts.core.spans import host_spans, in_used_steps, require_ops
from diagnose.tables import schema
from diagnose.tables.frame import frame, places
from diagnose.tables.spans import names, rows_of, step_numbers, times, told, told_text
from diagnose.trace.enums import SpanKind


def ops(facts: Facts) -> pd.DataFrame:
    """The table `ops`. Raises Missing without ops."""
    require_ops(facts)
    calls, told_of = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.LOADER), facts.rank.ops
    ids, row = calls.ids, rows_of(told_of, calls.ids)
    inner = np.zeros(len(ids) + 1, dtype=np.int64)
    np.add.at(inner, calls.parents, calls.end_ns - calls.start_ns)
    return frame(
        schema.OPS,
        {
            "id": ids,
            "name": names(facts, ids),
            **times(facts, ids),
            "self_ns": np.maximum(calls.end_ns - calls.start_ns - inner[:-1], 0),
            "parent_id": np.append(ids, -1)[calls.parents],
            "step": step_numbers(facts, ids),
            "used": in_used_steps(facts, ids),
            "track": calls.track,
            **{name: told_text(told_of, name, row) for name in ("shapes", "dtypes", "strides")},
            "sequence": told(told_of, "sequence", row, -1),
            "finished": told(told_of, "finished", row, True),
            **places(sites_of(facts, ids)),
        },
    )


def lines(facts: Facts) -> pd.DataFrame:
    """The table `lines`. Raises Missing without call stacks."""
    table, sites = user_frames(facts)
    codes = table["name"].cat.codes.to_numpy()
    kept = np.isin(codes, list(sites))
    return frame(
        schema.LINES,
        {
            **{name: table[name].to_numpy()[kept] for name in ("start_ns", "dur_ns", "track")},
            **places([sites[int(code)] for code in codes[kept]]),
        },
    )


def syncs(facts: Facts) -> pd.DataFrame:
    """The table `syncs`. Raises Missing if they were not recorded."""
    if "sync_events" not in facts.rank.provenance.recorded:
        raise Missing(
            "synchronisation events",
            "Profile with experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True).",
        )
    table = facts.rank.syncs
    ids = table.index.to_numpy().astype(np.int64)
    return frame(
        schema.SYNCS,
        {
            "id": ids,
            "name": names(facts, ids),
            **times(facts, ids),
            "step": step_numbers(facts, ids),
            "kind": table["sync_kind"],
            **{name: table[name].to_numpy() for name in ("stream", "wait_on_stream")},
        },
    )


def memory(facts: Facts) -> pd.DataFrame:
    """The table `memory`. Raises Missing if allocations were not recorded."""
    if "memory" not in facts.rank.provenance.recorded:
        raise Missing("memory events", "Record with profile_memory=True, or diagnose profile --memory.")
    table, spans = facts.rank.memory, facts.rank.spans
    ids = table.index.to_numpy().astype(np.int64)
    return frame(
        schema.MEMORY,
        {
            "id": ids,
            "start_ns": spans["start_ns"].to_numpy()[ids],
            "step": step_numbers(facts, ids),
            "track": spans["track"].to_numpy()[ids],
            "device": np.where(table["device_type"] > 0, table["device"], -1),
            **{name: table[name].to_numpy() for name in ("bytes", "allocated_bytes", "reserved_bytes")},
        },
    )


def spans(facts: Facts) -> pd.DataFrame:
    """The table `spans`."""
    table = facts.rank.spans
    ids = np.arange(len(table), dtype=np.int64)
    correlation = table["correlation"].to_numpy()
    return frame(
        schema.SPANS,
        {
            "id": ids,
            "kind": table["kind"],
            "name": table["name"],
            **times(facts, ids),
            "track": table["track"].to_numpy(),
            "step": step_numbers(facts, ids),
            "correlation": np.where(correlation > 0, correlation, -1),
        },
    )


def tracks(facts: Facts) -> pd.DataFrame:
    """The table `tracks`."""
    table = facts.rank.tracks
    return frame(
        schema.TRACKS,
        {
            "track": np.arange(len(table), dtype=np.int64),
            **{name: table[name].tolist() for name in ("process", "thread", "name")},
            **{name: table[name].to_numpy() for name in ("device", "stream")},
        },
    )


def links(facts: Facts) -> pd.DataFrame:
    """The table `links`."""
    table = facts.rank.links
    return frame(
        schema.LINKS,
        {**{name: table[name].to_numpy() for name in ("from_id", "to_id")}, "kind": table["kind"]},
    )
