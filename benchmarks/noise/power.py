"""Which slowdowns of one part of the step are found, by how many recordings of each side.

Synthetic: there are two or three runs of each training on that H100, so runs are drawn as these spread, and what they
differ by goes to what the GPU waits for. Then one part is made longer by a share of the step.
"""

import math
import random
import statistics
from itertools import product

from benchmarks.noise.gpus import FILLED, Group
from benchmarks.noise.tables import run_of
from diagnose.advice.timing import BLOCKS
from diagnose.comparing.compare import compare
from diagnose.contracts.baseline import Baseline, Run
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime, Part
from diagnose.statistics import NAMED

SIZES = (0.03, 0.05, 0.1, 0.3)
DRAWS = 5  # Of each training.
STEP_NS = 10**8

PARTS = {"compute": (Part.COMPUTE, "gemm"), "gaps": (Part.IDLE, "ops"), "data loading": (Part.IDLE, "loader")}


def table(found: list[Group]) -> str:
    """How often the second side is called slower, or, where nothing was planted, different."""
    sides = list(product((False, True), (1, 2, 3)))
    heads = [f"GPU {'waits' if waits else 'bounds'}, {count} a side" for waits, count in sides]
    lines = [f"| planted | slower by | {' | '.join(heads)} |", "|---" + "|--:" * 7 + "|"]
    for part, size in (("nothing", 0.0), *product(PARTS, SIZES)):
        draw = random.Random(f"{part} {size}")
        cells = [
            statistics.fmean(
                _is_found(group, part, size, count, draw) for group in found * DRAWS if (group.waits > FILLED) is waits
            )
            for waits, count in sides
        ]
        lines.append(f"| {part} | {size:.0%} | {' | '.join(f'{cell:.0%}' for cell in cells)} |")
    return "\n".join(lines)


def _is_found(group: Group, part: str, size: float, count: int, draw: random.Random) -> bool:
    sides = [[_drawn(group, part, own, draw) for _ in range(count)] for own in (0.0, size)]
    verdict = compare(*(Baseline(tool_version="", runs=tuple(side)) for side in sides)).verdict
    return verdict == "slower" or (verdict == "faster" and not size)


def _drawn(group: Group, part: str, size: float, draw: random.Random) -> Run:
    longer = math.exp(draw.gauss(0, statistics.stdev(group.logs))) - 1
    scale = max(1 + longer / group.waits, 0.0) if group.waits else 0.0
    shares = {PARTS["gaps"]: group.launches * scale, (Part.IDLE, "sync"): group.named * scale}
    shares[PARTS["compute"]] = 1 + longer - sum(shares.values())
    if size:
        differs = math.exp(draw.gauss(0, NAMED.share)) if part == "data loading" else 1.0
        shares[PARTS[part]] = shares.get(PARTS[part], 0.0) + size * differs
    rows = [AttributedTime(*at, "", "", "", None, 1, round(share * STEP_NS)) for at, share in shares.items() if share]
    return run_of(Measure.DEVICE, (sum(row.ns for row in rows),) * BLOCKS, (), tuple(rows))
