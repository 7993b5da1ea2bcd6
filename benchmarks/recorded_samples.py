"""How much longer steps take while they are recorded, in the recordings of sample_traces/."""

from collections.abc import Sequence
from statistics import median, quantiles

import msgspec

from benchmarks.accuracy_tables import table
from benchmarks.planted_cases import SAMPLES
from diagnose.trace.manifest import Manifest, RankManifest

PARTS = {"device_timing": "without ops", "timing": "with ops", "attribution": "with stacks and shapes"}


def longer() -> str:
    """Recorded over unprofiled median steps, by part and by where the training ran: median and quartiles."""
    manifests = [msgspec.json.decode(path.read_bytes(), type=Manifest) for path in SAMPLES.glob("**/manifest.json")]
    ranks = [(rank, alone) for one in manifests for rank in one.ranks if (alone := rank.unprofiled) is not None]
    lines = []
    for place, is_gpu in (("two CPU cores", False), ("an H100", True)):
        some = [(rank, alone) for rank, alone in ranks if (alone.device_ns is not None) is is_gpu]
        found = [ratios(rank) for rank, _ in some]
        lines.append([place, str(len(some)), *(_spread([one[part] for one in found if part in one]) for part in PARTS)])
    return table(["trained on", "ranks", *PARTS.values()], lines)


def ratios(rank: RankManifest) -> dict[str, float]:
    """Recorded over unprofiled median steps, by part. The first recorded step is not used."""
    alone, times = rank.unprofiled, {part: getattr(rank, part) for part in PARTS}
    if alone is None:
        return {}
    return {
        part: median(one.wall_ns[1:]) / median(alone.wall_ns)
        for part, one in times.items()
        if one is not None and one.wall_ns[1:]
    }


def _spread(ratios: Sequence[float]) -> str:
    if len(ratios) < 2:
        return "-"
    low, middle, high = quantiles(ratios)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
