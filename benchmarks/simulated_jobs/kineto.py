"""Traces of a job's ranks as torch.profiler writes them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.simulated import kineto
from benchmarks.simulated.machine import Recording
from benchmarks.simulated_jobs.layout import Layout
from benchmarks.simulated_jobs.training import MS, Training


def write(training: Training, recordings: Sequence[Recording], folder: Path) -> None:
    """A packed file for each rank."""
    layout = training.layout
    for recording in recordings:
        found = kineto.trace(recording, training.model.gpu, layout.gpus)
        ahead_ns = round(training.clocks_ms.get(layout.host(recording.rank), 0.0) * MS)
        found["baseTimeNanoseconds"] += ahead_ns
        found["distributedInfo"] = _told(recording, layout)
        raw = msgspec.json.encode(found)
        (folder / f"rank{recording.rank}.pt.trace.json.gz").write_bytes(gzip.compress(raw, 1))


def _told(recording: Recording, layout: Layout) -> dict[str, object]:
    mine = [group.told() for group in layout.groups if recording.rank in group.ranks]
    return {
        "backend": "nccl",
        "rank": recording.rank,
        "world_size": recording.world,
        "pg_count": len(mine),
        "pg_config": mine,
        "nccl_version": "2.27.5",
    }
