"""The ops that eager PyTorch runs for a layer: forward, the backward that autograd derives, and its optimizers.

Host times are those of ops without a profiler. Ops of real traces (V100, A100, H100) take 1.5 to 3 times as long as
these on the same kind of host, as a profiler records them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from benchmarks.simulated import kernel_names
from benchmarks.simulated.gpus import Gpu
from benchmarks.simulated.program import (
    DEFAULT_STREAM,
    Backward,
    Call,
    Host,
    Launch,
    Node,
    Range,
    Synchronize,
    Work,
)
from benchmarks.simulated.tensor import SIZES, Shown, Tensor, shown

DISPATCH_NS = 4_500
"""Of an op that launches a kernel, the launch aside: aten::add takes 12.8 us in an H100 trace, launch included."""
MATMUL_NS = 8_000
"""What cuBLAS adds to that: aten::addmm takes 30 us in the same trace."""
CONVOLUTION_NS = 12_000
"""What cuDNN adds: aten::cudnn_convolution takes 50 us in a V100 trace."""
WRAPPER_NS = 1_000
VIEW_NS = 700
EMPTY_NS = 1_800
NODE_NS = 2_000
"""Of autograd's engine, for each node."""
MODULE_NS = 8_000
"""Python of nn.Module.__call__ and a forward function between ops: 14 us in a V100 trace, profiler included."""
CONVOLUTION_SHARE = 0.6
"""Of the best matmul's rate that convolutions on Tensor Cores reach: 2,700 pictures/s of ResNet-50 on an A100."""
ATTENTION_SHARE = {"flash": 0.5, "efficient": 0.28, "cudnn": 0.6}
"""Of the peak: FlashAttention 2 on an A100, 0.35 on an H100; memory-efficient attention takes 1.1 to 2.6 times as long
as that; on an H100 FlashAttention 3 and cuDNN reach up to 0.75 forward (arXiv 2407.08608)."""
STAGED_BYTES = 65_536
"""A pageable copy up to this size returns once it is staged (CUDA, API synchronization behavior)."""
FOREACH_TENSORS, FOREACH_ELEMENTS = 48, 320 * 65_536
"""What one multi_tensor_apply kernel takes: tensors whose addresses fit its arguments, and chunks."""


@dataclass(frozen=True)
class Taped:
    """A node of autograd's graph."""

    name: str
    sequence: int
    play: Callable[[], None]
    parameters: tuple[Tensor, ...]


OnGradient: TypeAlias = Callable[[Tensor], None]


