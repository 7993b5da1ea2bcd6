"""Trainings with several faults; the largest counts."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.simulated.cases.case import Case, Fault
from benchmarks.simulated.cases.ranks import several
from benchmarks.simulated.cases.workloads import bert, dlrm, gpt, little, resnet
from benchmarks.simulated.gpus import H100, V100

ALONE = Fault(("dataloader_starvation",), {"loading.workers": 0})
ITEMS = Fault(("scalar_syncs",), {"syncing.items": 10})
LOOP = Fault(("unfused_optimizer",), {"form": "single"})
NCHW = Fault(("layout_conversions",), {"model.channels_last": False})
ZEROS = Fault(("zero_grad_memset",), {"set_to_none": False})


def mixed() -> Iterator[Case]:
    """Two or three faults each."""
    family = "mixed"
    yield Case("pictures_in_process_in_nchw", family, resnet, (ALONE, NCHW, LOOP))
    yield Case("items_and_a_loop_over_parameters", family, little, (ITEMS, LOOP, ZEROS))
    attention = Fault(("unfused_attention",), {"model.fused_attention": False})
    gelu = Fault(("unfused_pointwise",), {"model.written_out_gelu": True})
    yield Case("attention_and_gelu_written_out", family, gpt, (attention, gelu, ZEROS))
    exact = Fault(("tf32_off",), {"tf32": False})
    timed = Fault(("explicit_synchronisation",), {"syncing.device": 3})
    yield Case("bert_without_tf32_and_timed", family, lambda size: bert(size, half=None), (exact, timed))
    hooks = Fault(("host_work", "python_overhead"), {"python_us": 60.0})
    emptied = Fault(("allocator_churn",), {"freed": 30})
    yield Case("hooks_and_an_emptied_cache", family, lambda size: bert(size, H100), (hooks, emptied))
    dense = Fault(("dense_embedding_gradients",), {"model.sparse": False})
    slow = Fault(("dataloader_starvation",), {"loading.batch_ms": 120.0})
    yield Case("dense_tables_and_a_slow_loader", family, dlrm, (dense, slow))
    hot = Fault(("straggler",), {"distributed.slow_rank": 1.25})
    yield Case("items_and_a_hot_gpu", family, lambda size: several(gpt(size)), (hot, ITEMS))
    full = Fault(("no_mixed_precision",), {"half": None, "scaler": False})
    pageable = Fault(
        ("pageable_copies", "copies_not_overlapped"),
        {"loading.pinned": False, "loading.non_blocking": False, "loading.own_stream": False},
    )
    yield Case("fp32_pictures_from_pageable_memory", family, lambda size: resnet(size, V100), (full, pageable))
