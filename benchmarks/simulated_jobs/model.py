"""A transformer's blocks on one rank: the ops and kernels of their forward and backward passes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.simulated_jobs import a100
from benchmarks.simulated_jobs.machine import Rank
from benchmarks.simulated_jobs.recording import Work

MATMUL = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ATTENTION = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4> >"
ATTENTION_BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    "<pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8> >"
)
DISPATCH_NS, MATMUL_NS, NODE_NS, MODULE_NS = 4_500, 12_000, 2_000, 8_000
ATTENTION_SHARE = 0.5  # Of the peak that FlashAttention reaches.
CHUNK = 320 * 65_536  # Elements that one multi_tensor_apply kernel takes.


@dataclass(frozen=True)
class Model:
    """Blocks of attention and a multilayer perceptron."""

    hidden: int = 2_048
    blocks: int = 8
    tokens: int = 8_192  # Of a micro-batch of a rank.
    sequence: int = 2_048
    vocabulary: int = 16_384

    def weights(self) -> tuple[int, ...]:
        """Elements of a block's matrices, in the order of the forward pass."""
        square = self.hidden**2
        return (3 * square, square, 4 * square, 4 * square)


def shown(*shapes: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of an op in a trace with shapes: contiguous tensors of half precision."""
    strides = [[math.prod(shape[at + 1 :]) for at in range(len(shape))] for shape in shapes]
    return {
        "Input Dims": [list(shape) for shape in shapes],
        "Input type": ["c10::BFloat16"] * len(shapes),
        "Input Strides": strides,
        "Concrete Inputs": [""] * len(shapes),
    }


@dataclass(frozen=True)
class Taped:
    """What autograd's thread runs: a node of its graph, or, without a name, a hook."""

    name: str
    sequence: int
    play: Callable[[], None]
    weight: int = 0  # Elements of the parameter whose gradient it makes.


Tape: TypeAlias = list[Taped]


@dataclass
class Torch:
    """Records what a model runs on a rank. Matrices are split over `split` ranks, whose sums `reduce` makes."""

    rank: Rank
    model: Model
    split: int = 1
    reduce: Callable[[int], None] = lambda size: None
    on_gradient: Callable[[int], None] = lambda elements: None
    tape: Tape = field(default_factory=list)

    # Kernels and ops

    def kernel(self, name: str, dur_ns: float, blocks: int = 1_024, threads: int = 256) -> None:
        """Launch one."""
        self.rank.launch(Work("kernel", name, round(dur_ns), (max(blocks, 1), 1, 1), (threads, 1, 1)))

    def matmul(self, m: int, n: int, k: int, sequence: int | None = None, backward: bool = False) -> None:
        """`aten::mm` of (m, k) and (k, n)."""
        args = shown((m, k), (k, n))
        with self.rank.op("aten::mm", args, DISPATCH_NS + MATMUL_NS, sequence, backward):
            name = MATMUL
            # Tiles of matmul kernels of this size leave nothing idle: waves are what the share of the peak is for.
            taken = 2.0 * m * n * k / (a100.HALF_TFLOPS * a100.BEST * 0.85) / 1e3
            self.kernel(name, max(taken, 2_500.0), m * n // 128**2)

    def fused(self, name: str, elements: int, streams: float, sequence: int | None = None) -> None:
        """An elementwise or norm kernel that reads and writes so many half-precision tensors."""
        with self.rank.op(f"aten::{name}", shown((elements,)), DISPATCH_NS, sequence):
            dur_ns = a100.memory_ns(2.0 * streams * elements)
            self.kernel(f"void at::native::(anonymous namespace)::{name}_kernel<c10::BFloat16>(int)", dur_ns)

    def attend(self, tokens: int, backward: bool = False) -> None:
        """Causal attention."""
        model = self.model
        width = model.hidden // self.split
        flops = 4.0 * tokens * model.sequence * width / 2.0 * (2.5 if backward else 1.0)
        name = "aten::_scaled_dot_product_flash_attention" + ("_backward" if backward else "")
        args = shown(*[(tokens // model.sequence or 1, width // 128, model.sequence, 128)] * 3)
        sequence = None if backward else self.rank.next_sequence()
        with self.rank.op(name, args, 2 * DISPATCH_NS, sequence):
            taken = flops / (a100.HALF_TFLOPS * ATTENTION_SHARE) / 1e3
            self.kernel(ATTENTION_BACKWARD if backward else ATTENTION, taken, 512, 128)
        if not backward:
            made = Taped("ScaledDotProductFlashAttentionBackward0", sequence or 0, lambda: self.attend(tokens, True))
            self.tape.append(made)

    def norm(self, tokens: int) -> None:
        """RMSNorm."""
        elements, sequence = tokens * self.model.hidden, self.rank.next_sequence()
        self.fused("_fused_rms_norm", elements, 2.0, sequence)
        self.tape.append(
            Taped("FusedRmsNormBackward0", sequence, lambda: self.fused("_fused_rms_norm_backward", elements, 3.0))
        )

    def activation(self, elements: int) -> None:
        """SiLU or the like."""
        sequence = self.rank.next_sequence()
        self.fused("silu", elements, 2.0, sequence)
        self.tape.append(Taped("SiluBackward0", sequence, lambda: self.fused("silu_backward", elements, 3.0)))

    def linear(self, m: int, n: int, k: int) -> None:
        """A projection of (m, k) to n, with its weight's gradient."""
        self.rank.host(MODULE_NS)
        sequence = self.rank.next_sequence()
        with self.rank.op("aten::linear", shown((m, k), (n, k))):
            self.matmul(m, n, k, sequence)

        def backward() -> None:
            self.matmul(m, k, n, sequence, True)
            self.matmul(n, k, m, sequence, True)

        self.tape.append(Taped("MmBackward0", sequence, backward, n * k))

    # Blocks

    def block(self, tokens: int) -> None:
        """Forward; its backward goes onto the tape."""
        self.attention(tokens)
        self.perceptron(tokens)

    def attention(self, tokens: int) -> None:
        """With its norm and projections."""
        hidden, part = self.model.hidden, self.model.hidden // self.split
        self.norm(tokens)
        self._copied(tokens)
        self.linear(tokens, 3 * part, hidden)
        self.attend(tokens)
        self.linear(tokens, hidden, part)
        self._summed(tokens)

    def perceptron(self, tokens: int) -> None:
        """With its norm."""
        hidden, part = self.model.hidden, 4 * self.model.hidden // self.split
        self.norm(tokens)
        self._copied(tokens)
        self.linear(tokens, part, hidden)
        self.activation(tokens * part)
        self.linear(tokens, hidden, part)
        self._summed(tokens)

    def _summed(self, tokens: int) -> None:
        """Of outputs of split matrices, forward."""
        if self.split > 1:
            self.reduce(2 * tokens * self.model.hidden)

    def _copied(self, tokens: int) -> None:
        """Of gradients of inputs of split matrices, backward."""
        if self.split > 1:
            size = 2 * tokens * self.model.hidden
            self.tape.append(Taped("_ToTorchTensorBackward", self.rank.next_sequence(), lambda: self.reduce(size)))

    def head(self, tokens: int) -> None:
        """Logits and loss."""
        vocabulary = self.model.vocabulary // self.split
        self.norm(tokens)
        self.linear(tokens, vocabulary, self.model.hidden)
        sequence = self.rank.next_sequence()
        elements = tokens * vocabulary
        self.fused("_log_softmax", elements, 2.0, sequence)
        self.tape.append(
            Taped("LogSoftmaxBackward0", sequence, lambda: self.fused("_log_softmax_backward_data", elements, 3.0))
        )

    def taken(self) -> Tape:
        """The tape since."""
        found, self.tape = self.tape, []
        return found

    def backward(self, tape: Tape, last: Callable[[], None] | None = None) -> None:
        """`backward()` of what is on the tape."""
        with self.rank.autograd():
            for one in reversed(tape):
                if not one.name:
                    one.play()
                    continue
                evaluated = f"autograd::engine::evaluate_function: {one.name}"
                around = self.rank.op(evaluated, None, NODE_NS, one.sequence, True)
                with around, self.rank.op(one.name, None, 1_000, one.sequence, True):
                    one.play()
                if one.weight:
                    with self.rank.op(
                        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", None, 500
                    ):
                        with self.rank.op("torch::autograd::AccumulateGrad", None, NODE_NS):
                            pass
                        self.on_gradient(one.weight)
            if last:
                last()

    def hook(self, play: Callable[[], None]) -> None:
        """What runs at this place of the backward pass."""
        self.tape.append(Taped("", 0, play))

    # The optimizer

    def update(self, elements: int) -> None:
        """A fused AdamW: reads four tensors of fp32, writes three."""
        with self.rank.range("Optimizer.step#AdamW.step"):
            self.rank.host(150_000)
            with self.rank.op("aten::_fused_adamw_", None, 40_000):
                for start in range(0, elements, CHUNK):
                    size = min(CHUNK, elements - start)
                    name = (
                        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
                        "namespace)::FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >"
                    )
                    self.kernel(name, a100.memory_ns(28.0 * size), 320, 512)
        with self.rank.range("Optimizer.zero_grad#AdamW.zero_grad"):
            self.rank.host(20_000)


def total(weights: Sequence[int], blocks: int) -> int:
    """Elements of so many blocks."""
    return sum(weights) * blocks