@dataclass
class Torch:
    """Records what eager PyTorch would run."""

    gpu: Gpu
    half: str | None = None
    """Element type that autocast computes matmuls in; None: no autocast."""
    tf32: bool = True
    accumulates: bool = False
    """Gradients are kept and added to (set_to_none=False), so each parameter's takes a kernel."""
    on_gradient: OnGradient | None = None
    """Called when a parameter's gradient is there: DistributedDataParallel's hook."""
    parameters: list[Tensor] = field(default_factory=list)
    sparse: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Rows that were read, and their tables, whose gradients are sparse."""
    _nodes: list[list[Node]] = field(default_factory=lambda: [[]])
    _tape: list[Taped] = field(default_factory=list)
    _sequence: int = 0
    _cast: set[int] = field(default_factory=set)
    recording_graph: bool = True

    # What is recorded

    def add(self, node: Node) -> None:
        """Put a node into the range that is open."""
        self._nodes[-1].append(node)

    def extend(self, nodes: Sequence[Node]) -> None:
        """The same of several."""
        self._nodes[-1].extend(nodes)

    def host(self, dur_ns: float) -> None:
        """Time of the host."""
        self.add(Host(round(dur_ns)))

    @contextmanager
    def range(
        self, name: str, category: str = "user_annotation", args: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """An annotation or Python frame."""
        with self._open(Range(name, (), category, args or {})):
            yield

    @contextmanager
    def op(
        self,
        name: str,
        *inputs: Shown,
        own_ns: int = WRAPPER_NS,
        sequence: int | None = None,
        backward: bool = False,
        values: Sequence[str] = (),
    ) -> Iterator[None]:
        """An op of the dispatcher, with its inputs' shapes, and values of further ones that are no tensors.

        `own_ns` passes before what it holds.
        """
        args = shown(inputs, values)
        with self._open(Range(name, (), "cpu_op", args, sequence, backward)):
            self.host(own_ns)
            yield

    @contextmanager
    def _open(self, what: Range) -> Iterator[None]:
        self._nodes.append([])
        yield
        body = tuple(self._nodes.pop())
        self.add(replace(what, body=body))

    def taken(self) -> tuple[Node, ...]:
        """What was recorded since."""
        body, self._nodes[-1] = tuple(self._nodes[-1]), []
        return body

    def view(self, name: str, tensor: Tensor) -> None:
        """An op that moves nothing."""
        with self.op(f"aten::{name}", tensor, own_ns=VIEW_NS):
            pass

    def empty(self, tensor: Tensor) -> None:
        """Memory from torch's caching allocator."""
        with self.op("aten::empty", own_ns=EMPTY_NS):
            pass

    def module(self) -> None:
        """Python of a module's call."""
        self.host(MODULE_NS)

    # Kernels

    def kernel(self, name: str, dur_ns: int, blocks: int, threads: int = 128, call: str = "cudaLaunchKernel") -> None:
        """Launch one."""
        grid = (min(max(blocks, 1), 2_147_483_647), 1, 1)
        self.add(Launch(Work("kernel", name, dur_ns, grid, (threads, 1, 1)), call=call))

    def pointwise_kernel(self, functor: str, tensor: Tensor, streams: float, flops: float = 1.0) -> None:
        """Of an elementwise op that reads and writes so many tensors of this size."""
        name = (
            f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 2ul> >"
            f"(int, {functor}, std::array<char*, 2ul>)"
        )
        dur_ns = self.gpu.kernel_ns(flops * tensor.numel, streams * tensor.size)
        self.kernel(name, dur_ns, math.ceil(tensor.numel / 512))

    def reduction_kernel(self, functor: str, tensor: Tensor, outputs: int) -> None:
        """Of a reduction to so many elements."""
        name = (
            f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{functor}> >(at::native::ReduceOp<{functor}>)"
        )
        dur_ns = self.gpu.kernel_ns(tensor.numel, tensor.size + 4 * outputs)
        self.kernel(name, dur_ns, max(math.ceil(tensor.numel / 4_096), 1), 512)

    def kind(self, dtype: str) -> str:
        """Arithmetic of matmuls of this element type."""
        if SIZES[dtype] == 2:
            return "half"
        if dtype == "double":
            return "fp64"
        return "tf32" if self.tf32 and self.gpu.has_tf32 else "fp32"

    def matmul_kernel(self, m: int, n: int, k: int, dtype: str, batch: int = 1, layout: str = "tn") -> None:
        """As cuBLAS chooses it. Operands that are not 16-byte aligned get slower kernels."""
        kind, size = self.kind(dtype), SIZES[dtype]
        align = next(one for one in (16 // size, 4, 2, 1) if n % one == 0 and k % one == 0 and one <= 16 // size)
        penalty = {8: 1.0, 4: 1.0 if size == 4 else 0.8, 2: 0.68, 1: 0.5}[align] if kind in ("half", "tf32") else 1.0
        dur_ns = self.gpu.matmul_ns(m, n, k, batch, size, kind, penalty)
        blocks = math.ceil(m / 128) * math.ceil(n / 128) * batch
        self.kernel(kernel_names.matmul(self.gpu, kind, dtype, align, layout), dur_ns, blocks, 256)

    # Copies and synchronisation

    def to_device(self, tensor: Tensor, pinned: bool, non_blocking: bool, stream: int = DEFAULT_STREAM) -> None:
        """`batch.to(device)`."""
        with self.op("aten::to", tensor), self.op("aten::_to_copy", tensor):
            with self.op("aten::empty_strided", own_ns=EMPTY_NS):
                pass
            with self.op("aten::copy_", tensor, tensor, own_ns=DISPATCH_NS):
                kind = "Pinned" if pinned else "Pageable"
                dur_ns = self.gpu.copy_ns(tensor.size, pinned)
                work = Work("gpu_memcpy", f"Memcpy HtoD ({kind} -> Device)", dur_ns, size=tensor.size)
                waits = not pinned and tensor.size > STAGED_BYTES
                self.add(Launch(work, stream, "cudaMemcpyAsync", 6_000, waits))
                if not non_blocking:
                    self.add(Synchronize(stream))

    def to_host(self, size: int) -> None:
        """A copy to pageable memory, which waits for the stream."""
        work = Work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", self.gpu.copy_ns(size, False), size=size)
        self.add(Launch(work, DEFAULT_STREAM, "cudaMemcpyAsync", 6_000, waits=True))
        self.add(Synchronize(DEFAULT_STREAM))

    def item(self, tensor: Tensor) -> None:
        """`.item()`, `float(loss)`."""
        with self.op("aten::item", tensor), self.op("aten::_local_scalar_dense", tensor, own_ns=DISPATCH_NS):
            self.to_host(SIZES[tensor.dtype])

    def cpu(self, tensor: Tensor) -> None:
        """`.cpu()`."""
        copying = self.op("aten::copy_", tensor, tensor, own_ns=DISPATCH_NS)
        with self.op("aten::to", tensor), self.op("aten::_to_copy", tensor), copying:
            self.to_host(tensor.size)

    def fill(self, tensor: Tensor, name: str = "zero_") -> None:
        """`zero_()`: a memset on a GPU for large contiguous tensors, otherwise a kernel; here a kernel."""
        with self.op(f"aten::{name}", tensor), self.op("aten::fill_", tensor, own_ns=DISPATCH_NS):
            self.pointwise_kernel(f"at::native::FillFunctor<{tensor.dtype}>", tensor, 1.0)

    # Autograd

    def tape(self, name: str, play: Callable[[], None], *parameters: Tensor) -> int:
        """Note what runs in the backward pass; the sequence number of the op."""
        self._sequence += 1
        if self.recording_graph:
            self._tape.append(Taped(name, self._sequence, play, parameters))
        return self._sequence

    def checkpoint(self, forward: Callable[[], Tensor]) -> Tensor:
        """`checkpoint(forward, use_reentrant=False)`: the first node of its backward pass runs it again before."""
        start = len(self._tape)
        found = forward()
        last = self._tape[-1]

        def play() -> None:
            tape, parameters = self._tape, self.parameters
            self._tape, self.parameters = [], []
            self.host(50_000)
            forward()
            self._tape, self.parameters = tape, parameters
            last.play()

        if len(self._tape) > start:
            self._tape[-1] = replace(last, play=play)
        return found

    @property
    def next_sequence(self) -> int:
        """Of the op that is taped next."""
        return self._sequence + 1

    def backward_then(self, last: Callable[[], None] | None) -> None:
        """`loss.backward()`, and a callback at its end on autograd's thread: DDP's."""
        nodes, self._tape = self._tape[::-1], []
        self._cast = set()
        self._nodes.append([])
        for node in nodes:
            with (
                self.op(
                    f"autograd::engine::evaluate_function: {node.name}",
                    own_ns=NODE_NS,
                    sequence=node.sequence,
                    backward=True,
                ),
                self.op(node.name, own_ns=WRAPPER_NS, sequence=node.sequence, backward=True),
            ):
                node.play()
            for parameter in node.parameters:
                self._accumulate(parameter)
        if last:
            last()
        self.add(Backward(tuple(self._nodes.pop())))

    def _accumulate(self, parameter: Tensor) -> None:
        name = "torch::autograd::AccumulateGrad"
        with self.op(f"autograd::engine::evaluate_function: {name}", own_ns=NODE_NS):
            with self.op(name, parameter, own_ns=NODE_NS):
                if self.accumulates:
                    self.pointwise("add_", parameter, parameter, streams=3.0)
                else:
                    self.view("detach", parameter)
            if self.on_gradient:
                self.on_gradient(parameter)

    def parameter(self, *shape: int, dtype: str = "float") -> Tensor:
        """A new one."""
        found = Tensor(shape, dtype)
        self.parameters.append(found)
        return found

    # Ops

    def pointwise(
        self, name: str, tensor: Tensor, *others: Tensor, streams: float | None = None, gradient: float = 0.0
    ) -> Tensor:
        """An elementwise op; `gradient`: tensors that its backward moves, none if it is not derived."""
        own = self.next_sequence if gradient else None
        moved = streams if streams is not None else 2.0 + sum(other.numel == tensor.numel for other in others)
        with self.op(f"aten::{name}", tensor, *others, own_ns=DISPATCH_NS, sequence=own):
            if not name.endswith("_"):
                self.empty(tensor)
            self.pointwise_kernel(kernel_names.functor(name, tensor.dtype), tensor, moved)
        if gradient:
            self.tape(f"{_title(name)}Backward0", lambda: self._pointwise_gradient(name, tensor, gradient))
        return tensor

    def _pointwise_gradient(self, name: str, tensor: Tensor, moved: float) -> None:
        backward = {"relu_": "threshold_backward", "gelu": "gelu_backward", "tanh": "tanh_backward"}.get(name, "mul")
        self.pointwise(backward, tensor, tensor, streams=moved)

    def cast(self, tensor: Tensor, dtype: str, derived: bool = True) -> Tensor:
        """`.to(dtype)`; its gradient is cast back."""
        if tensor.dtype == dtype:
            return tensor
        found = replace(tensor, dtype=dtype)
        own = self.next_sequence if derived else None
        self._cast_ops(tensor, found, own)
        if derived:
            self.tape("ToCopyBackward0", lambda: self._cast_ops(found, tensor, None))
        return found

    def _cast_ops(self, tensor: Tensor, found: Tensor, own: int | None) -> None:
        with self.op("aten::to", tensor), self.op("aten::_to_copy", tensor, sequence=own):
            with self.op("aten::empty_strided", own_ns=EMPTY_NS):
                pass
            with self.op("aten::copy_", found, tensor, own_ns=DISPATCH_NS):
                to = {"c10::BFloat16": "bfloat16_copy_kernel_cuda", "c10::Half": "float16_copy_kernel_cuda"}
                functor = f"at::native::{to.get(found.dtype, 'direct_copy_kernel_cuda')}"
                functor += "(at::TensorIteratorBase&)::{lambda(float)#1}"
                self.pointwise_kernel(functor, tensor, 1.0 + found.size / tensor.size)

    def autocast(self, tensor: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Both in the type that autocast computes in; a weight is cast once a step."""
        if self.half is None:
            return tensor, weight
        activations = self.cast(tensor, self.half)
        if id(weight) in self._cast:
            return activations, replace(weight, dtype=self.half)
        self._cast.add(id(weight))
        return activations, self.cast(weight, self.half)

    def linear(self, tensor: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`F.linear`; weight is [out, in]."""
        tensor, cast = self.autocast(tensor, weight)
        features, k = cast.shape
        m = tensor.numel // k
        rows, out = tensor.of(m, k), tensor.of(*tensor.shape[:-1], features)
        own = self.next_sequence
        inner = "aten::addmm" if bias is not None else "aten::mm"
        self.module()
        with self.op("aten::linear", tensor, cast, bias):
            with self.op("aten::t", cast, own_ns=VIEW_NS), self.op("aten::transpose", cast, own_ns=VIEW_NS):
                self.view("as_strided", cast)
            self.view("view", tensor)
            turned = replace(cast, shape=(k, features), strides=(1, k))
            operands = (bias, rows, turned) if bias is not None else (rows, turned)
            with self.op(inner, *operands, own_ns=DISPATCH_NS + MATMUL_NS, sequence=own):
                self.matmul_kernel(m, features, k, tensor.dtype)
            self.view("view", out)
        grads = tuple(one for one in (weight, bias) if one is not None)
        self.tape(
            "AddmmBackward0" if bias is not None else "MmBackward0",
            lambda: self._linear_gradient(tensor, m, features, k, bias is not None),
            *grads,
        )
        return out

    def _linear_gradient(self, tensor: Tensor, m: int, n: int, k: int, has_bias: bool) -> None:
        gradient = tensor.of(m, n)
        if tensor.needs_grad:
            with self.op("aten::mm", gradient, tensor.of(n, k), own_ns=DISPATCH_NS + MATMUL_NS):
                self.matmul_kernel(m, k, n, tensor.dtype, layout="nn")
        turned = replace(gradient, shape=(n, m), strides=(1, n))
        with self.op("aten::mm", turned, tensor.of(m, k), own_ns=DISPATCH_NS + MATMUL_NS):
            self.matmul_kernel(n, k, m, tensor.dtype, layout="nt")
        if has_bias:
            self.sum(gradient, n)

    def sum(self, tensor: Tensor, outputs: int) -> None:
        """Over rows."""
        with self.op("aten::sum", tensor, own_ns=DISPATCH_NS + 1_000):
            functor = f"{tensor.dtype}, at::native::func_wrapper_t<float, at::native::sum_functor<float> >"
            self.reduction_kernel(functor, tensor, outputs)

    def bmm(self, left: Tensor, right: Tensor) -> Tensor:
        """Batched matmul of [b, m, k] and [b, k, n]."""
        (b, m, k), n = left.shape, right.shape[2]
        own = self.next_sequence
        with self.op("aten::bmm", left, right, own_ns=DISPATCH_NS + MATMUL_NS, sequence=own):
            self.matmul_kernel(m, n, k, left.dtype, b)
        self.tape("BmmBackward0", lambda: self._bmm_gradient(left, right))
        return left.of(b, m, n)

    def _bmm_gradient(self, left: Tensor, right: Tensor) -> None:
        (b, m, k), n = left.shape, right.shape[2]
        for shape, sizes in (((b, k, m), (k, n, m)), ((b, m, n), (m, k, n))):
            with self.op("aten::bmm", left.of(*shape), right, own_ns=DISPATCH_NS + MATMUL_NS):
                self.matmul_kernel(*sizes, left.dtype, b)

    def norm(self, tensor: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """`F.layer_norm`; autocast computes it in fp32."""
        own = self.next_sequence
        self.module()
        inner = self.op("aten::native_layer_norm", tensor, None, weight, bias, own_ns=DISPATCH_NS, sequence=own)
        with self.op("aten::layer_norm", tensor, None, weight, bias), inner:
            for _ in range(3):
                self.empty(tensor)
            name = f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{tensor.dtype}, float>"
            rows = tensor.numel // tensor.shape[-1]
            self.kernel(f"{name}(int, float, {tensor.dtype} const*)", self._moving(tensor, 2.0), rows)
        self.tape("NativeLayerNormBackward0", lambda: self._norm_gradient(tensor), weight, bias)
        return tensor

    def _norm_gradient(self, tensor: Tensor) -> None:
        rows = tensor.numel // tensor.shape[-1]
        with self.op("aten::native_layer_norm_backward", tensor, tensor, own_ns=DISPATCH_NS + 2_000):
            for _ in range(3):
                self.empty(tensor)
            base = "void at::native::(anonymous namespace)::"
            name = f"{base}layer_norm_grad_input_kernel_vectorized<{tensor.dtype}, float>"
            self.kernel(name, self._moving(tensor, 3.0), rows)
            name = f"{base}GammaBetaBackwardCUDAKernelTemplate<{tensor.dtype}, float, 64u, 16u, 256u>"
            self.kernel(name, self._moving(tensor, 2.0), max(tensor.shape[-1] // 32, 1), 256)

    def _moving(self, tensor: Tensor, streams: float) -> int:
        return self.gpu.kernel_ns(5.0 * tensor.numel, streams * tensor.size)

    def dropout(self, tensor: Tensor) -> Tensor:
        """In training."""
        own = self.next_sequence
        self.module()
        with (
            self.op("aten::dropout", tensor),
            self.op("aten::native_dropout", tensor, own_ns=DISPATCH_NS, sequence=own),
        ):
            self.empty(tensor)
            self.empty(tensor)
            name = (
                "void at::native::(anonymous namespace)::fused_dropout_kernel_vec"
                f"<{tensor.dtype}, float, unsigned int, 1, 4, bool>"
            )
            self.kernel(name, self._moving(tensor, 2.5), math.ceil(tensor.numel / 1_024), 256)
        self.tape("NativeDropoutBackward0", lambda: self._dropout_gradient(tensor))
        return tensor

    def _dropout_gradient(self, tensor: Tensor) -> None:
        with self.op("aten::native_dropout_backward", tensor, own_ns=DISPATCH_NS):
            self.pointwise_kernel("at::native::masked_scale_kernel<bool, float>", tensor, 2.5)

    def softmax(self, tensor: Tensor, log: bool = False) -> Tensor:
        """Over the last dimension."""
        name = "log_softmax" if log else "softmax"
        own = self.next_sequence
        with self.op(f"aten::{name}", tensor), self.op(f"aten::_{name}", tensor, own_ns=DISPATCH_NS, sequence=own):
            self._softmax_kernel(tensor, log, "forward", 2.0)
        self.tape(f"{'Log' if log else ''}SoftmaxBackward0", lambda: self._softmax_gradient(tensor, log))
        return tensor

    def _softmax_gradient(self, tensor: Tensor, log: bool) -> None:
        with self.op(f"aten::_{'log_' if log else ''}softmax_backward_data", tensor, tensor, own_ns=DISPATCH_NS):
            self._softmax_kernel(tensor, log, "backward", 3.0)

    def _softmax_kernel(self, tensor: Tensor, log: bool, way: str, streams: float) -> None:
        rows = tensor.numel // tensor.shape[-1]
        if tensor.shape[-1] <= 1_024:
            flag = str(log).lower()
            types = f"{tensor.dtype}, {tensor.dtype}, float"
            name = f"void (anonymous namespace)::softmax_warp_{way}<{types}, 10, {flag}, false>"
            self.kernel(name, self._moving(tensor, streams), max(rows // 4, 1))
        else:
            title = "Forward" if way == "forward" else "Backward"
            base, types = "at::native::(anonymous namespace)::", f"{tensor.dtype}, float, {tensor.dtype}"
            epilogue = f"{base}{'Log' if log else ''}SoftMax{title}Epilogue"
            name = f"void {base}cunn_SoftMax{title}<4, {types}, {epilogue}>"
            self.kernel(name, self._moving(tensor, streams * 1.3), rows, 1_024)

    def cross_entropy(self, logits: Tensor) -> None:
        """`F.cross_entropy`; fp32 under autocast, as everywhere."""
        logits = self.cast(logits, "float") if self.half else logits
        with self.op("aten::cross_entropy_loss", logits):
            self.softmax(logits, log=True)
            own = self.next_sequence
            with (
                self.op("aten::nll_loss_nd", logits),
                self.op("aten::nll_loss", logits),
                self.op("aten::nll_loss_forward", logits, own_ns=DISPATCH_NS, sequence=own),
            ):
                name = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d"
                self.kernel(f"{name}<{logits.dtype}, float, long>", 4_000, 1, 32)
        self.tape("NllLossBackward0", lambda: self._nll_gradient(logits))

    def _nll_gradient(self, logits: Tensor) -> None:
        with self.op("aten::nll_loss_backward", logits, own_ns=DISPATCH_NS):
            self.fill(logits)
            name = "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d"
            self.kernel(f"{name}<{logits.dtype}, long>", 4_000, 1, 32)

    def embedding(self, ids: Tensor, table: Tensor, sparse: bool = False) -> Tensor:
        """`F.embedding`."""
        rows, width = ids.numel, table.shape[1]
        out = table.of(*ids.shape, width)
        own = self.next_sequence
        self.module()
        with (
            self.op("aten::embedding", table, ids, sequence=own, values=("-1", "False", str(sparse))),
            self.op("aten::index_select", table, ids, own_ns=DISPATCH_NS),
        ):
            name = "void at::native::(anonymous namespace)::indexSelectLargeIndex"
            dur_ns = self.gpu.kernel_ns(0, 2.0 * out.size)
            self.kernel(f"{name}<{table.dtype}, long, unsigned int, 2, 2, -2, true>", dur_ns, rows)
        if sparse:
            self.sparse.append((out, table))
        self.tape("EmbeddingBackward0", lambda: self._embedding_gradient(out, ids, table, sparse), table)
        return out

    def _embedding_gradient(self, out: Tensor, ids: Tensor, table: Tensor, sparse: bool) -> None:
        values = (str(table.shape[0]), "-1", "False")
        outer = self.op("aten::embedding_backward", out, ids, values=(*values, str(sparse)))
        name = f"aten::embedding_{'sparse' if sparse else 'dense'}_backward"
        with outer, self.op(name, out, ids, own_ns=DISPATCH_NS + 8_000, values=values):
            if sparse:
                self.view("view", out)
                return
            self.fill(table)
            self._sort(out)
            name = f"void at::native::(anonymous namespace)::compute_grad_weight<{table.dtype}, long>"
            self.kernel(name, self.gpu.kernel_ns(0, 2.0 * out.size), out.numel // out.shape[-1])

    def _sort(self, out: Tensor) -> None:
        for _ in range(3):
            name = "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, long, int>::Policy800>"
            self.kernel(name, max(self.gpu.kernel_ns(0, 32.0 * out.numel / out.shape[-1]), 6_000), 100, 384)

    def sparse_update(self, out: Tensor, table: Tensor) -> None:
        """Of the rows that were read, by an optimizer for sparse gradients: equal rows are summed, and added."""
        with self.op("aten::_coalesce", out, own_ns=DISPATCH_NS):
            self._sort(out)
        with self.op("aten::add_", table, out, own_ns=DISPATCH_NS):
            name = (
                "void at::native::apply::sparseElementwiseKernel<at::native::apply::TensorCAddOp<float>, unsigned long>"
            )
            self.kernel(name, self.gpu.kernel_ns(0, 4.0 * out.size), out.numel // out.shape[-1])

    def attention(self, query: Tensor, causal: bool = True, backend: str = "") -> Tensor:
        """`F.scaled_dot_product_attention`; [batch, heads, length, width] in half precision.

        `backend`: flash (FlashAttention 2), efficient or cudnn; the best of the GPU if not said.
        """
        backend = backend or ("cudnn" if self.gpu.capability >= (9, 0) else "flash")
        own = self.next_sequence
        batch, heads, length, _ = query.shape
        sdpa = f"aten::_scaled_dot_product_{backend}_attention"
        with (
            self.op("aten::scaled_dot_product_attention", query, query, query, sequence=own),
            self.op(sdpa, query, query, query, own_ns=DISPATCH_NS, sequence=own),
        ):
            for _ in range(3):
                self.view("transpose", query)
            for _ in range(4):
                self.empty(query)
            blocks = batch * heads * math.ceil(length / 128)
            self.kernel(kernel_names.attention(backend, False), self._attention_ns(query, 2, causal, backend), blocks)
        name = f"ScaledDotProduct{backend.title()}AttentionBackward0"
        self.tape(name, lambda: self._attention_gradient(query, causal, backend))
        return query

    def _attention_ns(self, query: Tensor, matmuls: int, causal: bool, backend: str) -> int:
        batch, heads, length, width = query.shape
        flops = matmuls * 2.0 * batch * heads * length * length * width * (0.5 if causal else 1.0)
        share = ATTENTION_SHARE[backend] * (0.7 if backend == "flash" and self.gpu.capability >= (9, 0) else 1.0)
        return self.gpu.kernel_ns(flops, 4.0 * query.size, "half", share)

    def _attention_gradient(self, query: Tensor, causal: bool, backend: str) -> None:
        batch, heads, length, _ = query.shape
        blocks = batch * heads * math.ceil(length / 128)
        sdpa = f"aten::_scaled_dot_product_{backend}_attention_backward"
        with self.op(sdpa, query, query, query, query, own_ns=DISPATCH_NS):
            base, traits = "void pytorch_flash::flash_bwd_", "<pytorch_flash::Flash_bwd_kernel_traits<64, 128> >"
            if backend == "flash":
                self.kernel(f"{base}dot_do_o_kernel{traits}", self._moving(query, 2.0), blocks)
            self.kernel(
                kernel_names.attention(backend, True), self._attention_ns(query, 5, causal, backend), blocks, 256
            )
            if backend == "flash":
                self.kernel(f"{base}convert_dq_kernel{traits}", self._moving(query, 3.0), blocks)

    def convolution(self, tensor: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
        """`nn.Conv2d` without a bias, 'same' padding."""
        last = tensor.is_channels_last
        tensor, cast = self.autocast(tensor, weight)
        n, _, h, w = tensor.shape
        filters = cast.shape[0]
        out = tensor.of(n, filters, math.ceil(h / stride), math.ceil(w / stride))
        out = out.channels_last() if last else out
        own = self.next_sequence
        self.module()
        with (
            self.op("aten::conv2d", tensor, cast, sequence=own),
            self.op("aten::convolution", tensor, cast, sequence=own),
            self.op("aten::_convolution", tensor, cast),
            self.op("aten::cudnn_convolution", tensor, cast, own_ns=DISPATCH_NS + CONVOLUTION_NS),
        ):
            self._convolution_kernels("fprop", tensor, cast, out, last)
        self.tape("ConvolutionBackward0", lambda: self._convolution_gradient(tensor, cast, out, last), weight)
        return out

    def _convolution_gradient(self, tensor: Tensor, weight: Tensor, out: Tensor, last: bool) -> None:
        with self.op("aten::convolution_backward", out, tensor, weight, own_ns=DISPATCH_NS + CONVOLUTION_NS):
            if tensor.needs_grad:
                self._convolution_kernels("dgrad", tensor, weight, out, last)
            self._convolution_kernels("wgrad", tensor, weight, out, last)

    def _convolution_kernels(self, way: str, tensor: Tensor, weight: Tensor, out: Tensor, last: bool) -> None:
        """Tensor Cores want NHWC: from NCHW cuDNN converts, before and after."""
        kind = self.kind(tensor.dtype)
        converts = kind != "fp32" and not last
        if converts:
            for one in (tensor, weight):
                self._convert("nchwToNhwcKernel", one)
        channels, (filters, _, kh, kw) = tensor.shape[1], weight.shape
        pixels = out.numel // filters
        m, n, k = pixels, filters, channels * kh * kw
        if way == "dgrad":
            n, k = channels, filters * kh * kw
        elif way == "wgrad":
            m, n, k = filters, channels * kh * kw, pixels
        moved = tensor.size + weight.size + out.size
        rate = self.gpu.rate(kind, CONVOLUTION_SHARE) * self.gpu.filled(m, n, k, 1)
        dur_ns = self.gpu.kernel_ns(2.0 * out.numel * channels * kh * kw, moved, kind, rate)
        self.kernel(
            kernel_names.convolution(self.gpu, way, kind, tensor.dtype, last),
            dur_ns,
            math.ceil(m / 128) * math.ceil(n / 128),
            256,
        )
        if converts:
            self._convert("nhwcToNchwKernel", out if way != "wgrad" else weight)

    def _convert(self, name: str, tensor: Tensor) -> None:
        word = {"c10::BFloat16": "__nv_bfloat16", "c10::Half": "__half"}.get(tensor.dtype, "float")
        full = f"void cudnn::ops::{name}<{word}, {word}, float, false, true, (cudnnKernelDataType_t)2>"
        self.kernel(full, self._moving(tensor, 2.0), math.ceil(tensor.numel / 1_024), 256)

    def batch_norm(self, tensor: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """`nn.BatchNorm2d` in training."""
        own = self.next_sequence
        self.module()
        self.pointwise("add_", Tensor((), "long int"), streams=2.0)
        last = tensor.is_channels_last
        with (
            self.op("aten::batch_norm", tensor, weight, bias, sequence=own),
            self.op("aten::_batch_norm_impl_index", tensor, weight, bias, sequence=own),
            self.op("aten::cudnn_batch_norm", tensor, weight, bias, own_ns=DISPATCH_NS + MATMUL_NS),
        ):
            for _ in range(4):
                self.empty(tensor)
            self._norm_kernel("fw_tr", tensor, 3.0, last)
        self.tape("CudnnBatchNormBackward0", lambda: self._batch_norm_gradient(tensor, last), weight, bias)
        return tensor

    def _batch_norm_gradient(self, tensor: Tensor, last: bool) -> None:
        with self.op("aten::cudnn_batch_norm_backward", tensor, tensor, own_ns=DISPATCH_NS + 2_000):
            for _ in range(3):
                self.empty(tensor)
            self._norm_kernel("bw", tensor, 5.0, last)

    def _norm_kernel(self, way: str, tensor: Tensor, streams: float, last: bool) -> None:
        word = {"c10::BFloat16": "__nv_bfloat16", "c10::Half": "__half"}.get(tensor.dtype, "float")
        form = "NHWC" if last else "NCHW"
        name = f"void cudnn::bn_{way}_1C11_kernel_{form}<{word}, float, int, 512, true, 1, true>(cudnnTensorStruct)"
        self.kernel(name, self._moving(tensor, streams), tensor.shape[1], 512)

    def max_pool(self, tensor: Tensor) -> Tensor:
        """3 x 3, stride 2."""
        n, c, h, w = tensor.shape
        out = tensor.of(n, c, h // 2, w // 2)
        out = out.channels_last() if tensor.is_channels_last else out
        own = self.next_sequence
        form = "nhwc" if tensor.is_channels_last else "nchw"
        self.module()
        with (
            self.op("aten::max_pool2d", tensor),
            self.op("aten::max_pool2d_with_indices", tensor, own_ns=DISPATCH_NS, sequence=own),
        ):
            name = f"void at::native::(anonymous namespace)::max_pool_forward_{form}<float, float>"
            self.kernel(name, self._moving(tensor, 2.0), math.ceil(out.numel / 256), 256)
        self.tape("MaxPool2DWithIndicesBackward0", lambda: self._pool_gradient(tensor, form))
        return out

    def _pool_gradient(self, tensor: Tensor, form: str) -> None:
        with self.op("aten::max_pool2d_with_indices_backward", tensor, own_ns=DISPATCH_NS):
            self.fill(tensor)
            name = f"void at::native::(anonymous namespace)::max_pool_backward_{form}<float, float>"
            self.kernel(name, self._moving(tensor, 3.0), math.ceil(tensor.numel / 256), 256)

    def mean(self, tensor: Tensor) -> Tensor:
        """Over height and width: nn.AdaptiveAvgPool2d(1)."""
        n, c = tensor.shape[:2]
        own = self.next_sequence
        self.module()
        with (
            self.op("aten::adaptive_avg_pool2d", tensor),
            self.op("aten::mean", tensor, own_ns=DISPATCH_NS, sequence=own),
        ):
            self.reduction_kernel(f"{tensor.dtype}, at::native::MeanOps<float, float>", tensor, n * c)
        self.tape("MeanBackward1", lambda: self._mean_gradient(tensor))
        return tensor.of(n, c)

    def _mean_gradient(self, tensor: Tensor) -> None:
        self.view("expand", tensor)
        self.pointwise("div", tensor, streams=1.0)

    # Optimizers

    def zero_grad(self, optimizer: str, set_to_none: bool = True) -> None:
        """`optimizer.zero_grad()`; zeroing is one foreach op, or a kernel a parameter."""
        with self.range(f"Optimizer.zero_grad#{optimizer}.zero_grad"):
            self.host(100 * len(self.parameters))
            if not set_to_none:
                for parameter in self.parameters:
                    self.fill(parameter)

    def optimizer(self, name: str, form: str) -> None:
        """`optimizer.step()`: AdamW or SGD with momentum; fused, foreach or single (a loop over parameters)."""
        with self.range(f"Optimizer.step#{name}.step"):
            self.host(20_000 + 400 * len(self.parameters))
            if form == "fused":
                self._foreach("_foreach_add_", [Tensor((1,))] * len(self.parameters), 2.0)
                word = "Adam" if name.startswith("Adam") else "Sgd"
                base = "at::native::(anonymous namespace)::"
                lists, functor = f"{base}FusedOptimizerTensorListMetadata<4>", f"{base}Fused{word}MathFunctor<float, 4>"
                full = f"void {base}multi_tensor_apply_kernel<{lists}, {functor} >"
                with self.op(f"aten::_fused_{name.lower()}_", self.parameters, own_ns=DISPATCH_NS + 10_000):
                    self._apply(full, self.parameters, 7.0 if word == "Adam" else 5.0)
            elif form == "foreach":
                self.host(1_000 * len(self.parameters))
                for one, streams in STEPS[name]:
                    self._foreach(f"_foreach_{one}", self.parameters, streams)
            else:
                for parameter in self.parameters:
                    self.host(12_000)
                    for one, streams in STEPS[name]:
                        self.pointwise(one, parameter, streams=streams)
        if self.sparse:
            with self.range("Optimizer.step#SGD.step"):
                for out, table in self.sparse:
                    self.sparse_update(out, table)

    def _foreach(self, name: str, tensors: Sequence[Tensor], streams: float) -> None:
        functor = "BinaryOpListAlphaFunctor" if "add" in name else "PointwiseOpScalarFunctor"
        full = (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
            f"TensorListMetadata<2>, at::native::(anonymous namespace)::{functor}<float, 2, 2, 0> >"
        )
        with self.op(f"aten::{name}", tensors, own_ns=DISPATCH_NS + 100 * len(tensors)):
            self._apply(full, tensors, streams)

    def _apply(self, name: str, tensors: Sequence[Tensor], streams: float) -> None:
        held, elements = list[Tensor](), 0
        for number, tensor in enumerate(tensors):
            held.append(tensor)
            elements += tensor.numel
            if len(held) == FOREACH_TENSORS or elements >= FOREACH_ELEMENTS or number == len(tensors) - 1:
                size = streams * sum(one.size for one in held)
                blocks = sum(math.ceil(one.numel / 65_536) for one in held)
                self.kernel(name, self.gpu.kernel_ns(elements, size), blocks, 512)
                held, elements = [], 0

    def clip(self, tensors: Sequence[Tensor] | None = None) -> Tensor:
        """`clip_grad_norm_`, as foreach ops; the norm."""
        tensors = self.parameters if tensors is None else tensors
        self._foreach("_foreach_norm", tensors, 1.0)
        norm = Tensor((len(tensors),))
        self.pointwise("stack", norm)
        self.reduction_kernel_op("linalg_vector_norm", norm)
        for one in ("add", "reciprocal", "mul", "clamp"):
            self.pointwise(one, Tensor(()))
        self._foreach("_foreach_mul_", tensors, 2.0)
        return Tensor(())

    def reduction_kernel_op(self, name: str, tensor: Tensor) -> None:
        """A reduction to one element."""
        with self.op(f"aten::{name}", tensor, own_ns=DISPATCH_NS):
            self.reduction_kernel("float, at::native::NormTwoOps<float, float>", tensor, 1)

    def malloc(self, dur_ns: int) -> None:
        """cudaMalloc, in an op."""
        with self.op("aten::empty", own_ns=EMPTY_NS):
            self.add(Call("cudaMalloc", dur_ns))


STEPS: Mapping[str, tuple[tuple[str, float], ...]] = {
    # Ops of torch.optim.AdamW's and SGD's loops, and tensors that each moves.
    "AdamW": (
        ("mul_", 2.0),
        ("lerp_", 3.0),
        ("mul_", 2.0),
        ("addcmul_", 4.0),
        ("sqrt", 2.0),
        ("div_", 2.0),
        ("add_", 2.0),
        ("addcdiv_", 4.0),
    ),
    "SGD": (("add", 3.0), ("mul_", 2.0), ("add_", 3.0), ("add_", 3.0)),
}


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.strip("_").split("_"))
