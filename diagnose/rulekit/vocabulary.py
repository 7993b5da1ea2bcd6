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

from diagnose.facts.autograd.anomaly import NanChecks
from diagnose.facts.autograd.backward import VainNodes
from diagnose.facts.autograd.derived_weights import DerivedWeights
from diagnose.facts.autograd.recomputed import Recomputed
from diagnose.facts.autograd.slices import SlicedTensor
from diagnose.facts.autograd.unused_graphs import UnusedGraphs
from diagnose.facts.communication.accumulation import Accumulation
from diagnose.facts.communication.balance import Balance
from diagnose.facts.communication.bandwidth import BusRate
from diagnose.facts.communication.buckets import Buckets
from diagnose.facts.communication.collectives import CollectiveGroup, SmallCollectives
from diagnose.facts.communication.ddp import DdpOverhead, DdpWork
from diagnose.facts.communication.gathers import HostGathers
from diagnose.facts.communication.host_collectives import Barriers, HostRuns
from diagnose.facts.communication.messages import CollectiveRuns, SyncedNorms
from diagnose.facts.communication.overlap import Exposure
from diagnose.facts.core.base import FACTS, Missing
from diagnose.facts.core.breakdown import Breakdown
from diagnose.facts.core.launches import Launches
from diagnose.facts.core.steps import Steps
from diagnose.facts.data.equal_batches import EqualBatches
from diagnose.facts.data.fetches import Fetches, WaitPattern
from diagnose.facts.data.input import Input
from diagnose.facts.data.loading import Loading
from diagnose.facts.data.padding import Padding
from diagnose.facts.data.targets import IgnoredScores
from diagnose.facts.device.allocator import AllocatorCause, Churn
from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.device.doubles import Doubles
from diagnose.facts.device.filling import GridFilling
from diagnose.facts.device.fusion import AttentionChain
from diagnose.facts.device.layout import CopyChurn, LayoutConversions
from diagnose.facts.device.precision import Precision, Roofline
from diagnose.facts.device.transfers import HostBorn, Transfer
from diagnose.facts.host.blocking_launches import BlockingLaunches
from diagnose.facts.host.compiling import Compiling
from diagnose.facts.host.cpu_threads import CpuThreads, Rivals
from diagnose.facts.host.fetched import FetchedMemory
from diagnose.facts.host.loops import Loop
from diagnose.facts.host.python import PythonPause
from diagnose.facts.host.starvation import Starvation
from diagnose.facts.host.texts import Texts
from diagnose.facts.host.waits import HostWait, WaitReason
from diagnose.facts.optimizer.optimizer import Implementation, OptimizerSteps
from diagnose.facts.optimizer.zeroing import GradientZeroing
from diagnose.facts.run.extra_work import LongSteps
from diagnose.facts.run.garbage import HOW_COLLECTIONS, GarbageCollections
from diagnose.facts.run.pauses import Checkpoints, Silences
from diagnose.facts.run.quality import Distortion, Sign, Steadiness, WarmUp
from diagnose.facts.run.ranges import Ranges
from diagnose.facts.run.slowdown import UNRECORDED_SHARE, Slowdown, Unrecorded
from diagnose.facts.shapes.adapters import Adapters
from diagnose.facts.shapes.broadcasts import PairSums
from diagnose.facts.shapes.filters import LongFilters
from diagnose.facts.shapes.lookups import OneHotProducts, TableGradients
from diagnose.facts.shapes.low_rank import LowRankSolve
from diagnose.facts.shapes.pairs import Pairs
from diagnose.facts.shapes.penalties import WeightPenalty
from diagnose.facts.shapes.prefixes import GrowingPrefix
from diagnose.facts.shapes.row_ops import DiagonalMatrices, RowOps
from diagnose.facts.shapes.scattered_rows import ScatteredRows
from diagnose.facts.shapes.sorts import SortsForFew
from diagnose.facts.shapes.transforms import UnhandyTransforms
from diagnose.facts.values.frozen_rows import FrozenRows
from diagnose.facts.values.idle_rows import IdleRows
from diagnose.facts.values.known_values import KnownValues
from diagnose.facts.values.parts_read import PartRead
from diagnose.facts.values.product_order import ProductOrder
from diagnose.facts.values.repeated_rows import RepeatedRows
from diagnose.facts.values.rolled import RolledMemories
from diagnose.facts.values.solves import RepeatedFactors
from diagnose.facts.values.sparse_products import SparseProducts
from diagnose.facts.values.special_numbers import SeparableWindows, SubnormalProducts
from diagnose.facts.values.unused_gradients import UnusedGradients
from diagnose.findings.finding import Caution, Clean, Confidence, Evidence, Finding, Fix, Level, NotApplicable, Safety
from diagnose.replay.balancing import balanced
from diagnose.replay.edits import Between, Detach, Edit, Move, Remove, Replace, Shorten, Times, toward
from diagnose.replay.saving import Basis
from diagnose.rulekit.examples import CannotTell, Fires, Silent
from diagnose.rulekit.fusing_advice import chains_taken, fusing, gave_up, known, torchs_own
from diagnose.rulekit.known_results import left_out, ops_named
from diagnose.rulekit.loading_advice import (
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
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.long_steps import seen_again
from diagnose.trace.manifest import Loader, RankManifest
from diagnose.trace.units import duration as ms
from diagnose.trace.units import percent
from diagnose.trace.units import size as bytes_

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
]

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
