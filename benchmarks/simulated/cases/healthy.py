"""Trainings without a fault, some of which look as if they had one."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.simulated.cases.case import Case, changed
from benchmarks.simulated.cases.ranks import several
from benchmarks.simulated.cases.workloads import bert, dlrm, gpt, resnet, short_of
from benchmarks.simulated.gpus import H100, V100
from benchmarks.simulated.training import Loading, Syncing


def healthy() -> Iterator[Case]:
    """Nothing to mend."""
    family = "healthy"
    yield Case("compiled_pictures", family, lambda size: resnet(size, compiled=True))
    yield Case("compiled_pictures_on_v100", family, lambda size: resnet(size, V100, compiled=True))
    yield Case("gpt", family, gpt)
    yield Case("compiled_gpt_on_h100", family, lambda size: gpt(size, H100, compiled=True))
    yield Case("compiled_bert", family, lambda size: bert(size, compiled=True))
    yield Case("recommender_in_a_graph", family, lambda size: dlrm(size, graph=True))
    yield Case("bert_in_a_graph", family, lambda size: short_of(bert(size, compiled=True, graph=True), 8))
    yield Case("gpt_in_a_graph", family, lambda size: gpt(size, H100, graph=True))
    yield Case("loss_read_while_the_gpu_has_work", family, lambda size: gpt(size, syncing=Syncing(items=1)))
    yield Case("loss_read_every_fifth_step", family, lambda size: gpt(size, syncing=Syncing(items=1, every=5)))
    yield Case("gpt_synchronised_once", family, lambda size: gpt(size, syncing=Syncing(device=1)))
    yield Case(
        "small_pageable_copies",
        family,
        lambda size: gpt(size, loading=Loading(2, 4.0, pinned=False, non_blocking=False)),
    )
    yield Case(
        "copies_on_their_own_stream",
        family,
        lambda size: resnet(size, V100, compiled=True, loading=Loading(16, 60.0, own_stream=True)),
    )
    yield Case("loader_that_just_keeps_up", family, lambda size: gpt(size, loading=Loading(2, 40.0)))
    yield Case("gradients_clipped", family, lambda size: gpt(size, clip=True))
    yield Case("two_ranks_over_nvlink", family, lambda size: several(gpt(size)))
    yield Case(
        "two_ranks_over_network", family, lambda size: several(gpt(size, H100, compiled=True), over_network=True)
    )
    yield Case("micro_batches_with_no_sync", family, lambda size: several(bert(size, compiled=True), micro_batches=2))
    yield Case(
        "long_sequences",
        family,
        lambda size: changed(gpt(size, compiled=True), {"model.length": 2_048, "model.batch": 4}),
    )
    yield Case("gpt_that_fills_memory", family, lambda size: gpt(size, memory_gb=55.0, reserved_gb=5.0))
    yield Case(
        "gpt_checkpointed_as_memory_is_full",
        family,
        lambda size: changed(gpt(size, memory_gb=74.0, reserved_gb=5.0), {"model.checkpointed": True}),
    )
