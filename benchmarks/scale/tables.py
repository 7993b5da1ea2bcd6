"""The published tables of what very many ranks take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.with_name("scale.json")


def mapped() -> str:
    """Folders of ranks, diagnosed."""
    told = _published()
    rows = [
        f"| {one['ranks']:,} | {one['by']} | {one['seconds']:.0f} s | {1e3 * one['seconds'] / one['ranks']:.0f} ms |"
        f" {_mb(one['reducer_bytes'])} | {_mb(one['worker_bytes'])} | {one['first']}, {_ms(one['saving_ns'])} |"
        for one in told["mapped"]
    ]
    head = "| ranks | by | time | a rank | peak of the reducer | of a worker | found first, saves |"
    return "\n".join([head, "|--:|---|--:|--:|--:|--:|---|", *rows, "", f"{told['cores']} cores."])


def reduced() -> str:
    """Ranks put together to one job."""
    rows, before = [], {}
    for one in _published()["reduced"]:
        half = before.get((one["ranks"] // 2, one["calls"]))
        before[one["ranks"], one["calls"]] = one
        growth = "" if half is None else f"{one['seconds'] / half['seconds']:.2f} x"
        rows.append(
            f"| {one['ranks']:,} | {one['calls']} | {one['compared_calls']} | {one['packed_bytes'] / 1e3:.1f} kB |"
            f" {one['seconds']:.1f} s | {growth} | {_mb(one['bytes'])} |"
        )
    head = "| ranks | collectives a rank | compared | sent by a rank | CPU time | of half as many ranks | peak memory |"
    return "\n".join([head, "|--:|--:|--:|--:|--:|--:|--:|", *rows])


def _published() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"
