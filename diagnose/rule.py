"""All that a rule sees: the one module that files of rules import.

A rule is a file. Its docstring is its page, its constants are its thresholds, its function looks at facts and yields
findings, its EXAMPLES are drawings that are tests and documentation. The function's parameters are names of facts; one
with the default None is optional, and a missing one that is not ends the rule as "cannot tell".
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from diagnose.facts.accumulation import Accumulation
from diagnose.facts.allocator import AllocatorCause, Churn
from diagnose.facts.anomaly import NanChecks
from diagnose.facts.balance import Balance
from diagnose.facts.base import FACTS, Missing
from diagnose.facts.breakdown import Breakdown
from diagnose.facts.buckets import Buckets
from diagnose.facts.collectives import CollectiveGroup, SmallCollectives
from diagnose.facts.compiling import Compiling
from diagnose.facts.cpu_threads import CpuThreads
from diagnose.facts.ddp import DdpOverhead, DdpWork
from diagnose.facts.dispatch import Starvation
from diagnose.facts.extra_work import LongSteps
from diagnose.facts.fetches import Fetches, WaitPattern
from diagnose.facts.filling import GridFilling
from diagnose.facts.fusion import AttentionChain, PointwiseChains
from diagnose.facts.host_collectives import Barriers, HostRuns
from diagnose.facts.input import Input
from diagnose.facts.launches import Launches
from diagnose.facts.layout import CopyChurn, LayoutConversions
from diagnose.facts.messages import CollectiveRuns, SyncedNorms
from diagnose.facts.optimizer import Implementation, OptimizerSteps
from diagnose.facts.overlap import Exposure
from diagnose.facts.pauses import HOW_COLLECTIONS, Checkpoints, GarbageCollections, Silences
from diagnose.facts.precision import Precision, Roofline
from diagnose.facts.python import PythonPause
from diagnose.facts.quality import Distortion, Sign, Steadiness, WarmUp
from diagnose.facts.ranges import Ranges
from diagnose.facts.run import Loading, Slowdown
from diagnose.facts.steps import Steps
from diagnose.facts.transfers import Transfer
from diagnose.facts.waits import BlockingLaunches, HostWait, WaitReason
from diagnose.facts.zeroing import GradientZeroing
from diagnose.finding import Caution, Clean, Confidence, Evidence, Finding, Fix, Level, NotApplicable, Safety
from diagnose.replay.balancing import balanced
from diagnose.replay.edits import Between, Detach, Edit, Move, Remove, Replace, Shorten, Times, at
from diagnose.replay.edits import Level as Rung
from diagnose.replay.saving import Basis
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.manifest import RankManifest
from diagnose.units import duration as ms
from diagnose.units import percent
from diagnose.units import size as bytes_

__all__ = [
    "DEAR_SHARE",
    "FACTS",
    "HOW_COLLECTIONS",
    "Accumulation",
    "AllocatorCause",
    "AttentionChain",
    "Balance",
    "Barriers",
    "Basis",
    "Between",
    "BlockingLaunches",
    "Breakdown",
    "Buckets",
    "CannotTell",
    "Caution",
    "Checkpoints",
    "Churn",
    "Clean",
    "CollectiveGroup",
    "CollectiveRuns",
    "Compiling",
    "Confidence",
    "CopyChurn",
    "CpuThreads",
    "DdpOverhead",
    "DdpWork",
    "Detach",
    "Direction",
    "Distortion",
    "Edit",
    "Evidence",
    "Exposure",
    "Fetches",
    "Finding",
    "Fires",
    "Fix",
    "GarbageCollections",
    "GradientZeroing",
    "GridFilling",
    "HostMemory",
    "HostRuns",
    "HostWait",
    "Implementation",
    "Input",
    "Launches",
    "LayoutConversions",
    "Level",
    "Loading",
    "LongSteps",
    "Missing",
    "Move",
    "NanChecks",
    "NotApplicable",
    "OptimizerSteps",
    "PointwiseChains",
    "Precision",
    "PythonPause",
    "Ranges",
    "RankManifest",
    "Remove",
    "Replace",
    "Roofline",
    "Safety",
    "Shorten",
    "Sign",
    "Silences",
    "Silent",
    "Slowdown",
    "SmallCollectives",
    "Starvation",
    "Steadiness",
    "Steps",
    "SyncedNorms",
    "Times",
    "Transfer",
    "Verdicts",
    "WaitPattern",
    "WaitReason",
    "WarmUp",
    "balanced",
    "bytes_",
    "cheaper_batches",
    "cores_for_workers",
    "dear_batches",
    "loading_evidence",
    "ms",
    "percent",
    "rule",
    "seen_again",
    "toward",
]  # fmt: skip


def toward(floor: float) -> Between:
    """A share that a fix leaves: at best `floor`, likely half-way there, carefully a quarter of it (our choice)."""
    return Between(1.0 - 0.25 * (1.0 - floor), 1.0 - 0.5 * (1.0 - floor), floor)


def loading_evidence(loading: Loading | None) -> tuple[Evidence, ...]:
    """How many workers would hide loading, where that is known; else nothing."""
    if loading is None:
        return ()
    takes = f"A batch takes {ms(loading.fetch_ns)} to make, and a step without the wait {ms(loading.step_ns)}:"
    if loading.hideable:
        text = f"{takes} {loading.workers} worker{'s' * (loading.workers > 1)} would hide loading."
    else:
        text = f"{takes} no number of workers hides loading, which needs {loading.cores} cores of {loading.cpus}."
    return (Evidence(text, loading.workers, "workers"),)


def cores_for_workers(wait: Input, loading: Loading | None) -> bool:
    """Whether more loader workers find cores. A training on a GPU leaves some; one on the CPU may not.

    Raises Missing if that is not known.
    """
    if wait.exposed_ns is not None:
        return True
    free = None if loading is None else loading.beside_training
    if free is None:
        raise Missing("how many cores a training on the CPU leaves for workers", "Record with diagnose profile.")
    return free


def seen_again(manifest: RankManifest | None, dur_ns: int) -> tuple[int, int]:
    """Steps timed without the profiler that took longer than the median one by at least half of this; and how many
    were timed. None did if steps differ so much anyway that it would not stand out."""
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    if len(timed) < 2:
        return 0, len(timed)
    usual, low = statistics.median(timed), statistics.quantiles(timed, n=4)[0]
    stands_out = dur_ns / 2 > STANDS_OUT * (usual - low)
    return sum(stands_out and one >= usual + dur_ns / 2 for one in timed), len(timed)


STANDS_OUT = 4
"""Times the distance from the median step down to the quarter of the shortest, which is 0.67 standard deviations of
what varies normally, and which long steps leave as it is (our choice)."""


DEAR_SHARE = 0.05
"""Of the step, from which on making batches is worth looking at although no worker can take it over (our choice)."""

LEFT_OF_ITEMS, LEFT_OF_COLLATION = Between(1.0, 0.5, 0.1), Between(0.5, 0.1, 0.02)
"""Of the time to make items, how much cheaper they can be is not known; of collation by the script, which
default_collate does as one copy for each item (our choices)."""


def dear_batches(fetches: Fetches, waited_ns: int, loading: Loading) -> Finding:
    """What to say of batches that the training makes itself, on cores that workers would take from it."""
    collation = 0.0
    if loading.most_in == "collate" and loading.loader.collate != "default_collate":
        collation = min((loading.loader.collate_ns or 0) / max(loading.fetch_ns, 1), 1.0)
    left = (at(LEFT_OF_ITEMS, level) * (1 - collation) + at(LEFT_OF_COLLATION, level) * collation for level in Rung)
    what = f"Nothing is computed for {ms(waited_ns)} a step while the training process makes the next batch."
    spent = f"`{loading.loader.collate}` takes {percent(collation)} of that." if collation else ""
    return Finding(
        title="Making batches takes time from computing",
        evidence=(
            Evidence(what, waited_ns, "ns"),
            *((Evidence(spent, collation, "share"),) if spent else ()),
            Evidence("Workers would not help: the training computes on the cores that they would need."),
        ),
        edits=(Shorten(fetches.ids, Between(*left)),),
        fixes=(cheaper_batches(loading),),
        confidence=Confidence(Level.MEDIUM, "torch's own collation copies each item once, without Python")
        if collation
        else Confidence(Level.LOW, "how much cheaper batches can be is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        host_bound=True,
    )


def cheaper_batches(loading: Loading) -> Fix:
    """What to do about loading that no number of workers hides."""
    longest = {
        "items": "Make the data set's items cheaper, or store them as they are used: they take most of a batch's time.",
        "collate": "Make collation cheaper: it takes most of a batch's time.",
        "": "Make batches cheaper: read, decode and copy less for each.",
    }
    return Fix(longest[loading.most_in], effort=2)


Verdicts: TypeAlias = "Iterator[Finding | Caution | Clean | NotApplicable]"


@dataclass(frozen=True)
class Fires:
    """A drawing on which the rule fires, once; with `saving_ms`, what the fix saves: (low, high), within 5 %."""

    drawing: str
    saving_ms: tuple[float, float] | None = None


@dataclass(frozen=True)
class Silent:
    """A drawing on which the rule finds nothing worth fixing."""

    drawing: str


@dataclass(frozen=True)
class CannotTell:
    """A drawing that lacks what the rule needs; `because` is part of what it then says."""

    drawing: str
    because: str


@dataclass(frozen=True)
class Check:
    """A rule's function with the facts it asks for."""

    code: str
    run: Callable[..., Verdicts]
    needs: tuple[str, ...]
    """Facts it cannot do without."""
    wishes: tuple[str, ...]
    """Facts that are None where the recording lacks them."""


def rule(code: str) -> Callable[[Callable[..., Verdicts]], Check]:
    """Make a function a rule. `code` is its short name (`DL01`), by which `--select` and `--ignore` also know it."""

    def made(run: Callable[..., Verdicts]) -> Check:
        parameters = inspect.signature(run).parameters.values()
        unknown = [one.name for one in parameters if one.name not in FACTS]
        if unknown:
            raise RuleError(f"{run.__name__} asks for {', '.join(unknown)}, which is no fact.")
        return Check(
            code=code,
            run=run,
            needs=tuple(one.name for one in parameters if one.default is inspect.Parameter.empty),
            wishes=tuple(one.name for one in parameters if one.default is None),
        )

    return made


class RuleError(Exception):
    """A file of rules that cannot be used: one sentence that says why."""
