"""Healthy trainings at three sizes, from which cases are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from benchmarks.simulated.cases.case import changed
from benchmarks.simulated.gpus import A100, V100, Gpu
from benchmarks.simulated.models import Dlrm, ResNet, Transformer
from benchmarks.simulated.training import Loading, Training

BF16, FP16 = "c10::BFloat16", "c10::Half"
Value = TypeVar("Value")


def of(size: str, small: Value, medium: Value, large: Value) -> Value:
    """The value at a size."""
    return {"small": small, "medium": medium, "large": large}[size]


def resnet(size: str, gpu: Gpu = A100, **other: Any) -> Training:
    """ResNet-18, -50 and -101 in mixed precision; pictures are cached at their size, 1 ms of CPU each."""
    blocks, batch = of(size, (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3)), of(size, 64, 96, 128)
    model = ResNet(blocks, batch, bottleneck=size != "small")
    loading = Loading(of(size, 12, 8, 8), float(batch), own_stream=True)
    half = FP16 if gpu is V100 else BF16
    usual = Training(model, gpu, half, optimizer="SGD", loading=loading, scaler=gpu is V100)
    return replace(usual, **other)


def gpt(size: str, gpu: Gpu = A100, **other: Any) -> Training:
    """GPTs of 6, 12 and 24 layers in bf16."""
    layers, hidden, heads = of(size, (6, 512, 8), (12, 768, 12), (24, 1_024, 16))
    model = Transformer(layers, hidden, heads, 1_024, batch=of(size, 16, 16, 8))
    return replace(Training(model, gpu, loading=Loading(2, 4.0)), **other)


def bert(size: str, gpu: Gpu = A100, **other: Any) -> Training:
    """Encoders of 6, 12 and 24 layers with dropout; weights in fp32, autocast to bf16."""
    layers, hidden, heads = of(size, (6, 512, 8), (12, 768, 12), (24, 1_024, 16))
    model = Transformer(
        layers,
        hidden,
        heads,
        512,
        30_528,
        of(size, 32, 32, 16),
        dtype="float",
        causal=False,
        dropout=True,
        masked_loss=True,
    )
    return replace(Training(model, gpu, BF16, loading=Loading(4, 8.0)), **other)


def little(size: str, gpu: Gpu = A100, **other: Any) -> Training:
    """Transformers for short sequences, in batches that do not fill a GPU's time."""
    layers, hidden, heads = of(size, (4, 256, 4), (6, 384, 6), (12, 512, 8))
    model = Transformer(layers, hidden, heads, 128, 8_192, 8)
    return replace(Training(model, gpu, loading=Loading(4, 2.0)), **other)


def dlrm(size: str, gpu: Gpu = A100, **other: Any) -> Training:
    """Recommenders with 8 to 26 tables, whose gradients are sparse; MLPs under autocast."""
    model = Dlrm(of(size, 8, 26, 26), of(size, 100_000, 100_000, 200_000), 64, of(size, 4_096, 8_192, 32_768))
    loading = Loading(8, of(size, 2.0, 3.0, 12.0), own_stream=True)
    return replace(Training(model, gpu, BF16, loading=loading), **other)


def experts(size: str) -> Training:
    """GPTs whose MLPs are of four experts."""
    return changed(gpt(size), {"model.experts": 4, "model.batch": 4})


def written_out(size: str) -> Training:
    """Small transformers whose attention is written out as matmuls and a softmax."""
    return changed(little(size), {"model.fused_attention": False})


def short_of(training: Training, batch: int) -> Training:
    """The same with a smaller batch."""
    return changed(training, {"model.batch": batch})
