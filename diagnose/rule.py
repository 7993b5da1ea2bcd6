"""All that a rule sees: the one module that files of rules import.

A rule is a file. Its docstring is its page, its constants are its thresholds, its function looks at facts and yields
findings, its EXAMPLES are drawings that are tests and documentation. Its parameters are names of facts; one with the
default None is optional, and a missing one that is not ends the rule as "cannot tell".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from diagnose.batches import (
    HANDED_OVER_NS,
    batches_that_wait,
    cheaper_batches,
    cores_for_workers,
    dear,
    dear_batches,
    epoch_batches,
    in_workers,
    loading_evidence,
    more_batches,
    mostly_sampling,
)
from diagnose.examples import CannotTell, Fires, Silent
from diagnose.facts.accumulation import Accumulation
from diagnose.facts.adapters import Adapters
from diagnose.facts.allocator import AllocatorCause, Churn
from diagnose.facts.anomaly import NanChecks
from diagnose.facts.backward import VainNodes
from diagnose.facts.balance import Balance
from diagnose.facts.bandwidth import BusRate
from diagnose.facts.base import FACTS, Missing
from diagnose.facts.blocking_launches import BlockingLaunches
from diagnose.facts.breakdown import Breakdown
from diagnose.facts.broadcasts import PairSums
from diagnose.facts.buckets import Buckets
from diagnose.facts.chains import PointwiseChains
from diagnose.facts.collectives import CollectiveGroup, SmallCollectives
from diagnose.facts.compiling import Compiling
from diagnose.facts.cpu_threads import CpuThreads, Rivals
from diagnose.facts.ddp import DdpOverhead, DdpWork
from diagnose.facts.derived_weights import DerivedWeights
from diagnose.facts.dispatch import Starvation
from diagnose.facts.doubles import Doubles
from diagnose.facts.equal_batches import EqualBatches
from diagnose.facts.extra_work import LongSteps
from diagnose.facts.fetched import FetchedMemory
from diagnose.facts.fetches import Fetches, WaitPattern
from diagnose.facts.filling import GridFilling
from diagnose.facts.filters import LongFilters
from diagnose.facts.frozen_rows import FrozenRows
from diagnose.facts.fusion import AttentionChain
from diagnose.facts.garbage import HOW_COLLECTIONS, GarbageCollections
from diagnose.facts.gathers import HostGathers
from diagnose.facts.host_collectives import Barriers, HostRuns
from diagnose.facts.idle_rows import IdleRows
from diagnose.facts.input import Input
from diagnose.facts.known_values import KnownValues
from diagnose.facts.launches import Launches
from diagnose.facts.layout import CopyChurn, LayoutConversions
from diagnose.facts.loading import Loading
from diagnose.facts.lookups import OneHotProducts, TableGradients
from diagnose.facts.loops import Loop
from diagnose.facts.low_rank import LowRankSolve
from diagnose.facts.messages import CollectiveRuns, SyncedNorms
from diagnose.facts.optimizer import Implementation, OptimizerSteps
from diagnose.facts.overlap import Exposure
from diagnose.facts.padding import Padding
from diagnose.facts.pairs import Pairs
from diagnose.facts.parts_read import PartRead
from diagnose.facts.pauses import Checkpoints, Silences
from diagnose.facts.penalties import WeightPenalty
from diagnose.facts.precision import Precision, Roofline
from diagnose.facts.prefixes import GrowingPrefix
from diagnose.facts.product_order import ProductOrder
from diagnose.facts.python import PythonPause
from diagnose.facts.quality import Distortion, Sign, Steadiness, WarmUp
from diagnose.facts.ranges import Ranges
from diagnose.facts.recomputed import Recomputed
from diagnose.facts.repeated_rows import RepeatedRows
from diagnose.facts.rolled import RolledMemories
from diagnose.facts.row_ops import DiagonalMatrices, RowOps
from diagnose.facts.scattered_rows import ScatteredRows
from diagnose.facts.slices import SlicedTensor
from diagnose.facts.slowdown import UNRECORDED_SHARE, Slowdown, Unrecorded
from diagnose.facts.solves import RepeatedFactors
from diagnose.facts.sorts import SortsForFew
from diagnose.facts.sparse_products import SparseProducts
from diagnose.facts.special_numbers import SeparableWindows, SubnormalProducts
from diagnose.facts.steps import Steps
from diagnose.facts.targets import IgnoredScores
from diagnose.facts.texts import Texts
from diagnose.facts.transfers import HostBorn, Transfer
from diagnose.facts.transforms import UnhandyTransforms
from diagnose.facts.unused_gradients import UnusedGradients
from diagnose.facts.unused_graphs import UnusedGraphs
from diagnose.facts.waits import HostWait, WaitReason
from diagnose.facts.zeroing import GradientZeroing
from diagnose.finding import Caution, Clean, Confidence, Evidence, Finding, Fix, Level, NotApplicable, Safety
from diagnose.fusing import chains_taken, fusing, gave_up, known, torchs_own
from diagnose.leaving_out import left_out, ops_named
from diagnose.replay.balancing import balanced
from diagnose.replay.edits import Between, Detach, Edit, Move, Remove, Replace, Shorten, Times, toward
from diagnose.replay.saving import Basis
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.long_steps import seen_again
from diagnose.trace.manifest import Loader, RankManifest
from diagnose.units import duration as ms
from diagnose.units import percent
from diagnose.units import size as bytes_

__all__ = [
    "FACTS",
    "HANDED_OVER_NS",
    "HOW_COLLECTIONS",
    "UNRECORDED_SHARE",
    "Accumulation",
    "Adapters",
    "AllocatorCause",
    "AttentionChain",
    "Balance",
    "Barriers",
    "Basis",
    "Between",
    "BlockingLaunches",
    "Breakdown",
    "Buckets",
    "BusRate",
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
    "DerivedWeights",
    "Detach",
    "DiagonalMatrices",
    "Direction",
    "Distortion",
    "Doubles",
    "Edit",
    "EqualBatches",
    "Evidence",
    "Exposure",
    "FetchedMemory",
    "Fetches",
    "Finding",
    "Fires",
    "Fix",
    "FrozenRows",
    "GarbageCollections",
    "GradientZeroing",
    "GridFilling",
    "GrowingPrefix",
    "HostBorn",
    "HostGathers",
    "HostMemory",
    "HostRuns",
    "HostWait",
    "IdleRows",
    "IgnoredScores",
    "Implementation",
    "Input",
    "KnownValues",
    "Launches",
    "LayoutConversions",
    "Level",
    "Loader",
    "Loading",
    "LongFilters",
    "LongSteps",
    "Loop",
    "LowRankSolve",
    "Missing",
    "Move",
    "NanChecks",
    "NotApplicable",
    "OneHotProducts",
    "OptimizerSteps",
    "Padding",
    "PairSums",
    "Pairs",
    "PartRead",
    "PointwiseChains",
    "Precision",
    "ProductOrder",
    "PythonPause",
    "Ranges",
    "RankManifest",
    "Recomputed",
    "Remove",
    "RepeatedFactors",
    "RepeatedRows",
    "Replace",
    "Rivals",
    "RolledMemories",
    "Roofline",
    "RowOps",
    "Safety",
    "ScatteredRows",
    "SeparableWindows",
    "Shorten",
    "Sign",
    "Silences",
    "Silent",
    "SlicedTensor",
    "Slowdown",
    "SmallCollectives",
    "SortsForFew",
    "SparseProducts",
    "Starvation",
    "Steadiness",
    "Steps",
    "SubnormalProducts",
    "SyncedNorms",
    "TableGradients",
    "Texts",
    "Times",
    "Transfer",
    "UnhandyTransforms",
    "Unrecorded",
    "UnusedGradients",
    "UnusedGraphs",
    "VainNodes",
    "Verdicts",
    "WaitPattern",
    "WaitReason",
    "WarmUp",
    "WeightPenalty",
    "balanced",
    "batches_that_wait",
    "bytes_",
    "chains_taken",
    "cheaper_batches",
    "cores_for_workers",
    "dear",
    "dear_batches",
    "epoch_batches",
    "fusing",
    "gave_up",
    "in_workers",
    "known",
    "left_out",
    "loading_evidence",
    "more_batches",
    "mostly_sampling",
    "ms",
    "ops_named",
    "percent",
    "rule",
    "seen_again",
    "torchs_own",
    "toward",
]  # fmt: skip

Verdicts: TypeAlias = "Iterator[Finding | Caution | Clean | NotApplicable]"


@dataclass(frozen=True)
class Check:
    """A rule's function with the facts it asks for."""

    code: str
    run: Callable[..., Verdicts]
    needs: tuple[str, ...]
    wishes: tuple[str, ...]
    """Facts it cannot do without, and those that are None where the recording lacks them."""


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
    """A file of rules that cannot be used, in one sentence."""
