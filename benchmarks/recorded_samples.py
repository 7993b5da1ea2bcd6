"""How much longer steps take while they are recorded, in the recordings of sample_traces/."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

import msgspec

from benchmarks.accuracy_tables import table
from benchmarks.planted_cases import SAMPLES
from diagnose.trace.manifest import Manifest, Timed

PARTS = {"timing": "timing recording", "attribution": "with stacks and shapes"}


def longer() -> str:
    """Recorded over unprofiled median steps, by part and by where the training ran: median and quartiles."""
    manifests = [msgspec.json.decode(path.read_bytes(), type=Manifest) for path in SAMPLES.glob("**/manifest.json")]
    ranks = [(rank, alone) for one in manifests for rank in one.ranks if (alone := rank.unprofiled) is not None]
    lines = []
    for place, is_gpu in (("two CPU cores", False), ("an H100", True)):
        some = [(rank, alone) for rank, alone in ranks if (alone.device_ns is not None) is is_gpu]
        ratios = [[_ratio(getattr(rank, part), alone) for rank, alone in some] for part in PARTS]
        lines.append([place, str(len(some)), *(_spread([ratio for ratio in part if ratio]) for part in ratios)])
    return table(["trained on", "ranks", *PARTS.values()], lines)


def _ratio(recorded: Timed | None, alone: Timed) -> float | None:
    """The first recorded step is not used."""
    return (
        None if recorded is None or not recorded.wall_ns[1:] else median(recorded.wall_ns[1:]) / median(alone.wall_ns)
    )


def _spread(ratios: Sequence[float]) -> str:
    low, middle, high = quantiles(ratios)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
