"""What comparing these recordings says: how often noise is called a difference, and which slowdowns are seen."""

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from benchmarks.noise.results import SLOWDOWNS, Recorded, Timed
from diagnose.comparing.compare import compare
from diagnose.contracts.baseline import Baseline, Run
from diagnose.contracts.comparison import Comparison
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime
from diagnose.statistics import CPU, RANKS, of_waits, student

SIZES = (1, 3)  # Recordings of each side.

HEADS = ("slower by", "recordings a side", "pairs", "slower", "faster", "no difference", "cannot tell", "visible")

Pair = tuple[Sequence[Timed], Sequence[Timed]]


def table(found: Recorded) -> str:
    """Verdicts by how much slower the second side is, and by recordings of each side."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" + "|--:" * (len(HEADS) - 1) + "|"]
    for slowdown, size in product((0.0, *SLOWDOWNS), SIZES):
        compared = [compared_as(*pair) for pair in pairs(found, slowdown, size)]
        if compared:
            lines.append(_row(slowdown, size, compared))
    return "\n".join(lines) if len(lines) > 2 else "Not measured."


def _row(slowdown: float, size: int, compared: Sequence[Comparison]) -> str:
    verdicts = [one.verdict for one in compared]
    shares = [f"{verdicts.count(one) / len(verdicts):.1%}" for one in ("slower", "faster", "same", "cannot_tell")]
    visible = statistics.median(one.smallest_visible_share or 1.0 for one in compared)
    what = f"{slowdown:.0%}" if slowdown else "nothing"
    return f"| {' | '.join([what, str(size), str(len(compared)), *shares, f'{visible:.1%}'])} |"


def pairs(found: Recorded, slowdown: float, size: int) -> Iterator[Pair]:
    """Of each control all pairs of so many recordings as it is, and as many others that are slower by so much."""
    for control in found.controls:
        plain = found.of(control)
        if slowdown:
            yield from product(combinations(plain, size), combinations(found.of(control, slowdown), size))
            continue
        for first in combinations(plain, size):
            others = [one for one in plain if one not in first]
            yield from ((first, second) for second in combinations(others, size) if first[0].round < second[0].round)


def compared_as(before: Sequence[Timed], after: Sequence[Timed]) -> Comparison:
    """What `diagnose compare` says of them."""
    sides = [[run_of(Measure.HOST, one.recorded_ns, one.unprofiled_ns, ()) for one in side] for side in (before, after)]
    return compare(*(Baseline(tool_version="", runs=tuple(side)) for side in sides))


def run_of(
    measure: Measure, times_ns: tuple[int, ...], unprofiled_ns: tuple[int, ...], spending: tuple[AttributedTime, ...]
) -> Run:
    """A recording of which nothing else is known."""
    known = {"started": None, "world_size": None, "samples_per_step": None, "flops_per_step": None}
    empty = dict.fromkeys(("devices", "findings", "looked", "ranks", "groups"), ())
    times = {"times_ns": times_ns, "unprofiled_ns": unprofiled_ns, "spending": spending}
    return Run(format="kineto", rank=0, measure=measure, settings={}, **times, **known, **empty)  # type: ignore[arg-type]


def sentence(found: Recorded) -> str:
    """What was recorded, where."""
    if found.machine is None:
        return "Not measured."
    count, machine = len(found.rows), found.machine
    return (
        f"{count} recordings of {len(found.controls)} healthy trainings, on {machine.cores} cores of {machine.cpu},"
        f" with torch {machine.torch}."
    )


USUAL = (
    ("a GPU that computes all the time", of_waits(0.0, 0.0)),
    *(
        (f"a GPU that waits for {what}, {share:.0%} of the step", of_waits(*shares))
        for share in (0.2, 0.5)
        for what, shares in (("launches", (share, 0.0)), ("batches, copies and results", (0.0, share)))
    ),
    ("a CPU, one process", CPU),
    ("a CPU, several processes", RANKS),
)


def priors() -> str:
    """How equal runs usually differ, and what one recording a side shows of that."""
    lines = ["| trained by | equal runs usually differ by | degrees of freedom | one recording a side shows |"]
    lines.append("|---" + "|--:" * 3 + "|")
    for what, spread in USUAL:
        half = student(0.975, spread.freedom) * math.sqrt(2) * spread.share
        lines.append(f"| {what} | {spread.share:.2%} | {spread.freedom} | {math.expm1(half):.1%} |")
    return "\n".join(lines)
