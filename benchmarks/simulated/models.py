"""Models as people write them: the ops of a forward pass with its loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from benchmarks.simulated.eager import Torch
from benchmarks.simulated.tensor import Tensor


class Model(Protocol):
    """What a training needs of it."""

    @property
    def batch(self) -> int:
        """Samples in a batch."""

    def inputs(self) -> tuple[Tensor, ...]:
        """What the loader hands over."""

    def forward(self, torch: Torch) -> None:
        """Up to the loss."""


@dataclass(frozen=True)
class ResNet:
    """ResNet for ImageNet-like pictures."""

    blocks: tuple[int, ...] = (2, 2, 2, 2)
    batch: int = 64
    pixels: int = 224
    bottleneck: bool = False
    channels_last: bool = True
    classes: int = 1_000

    def inputs(self) -> tuple[Tensor, ...]:
        """Pictures and classes."""
        pictures = Tensor((self.batch, 3, self.pixels, self.pixels), needs_grad=False)
        return pictures.channels_last() if self.channels_last else pictures, Tensor((self.batch,), "long int")

    def forward(self, torch: Torch) -> None:
        """Stem, four stages, and a linear layer."""
        x = self._convolution(torch, self.inputs()[0], 64, 7, 2)
        x = replace(torch.pointwise("relu_", x, streams=2.0, gradient=3.0), needs_grad=True)
        x = torch.max_pool(x)
        for stage, blocks in enumerate(self.blocks):
            for block in range(blocks):
                x = self._block(torch, x, 64 << stage, 2 if stage and not block else 1)
        x = torch.mean(x)
        head = torch.parameter(self.classes, x.shape[1]), torch.parameter(self.classes)
        torch.cross_entropy(torch.linear(x, *head))

    def _block(self, torch: Torch, x: Tensor, width: int, stride: int) -> Tensor:
        out = width * (4 if self.bottleneck else 1)
        steps = (
            ((width, 1, 1), (width, 3, stride), (out, 1, 1)) if self.bottleneck else ((width, 3, stride), (out, 3, 1))
        )
        y = x
        for number, (filters, size, by) in enumerate(steps):
            y = self._convolution(torch, y, filters, size, by)
            if number < len(steps) - 1:
                y = torch.pointwise("relu_", y, streams=2.0, gradient=3.0)
        if x.shape[1] != out:
            self._convolution(torch, x, out, 1, stride)
        torch.pointwise("add_", y, y, streams=3.0)
        torch.tape("AddBackward0", lambda: None)
        return torch.pointwise("relu_", y, streams=2.0, gradient=3.0)

    def _convolution(self, torch: Torch, x: Tensor, filters: int, size: int, stride: int) -> Tensor:
        weight = torch.parameter(filters, x.shape[1], size, size)
        weight = weight.channels_last() if self.channels_last else weight
        x = torch.convolution(x, weight, stride)
        return torch.batch_norm(x, torch.parameter(filters), torch.parameter(filters))


@dataclass(frozen=True)
class Transformer:
    """A GPT (causal, pre-norm) or, with dropout, a BERT-like encoder."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    length: int = 512
    vocabulary: int = 50_304
    batch: int = 8
    widened: int = 0
    """Of the MLP; four times `hidden` unless given."""
    dtype: str = "c10::BFloat16"
    """Of the weights."""
    causal: bool = True
    dropout: bool = False
    fused_attention: bool = True
    attention: str = ""
    """Backend of fused attention; the GPU's best if not said."""
    written_out_gelu: bool = False
    """The tanh form, op by op, as old code has it."""
    rms_norm: bool = False
    """Written out: pow, mean, add, rsqrt, mul, mul."""
    masked_loss: bool = False
    """The loss is of the positions that were masked."""
    experts: int = 0
    """Of an MLP that each token takes one of."""
    counted: bool = False
    """Masked positions and experts' tokens are selected by a boolean mask; otherwise by a fixed number of indices."""
    checkpointed: bool = False
    """Layers keep no activations; the backward pass runs them again."""
    one_at_a_time: bool = False
    """Heads in a Python loop; otherwise all in one batched matmul."""

    def inputs(self) -> tuple[Tensor, ...]:
        """Ids and labels."""
        ids = Tensor((self.batch, self.length), "long int", needs_grad=False)
        return ids, ids

    def forward(self, torch: Torch) -> None:
        """Embeddings, layers, and the language model's head."""
        ids = self.inputs()[0]
        x = torch.embedding(ids, torch.parameter(self.vocabulary, self.hidden, dtype=self.dtype))
        positions = torch.embedding(ids.of(1, self.length), torch.parameter(self.length, self.hidden, dtype=self.dtype))
        torch.pointwise("add", x, positions, streams=2.0, gradient=1.0)
        for _ in range(self.layers):
            x = torch.checkpoint(partial(self._layer, torch, x)) if self.checkpointed else self._layer(torch, x)
        x = self._norm(torch, x)
        if self.masked_loss:
            x = chosen_rows(torch, x, 0.15, self.counted)
        head = torch.parameter(self.vocabulary, self.hidden, dtype=self.dtype)
        torch.cross_entropy(torch.linear(x, head))

    def _layer(self, torch: Torch, x: Tensor) -> Tensor:
        torch.module()
        y = self._norm(torch, x)
        y = self._linear(torch, y, 3 * self.hidden)
        for name in ("split", "view", "transpose", "view", "transpose", "view", "transpose"):
            torch.view(name, y)
        heads = y.of(self.batch, self.heads, self.length, self.hidden // self.heads)
        if self.one_at_a_time:
            for _ in range(self.heads):
                torch.view("select", heads)
                self._attention(torch, heads.of(self.batch, 1, *heads.shape[2:]))
            torch.pointwise("cat", y.of(*y.shape[:-1], self.hidden), gradient=2.0)
        elif self.fused_attention:
            torch.attention(heads, self.causal, self.attention)
        else:
            self._attention(torch, heads)
        for name in ("transpose", "view"):
            torch.view(name, heads)
        y = self._residual(torch, x, self._linear(torch, x, self.hidden))
        z = self._norm(torch, y)
        for _ in range(max(self.experts, 1)):
            chosen = chosen_rows(torch, z, 1.0 / self.experts, self.counted) if self.experts else z
            wide = self._linear(torch, chosen, self.widened or 4 * self.hidden)
            self._gelu(torch, wide)
            out = self._linear(torch, wide, self.hidden)
            if self.experts:
                torch.pointwise("index_add_", out, streams=3.0, gradient=2.0)
        return self._residual(torch, y, z)

    def _linear(self, torch: Torch, x: Tensor, features: int) -> Tensor:
        weight = torch.parameter(features, x.shape[-1], dtype=self.dtype)
        return torch.linear(x, weight, torch.parameter(features, dtype=self.dtype))

    def _residual(self, torch: Torch, x: Tensor, y: Tensor) -> Tensor:
        if self.dropout:
            torch.dropout(y)
        return torch.pointwise("add", x, y, streams=3.0, gradient=0.0)

    def _norm(self, torch: Torch, x: Tensor) -> Tensor:
        weight, bias = (torch.parameter(self.hidden, dtype=self.dtype) for _ in range(2))
        if not self.rms_norm:
            return torch.norm(x, weight, bias)
        torch.module()
        exact = torch.cast(x, "float")
        torch.pointwise("pow", exact, gradient=3.0)
        torch.reduction_kernel_op("mean", exact)
        rows = exact.of(*exact.shape[:-1], 1)
        torch.pointwise("add", rows)
        torch.pointwise("rsqrt", rows, gradient=3.0)
        torch.pointwise("mul", exact, rows, gradient=4.0)
        x = torch.cast(exact, x.dtype)
        return torch.pointwise("mul", x, weight, gradient=3.0)

    def _gelu(self, torch: Torch, x: Tensor) -> None:
        torch.module()
        if not self.written_out_gelu:
            torch.pointwise("gelu", x, gradient=3.0)
            return
        for name, gradient in (
            ("pow", 3.0),
            ("mul", 2.0),
            ("add", 0.0),
            ("mul", 2.0),
            ("tanh", 3.0),
            ("add", 0.0),
            ("mul", 2.0),
            ("mul", 4.0),
        ):
            torch.pointwise(name, x, gradient=gradient)

    def _attention(self, torch: Torch, heads: Tensor) -> None:
        """Matmul, scale, mask, softmax, dropout, matmul."""
        batch, count, length, width = heads.shape
        left, right = heads.of(batch * count, length, width), heads.of(batch * count, width, length)
        with torch.op("aten::matmul", heads, heads):
            for _ in range(2):
                torch.view("expand", heads)
                torch.view("view", heads)
            scores = torch.bmm(left, right)
        scores = scores.of(batch, count, length, length)
        torch.pointwise("div", scores, gradient=2.0)
        if self.causal:
            torch.pointwise("masked_fill", scores, gradient=2.0)
        torch.softmax(scores)
        if self.dropout:
            torch.dropout(scores)
        with torch.op("aten::matmul", scores, heads):
            torch.bmm(scores.of(batch * count, length, length), left)


def chosen_rows(torch: Torch, x: Tensor, share: float, counted: bool) -> Tensor:
    """`x[mask]`, where nonzero copies a count to the host, or `x[indices]`."""
    rows = x.numel // x.shape[-1]
    mask = Tensor((rows,), "bool" if counted else "long int")
    with torch.op("aten::index", x, mask):
        if counted:
            _nonzero(torch, mask)
        chosen = x.of(max(int(rows * share) // 8 * 8, 8), x.shape[-1])
        inner = "at::native::gpu_index_kernel<at::native::index_kernel_impl>"
        name = f"void at::native::index_elementwise_kernel<128, 4, {inner} >"
        torch.kernel(name, torch.gpu.kernel_ns(0, 2.0 * chosen.size), max(chosen.numel // 512, 1))

    def gradient() -> None:
        with torch.op("aten::index_put_", x, chosen):
            torch.fill(x)
            torch.kernel(name, torch.gpu.kernel_ns(0, 2.0 * chosen.size), max(chosen.numel // 512, 1))

    torch.tape("IndexBackward0", gradient)
    return chosen


def _nonzero(torch: Torch, mask: Tensor) -> None:
    base = "void at_cuda_detail::cub::Device"
    with torch.op("aten::nonzero", mask, own_ns=4_000):
        torch.kernel(
            f"{base}ReduceSingleTileKernel<at_cuda_detail::cub::DeviceReducePolicy<bool, int> >", 3_000, 1, 256
        )
        torch.to_host(4)
        name = f"{base}SelectSweepKernel<at_cuda_detail::cub::DeviceSelectPolicy<int, bool, int> >"
        torch.kernel(name, 4_000, max(mask.numel // 1_024, 1), 256)


@dataclass(frozen=True)
class Dlrm:
    """A recommender: embedding tables, an interaction, two MLPs."""

    tables: int = 26
    rows: int = 100_000
    width: int = 64
    batch: int = 4_096
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (1_024, 1_024, 512, 256, 1)
    double_features: bool = False
    """Dense features come as float64, as NumPy makes them, and the bottom MLP was made to fit."""
    sparse: bool = True

    def inputs(self) -> tuple[Tensor, ...]:
        """Dense features, ids, and clicks."""
        dtype = "double" if self.double_features else "float"
        ids = Tensor((self.tables, self.batch), "long int", needs_grad=False)
        return Tensor((self.batch, 16), dtype, needs_grad=False), ids, Tensor((self.batch,))

    def forward(self, torch: Torch) -> None:
        """Up to the binary cross-entropy."""
        x, ids, _ = self.inputs()
        for features in self.bottom:
            weight = torch.parameter(features, x.shape[-1], dtype=x.dtype)
            x = replace(torch.linear(x, weight, torch.parameter(features, dtype=x.dtype)), needs_grad=True)
            torch.pointwise("relu_", x, streams=2.0, gradient=3.0)
        x = torch.cast(x, "float")
        for _ in range(self.tables):
            # An optimizer of its own updates the rows that were read; the other has the dense parameters.
            table = Tensor((self.rows, self.width)) if self.sparse else torch.parameter(self.rows, self.width)
            torch.embedding(ids.of(self.batch), table, self.sparse)
        torch.pointwise("cat", x.of(self.batch, (self.tables + 1) * self.width), streams=2.0, gradient=2.0)
        several = x.of(self.batch, self.tables + 1, self.width)
        torch.bmm(several, x.of(self.batch, self.width, self.tables + 1))
        pairs = x.of(self.batch, (self.tables * (self.tables + 1)) // 2 + self.width)
        torch.pointwise("index", pairs, gradient=2.0)
        x = pairs
        for features in self.top:
            x = torch.linear(x, torch.parameter(features, x.shape[-1]), torch.parameter(features))
            torch.pointwise("relu_" if features > 1 else "sigmoid", x, streams=2.0, gradient=3.0)
        torch.pointwise("binary_cross_entropy", x.of(self.batch), gradient=3.0)
