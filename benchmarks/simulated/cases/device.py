"""Faults of what the device computes: fusion, layouts, precision, shapes, optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.simulated.cases.case import Case, Fault, changed
from benchmarks.simulated.cases.workloads import BF16, bert, dlrm, gpt, little, resnet, short_of
from benchmarks.simulated.gpus import H100, V100
from benchmarks.simulated.training import Loading


def fusion() -> Iterator[Case]:
    """Memory is passed over too often."""
    family = "fusion and layouts"
    gelu = Fault(("unfused_pointwise",), {"model.written_out_gelu": True})
    yield Case("gelu_written_out", family, gpt, (gelu,))
    yield Case("gelu_written_out_on_h100", family, lambda size: bert(size, H100), (gelu,))
    norms = Fault(("unfused_pointwise",), {"model.rms_norm": True})
    yield Case("norms_written_out", family, gpt, (norms,))
    attention = Fault(("unfused_attention",), {"model.fused_attention": False})
    yield Case("attention_written_out", family, gpt, (attention,))
    yield Case("attention_written_out_with_dropout", family, lambda size: bert(size, H100), (attention,))
    backend = ("slow_attention_backend",)
    yield Case(
        "memory_efficient_attention",
        family,
        lambda size: changed(gpt(size), {"model.length": 2_048, "model.batch": 4}),
        (Fault(backend, {"model.attention": "efficient"}),),
    )
    yield Case(
        "flash_attention_2_on_h100",
        family,
        lambda size: changed(gpt(size, H100), {"model.length": 4_096, "model.batch": 2}),
        (Fault(backend, {"model.attention": "flash"}),),
    )
    layout = Fault(("layout_conversions",), {"model.channels_last": False})
    yield Case("pictures_in_nchw", family, lambda size: resnet(size, compiled=True), (layout,))
    yield Case("pictures_in_nchw_with_tf32", family, lambda size: resnet(size, half=None), (layout,))
    casts = Fault(("copy_and_cast_churn",), {"model.dtype": "float", "half": BF16})
    yield Case("weights_cast_every_step", family, little, (casts,))
    yield Case("weights_of_a_gpt_cast_every_step", family, lambda size: short_of(gpt(size), 2), (casts,))


def precision() -> Iterator[Case]:
    """Tensor Cores are not used, or not well."""
    family = "precision and shapes"
    exact = Fault(("tf32_off",), {"tf32": False})
    yield Case("bert_without_tf32", family, lambda size: bert(size, half=None), (exact,))
    yield Case("recommender_without_tf32", family, lambda size: dlrm(size, compiled=True, half=None), (exact,))
    full = Fault(("no_mixed_precision",), {"half": None})
    yield Case(
        "pictures_in_fp32_on_v100",
        family,
        lambda size: resnet(size, V100),
        (Fault(full.rules, {"half": None, "scaler": False}),),
    )
    yield Case("pictures_in_tf32", family, resnet, (full,))
    yield Case("bert_in_tf32_on_h100", family, lambda size: bert(size, H100), (full,))
    double = Fault(("double_precision",), {"model.double_features": True})
    yield Case("dense_features_in_double", family, lambda size: dlrm(size, half=None), (double,))
    vocabulary = Fault(("misaligned_dimensions",), {"model.vocabulary": 50_257})
    yield Case("vocabulary_of_50257", family, gpt, (vocabulary,))
    width = Fault(("misaligned_dimensions",), {"model.widened": 2_730})
    yield Case("mlp_of_2730", family, lambda size: changed(gpt(size, H100), {"model.widened": 2_736}), (width,))
    few = Fault(("underfilled_gpu",), {"model.batch": 4})
    yield Case(
        "four_pictures_a_batch",
        family,
        lambda size: resnet(size, graph=True, loading=Loading(8, 4.0)),
        (few,),
        samples=16,
    )
    short = Fault(("underfilled_gpu",), {"model.batch": 1})
    yield Case(
        "one_short_sequence_a_batch",
        family,
        lambda size: little(size, H100, graph=True, loading=Loading(8, 0.5)),
        (short,),
        samples=8,
    )


def optimizers() -> Iterator[Case]:
    """Updates and gradients cost too much."""
    family = "optimizer"
    loop = Fault(("unfused_optimizer",), {"form": "single"})
    yield Case("sgd_parameter_by_parameter", family, resnet, (loop,))
    yield Case("adamw_parameter_by_parameter", family, little, (loop,))
    yield Case("adamw_parameter_by_parameter_on_h100", family, lambda size: bert(size, H100), (loop,))
    each = Fault(("unfused_optimizer",), {"form": "foreach"})
    yield Case("adamw_as_foreach", family, lambda size: short_of(gpt(size), 2), (each,))
    zeros = Fault(("zero_grad_memset",), {"set_to_none": False})
    yield Case("gradients_set_to_zero", family, little, (zeros,))
    yield Case("gradients_of_a_large_model_set_to_zero", family, lambda size: short_of(gpt(size), 2), (zeros,))
    dense = Fault(("dense_embedding_gradients",), {"model.sparse": False})
    yield Case("tables_with_dense_gradients", family, dlrm, (dense,))
    yield Case("tables_with_dense_gradients_on_h100", family, lambda size: dlrm(size, H100), (dense,))
