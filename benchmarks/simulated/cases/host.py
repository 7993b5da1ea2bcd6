"""Faults of the host: loading, copies, synchronisation, launches, Python, pauses."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.simulated.cases.case import Case, Fault, changed
from benchmarks.simulated.cases.workloads import bert, dlrm, experts, gpt, little, resnet, written_out
from benchmarks.simulated.gpus import H100, V100
from benchmarks.simulated.training import Loading, Syncing


def data_loading() -> Iterator[Case]:
    """Batches come too late."""
    family = "data loading"
    alone = Fault(("dataloader_starvation",), {"loading.workers": 0})
    yield Case("pictures_decoded_in_process", family, resnet, (alone,))
    yield Case("tokens_made_in_process", family, gpt, (alone,))
    yield Case("clicks_parsed_in_process", family, lambda size: dlrm(size, compiled=True), (alone,))
    one = Fault(("dataloader_starvation",), {"loading.workers": 1})
    yield Case("one_worker_for_pictures", family, resnet, (one,))
    two = Fault(("dataloader_starvation",), {"loading.workers": 2})
    yield Case("two_workers_on_a_fast_gpu", family, lambda size: resnet(size, H100), (two,))
    slow = Fault(("dataloader_starvation",), {"loading.batch_ms": 2_500.0})
    yield Case("slow_augmentation", family, lambda size: resnet(size, V100), (slow,))
    parsing = Fault(("dataloader_starvation",), {"loading.batch_ms": 120.0})
    yield Case("records_parsed_by_workers", family, dlrm, (parsing,))


def copies() -> Iterator[Case]:
    """Batches are copied badly."""
    family = "copies"
    pageable = Fault(("pageable_copies",), {"loading.pinned": False, "loading.non_blocking": False})
    plain = Loading(8, 60.0)
    yield Case("pageable_pictures", family, lambda size: resnet(size, loading=plain), (pageable,))
    yield Case("pageable_pictures_on_v100", family, lambda size: resnet(size, V100, loading=plain), (pageable,))
    yield Case("pageable_clicks", family, lambda size: dlrm(size, loading=Loading(8, 6.0), compiled=True), (pageable,))
    queued = Fault(("copies_not_overlapped",), {"loading.own_stream": False})
    yield Case("pictures_copied_before_use", family, resnet, (queued,))
    yield Case("clicks_copied_before_use", family, lambda size: dlrm(size, compiled=True), (queued,))
    waiting = Fault(
        ("copies_not_overlapped", "pageable_copies"), {"loading.non_blocking": False, "loading.own_stream": False}
    )
    yield Case("host_waits_for_copies", family, resnet, (waiting,))
    scalars = Fault(("tiny_copies",), {"loading.scalars": 60, "loading.pinned": False, "loading.non_blocking": False})
    yield Case("sixty_scalars_a_batch", family, little, (scalars,))


def synchronisation() -> Iterator[Case]:
    """The host waits for the device."""
    family = "synchronisation"
    yield Case("loss_read_every_step", family, little, (Fault(("scalar_syncs",), {"syncing.items": 1}),))
    yield Case("norms_read_one_by_one", family, gpt, (Fault(("scalar_syncs",), {"syncing.items_in_optimizer": 40}),))
    yield Case(
        "losses_read_on_v100",
        family,
        lambda size: resnet(size, V100),
        (Fault(("scalar_syncs",), {"syncing.items": 8}),),
    )
    yield Case("features_copied_to_the_cpu", family, resnet, (Fault(("scalar_syncs",), {"syncing.copied_mb": 32.0}),))
    often = Fault(("scalar_syncs",), {"syncing": Syncing(items=20, every=5)})
    yield Case("losses_read_every_fifth_step", family, little, (often,))
    counted = Fault(("data_dependent_shapes",), {"model.counted": True})
    yield Case("masked_positions_counted", family, bert, (counted,))
    yield Case("tokens_of_experts_counted", family, experts, (counted,))
    yield Case("synchronised_for_timing", family, gpt, (Fault(("explicit_synchronisation",), {"syncing.device": 3}),))
    yield Case(
        "synchronised_every_step", family, little, (Fault(("explicit_synchronisation",), {"syncing.device": 1}),)
    )
    yield Case("launches_block", family, bert, (Fault(("blocking_launches",), {"blocking": True}),))


def launches() -> Iterator[Case]:
    """The CPU cannot keep up."""
    family = "launches and Python"
    yield Case(
        "small_transformer_in_eager",
        family,
        lambda size: little(size, graph=True),
        (Fault(("launch_bound",), {"graph": False}),),
    )
    yield Case(
        "recommender_in_eager",
        family,
        lambda size: dlrm(size, H100, graph=True),
        (Fault(("launch_bound",), {"graph": False}),),
    )
    yield Case(
        "small_transformer_not_compiled",
        family,
        lambda size: little(size, H100, compiled=True),
        (Fault(("launch_bound",), {"compiled": False}),),
    )
    hooks = Fault(("host_work", "python_overhead"), {"python_us": 80.0})
    yield Case("hooks_on_every_module", family, lambda size: little(size), (hooks,))
    yield Case(
        "hooks_on_every_layer_of_a_gpt",
        family,
        lambda size: gpt(size, H100),
        (Fault(("host_work", "python_overhead"), {"python_us": 400.0}),),
    )
    yield Case(
        "metrics_in_python_between_steps",
        family,
        little,
        (Fault(("host_work", "python_overhead"), {"step_python_ms": 6.0}),),
    )
    heads = Fault(("looped_ops", "launch_bound"), {"model.one_at_a_time": True})
    yield Case("heads_in_a_loop", family, written_out, (heads,))
    recompiled = Fault(("recompilation",), {"recompiled_every": 5})
    yield Case("recompiled_for_new_shapes", family, lambda size: gpt(size, compiled=True), (recompiled,), recorded=10)
    yield Case(
        "recompiled_every_step",
        family,
        lambda size: little(size, compiled=True, compile_ms=400.0),
        (Fault(("recompilation",), {"recompiled_every": 1}),),
    )


def pauses() -> Iterator[Case]:
    """Training stands still now and then."""
    family = "pauses"
    saved = Fault(("checkpoint_stalls",), {"saved_every": 5})
    yield Case("saved_every_fifth_step", family, lambda size: gpt(size), (saved,))
    yield Case("pictures_model_saved_every_fifth_step", family, resnet, (saved,))
    paused = Fault(("periodic_spikes",), {"pause_every": 5, "pause_ms": 300.0})
    yield Case("slow_logger_every_fifth_step", family, bert, (paused,), recorded=15)


def memory() -> Iterator[Case]:
    """The allocator's cache is emptied, or memory is left unused."""
    family = "memory"
    emptied = Fault(("allocator_churn",), {"freed": 30})
    yield Case("cache_emptied_every_step", family, bert, (emptied,))
    yield Case(
        "cache_emptied_on_v100", family, lambda size: resnet(size, V100), (Fault(("allocator_churn",), {"freed": 60}),)
    )
    # Weights and states take a share of the memory in use, so it grows less than the batch.
    few = Fault(("unused_memory",), {"model.batch": 8, "memory_gb": 2.0, "reserved_gb": 0.5})
    yield Case(
        "small_batch_with_memory_recorded",
        family,
        lambda size: changed(little(size), {"model.batch": 64, "memory_gb": 10.0, "reserved_gb": 2.0}),
        (few,),
        samples=8,
    )
    yield Case(
        "small_batch_on_h100_with_memory_recorded",
        family,
        lambda size: changed(bert(size, H100), {"model.batch": 32, "memory_gb": 30.0, "reserved_gb": 2.0}),
        (Fault(("unused_memory",), {"model.batch": 2, "memory_gb": 4.0}),),
        samples=16,
    )
    again = Fault(("activation_checkpointing",), {"model.checkpointed": True, "memory_gb": 12.0})
    yield Case("layers_checkpointed_with_memory_free", family, lambda size: gpt(size, memory_gb=35.0), (again,))
    yield Case(
        "layers_checkpointed_on_h100", family, lambda size: bert(size, H100, memory_gb=30.0, reserved_gb=2.0), (again,)
    )
