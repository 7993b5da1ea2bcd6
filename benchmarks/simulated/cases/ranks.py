"""Faults of several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.simulated.cases.case import Case, Fault
from benchmarks.simulated.cases.workloads import bert, gpt, little, resnet, short_of
from benchmarks.simulated.gpus import V100
from benchmarks.simulated.training import Distributed, Training


def several(training: Training, **decided: Any) -> Training:
    """The same on two ranks."""
    return replace(training, distributed=Distributed(**decided))


def communication() -> Iterator[Case]:
    """Ranks send too much, too little at once, or at the wrong time."""
    family = "communication"
    by_hand = Fault(("exposed_communication", "small_collectives"), {"distributed.by_hand": True})
    yield Case("gradients_reduced_by_hand", family, lambda size: several(bert(size)), (by_hand,))
    yield Case(
        "gradients_reduced_by_hand_over_network",
        family,
        lambda size: several(resnet(size, V100), over_network=True),
        (by_hand,),
    )
    full = Fault(("fp32_gradients", "exposed_communication"), {"distributed.half_gradients": False})
    yield Case(
        "fp32_gradients_over_slow_network",
        family,
        lambda size: several(short_of(bert(size, V100, half="c10::Half"), 8), over_network=True, half_gradients=True),
        (full,),
    )
    buckets = Fault(("small_buckets",), {"distributed.bucket_mb": 0.2})
    yield Case("buckets_of_200_kb", family, lambda size: several(little(size), over_network=True), (buckets,))
    every = Fault(("missing_no_sync",), {"distributed.no_sync": False})
    yield Case(
        "gradients_reduced_for_every_micro_batch",
        family,
        lambda size: several(little(size), over_network=True, micro_batches=4),
        (every,),
    )
    yield Case(
        "gradients_of_bert_reduced_for_every_micro_batch",
        family,
        lambda size: several(short_of(bert(size, V100, half="c10::Half"), 8), over_network=True, micro_batches=2),
        (every,),
    )
    barrier = Fault(("barriers",), {"distributed.barriers": 1})
    yield Case("barrier_every_step", family, lambda size: several(little(size)), (barrier,))
    metrics = Fault(("small_collectives", "scalar_syncs"), {"distributed.metrics": 24})
    yield Case("metrics_reduced_one_by_one", family, lambda size: several(gpt(size)), (metrics,))
    gathered = Fault(("gathered_results",), {"distributed.gathered_mb": 256.0})
    yield Case("outputs_gathered_every_step", family, lambda size: several(gpt(size), over_network=True), (gathered,))


def ranks() -> Iterator[Case]:
    """Some ranks wait for others."""
    family = "ranks"
    hot = Fault(("straggler",), {"distributed.slow_rank": 1.3})
    yield Case("one_gpu_runs_hot", family, lambda size: several(gpt(size)), (hot,))
    late = Fault(("straggler", "host_work", "python_overhead"), {"distributed.late_rank_ms": 15.0})
    yield Case("first_rank_writes_logs", family, lambda size: several(little(size)), (late,))
    yield Case(
        "first_rank_writes_logs_of_pictures",
        family,
        lambda size: several(resnet(size, V100)),
        (Fault(late.rules, {"distributed.late_rank_ms": 60.0}),),
    )
    uneven = Fault(("work_imbalance",), {"distributed.uneven": 0.5})
    yield Case("batches_of_uneven_length", family, lambda size: several(gpt(size)), (uneven,), recorded=6)
    yield Case(
        "batches_of_uneven_length_on_v100",
        family,
        lambda size: several(bert(size, V100, half="c10::Half")),
        (uneven,),
        recorded=6,
    )
