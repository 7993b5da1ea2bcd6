"""Which kernels could be one: chains of memory-bound kernels, losses over a vocabulary, attention written out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.device.fusion import attention_chains, pointwise_chains
from diagnose.facts.device.kernels import sorted_indexing
from diagnose.synthetic.reading import facts_of
from tests.drawing import MAIN, Drawing

ATEN = "void at::native::"
MUL = f"{ATEN}vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float> >(int)"
REDUCE = f"{ATEN}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float> > >(int)"
FILL = f"{ATEN}vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*)"
SOFTMAX_BACKWARD = "void (anonymous namespace)::softmax_warp_backward<float, float, float, 8, false, false>(float*)"
GEMM = "ampere_sgemm_128x64_nn"
X, Y = [1024, 1024], [512, 1024]


class Stream:
    """Ops back to back, each with one kernel: the host needs 10 us an op and is far ahead of the device."""

    def __init__(self) -> None:
        self.draw = Drawing().step(0, 0, 5_000)
        self.host, self.device = 0.0, 10_000.0

    def op(self, name: str, inputs: list[Any] | None, run: float = 10, kernel: str = MUL, **args: Any) -> Stream:
        """`inputs` are shapes of float tensors; None records none."""
        shapes = {} if inputs is None else {"Input Dims": inputs, "Input type": ["float"] * len(inputs)}
        tid, stream = args.pop("tid", MAIN), args.pop("stream", 7)
        self.draw.op(name, self.host, self.host + 10, tid=tid, **shapes, **args.pop("op", {}))
        run_of = (self.device, self.device + run)
        self.draw.launch(kernel, (self.host + 1, self.host + 2), run_of, tid=tid, stream=stream, **args)
        self.host, self.device = self.host + 10, self.device + run
        return self

    def threads(self, blocks: int, run: float = 10, name: str = "aten::mul", kernel: str = MUL) -> Stream:
        return self.op(name, None, run, kernel, grid=[blocks, 1, 1], block=[128, 1, 1])

    def chains(self) -> PointwiseChains:
        return pointwise_chains(self.draw.facts())

    def lengths(self) -> list[int]:
        return list(Counter(self.chains().group.tolist()).values())


def three(stream: Stream, shape: list[int] = X) -> Stream:
    return stream.op("aten::mul", [shape, shape]).op("aten::add", [shape, shape]).op("aten::relu", [shape])


def test_a_chain_and_what_it_would_take_as_one_kernel() -> None:
    stream = Stream().op("aten::mul", [X, X], 30).op("aten::add", [X, X], 30).op("aten::relu", [X], 20)
    stream.op("aten::mm", [X, X], 920, GEMM)
    found = stream.chains()
    assert found.group.tolist() == [0, 0, 0]
    assert found.elements.tolist() == [1024 * 1024]
    assert found.ns.tolist() == [80_000]
    # Of 4 MiB each they move 3 + 3 + 2; mul and add each need not write one, that the next need not read: half is left.
    assert found.bytes.tolist() == [16 * 2**20]
    assert (found.chains, found.chains_ns) == (1, 80_000)
    assert found.ops == ("aten::mul", "aten::add", "aten::relu")
    assert found.memory_bound_share == 0.08


def test_chains_are_of_the_whole_recording_and_totals_of_the_used_steps() -> None:
    draw = Drawing()
    for number in range(3):
        at = 1000 * number
        draw.step(number, at, at + 1000)
        for k, name in enumerate(("aten::mul", "aten::add", "aten::relu")):
            draw.op(name, at + 10 * k, at + 10 * k + 5, **{"Input Dims": [X], "Input type": ["float"]})
            draw.launch(MUL, (at + 10 * k + 1, at + 10 * k + 2), (at + 100 + 10 * k, at + 110 + 10 * k))
        draw.op("aten::mul", at + 900, at + 905, **{"Input Dims": [X], "Input type": ["float"]})
        draw.launch(MUL, (at + 901, at + 902), (at + 950, at + 954))
    found = pointwise_chains(draw.facts())
    # The last kernel of a step and the first of the next are not in one chain.
    assert found.group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert found.in_steps.tolist() == [False, True, True]
    assert (found.chains, found.chains_ns) == (1, 34_000)


def test_what_is_cast_filled_and_reduced_moves_other_bytes() -> None:
    casts = {"Input type": ["c10::BFloat16", "float"]}
    stream = Stream()
    stream.op("aten::fill_", [X], 10, FILL)  # writes 4 MiB
    stream.op("aten::copy_", None, 10, op={"Input Dims": [X, X], **casts})  # reads 4 MiB, writes 2 MiB
    stream.op("aten::sum", [X], 20, REDUCE)  # reads 4 MiB
    # 14 MiB; not written 4 and 2, not read 4 and 2.
    assert stream.chains().bytes.tolist() == [2 * 2**20]


def test_a_batch_norm_stays_and_needs_what_comes_before() -> None:
    norm = "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>(float)"
    stream = Stream().op("aten::add", [X, X]).op("aten::native_batch_norm", [X], 10, norm).op("aten::relu", [X])
    found = stream.chains()
    assert found.stays.tolist() == [False, True, False]
    # 4 MiB each: add reads two and writes one, which the norm needs; relu need not read what the norm makes.
    assert found.bytes.tolist() == [(3 + 1) * 4 * 2**20]


def test_equally_many_elements_or_halves_of_them() -> None:
    assert three(three(Stream(), X), [100, 1024]).lengths() == [3, 3]
    assert three(three(Stream(), X), Y).lengths() == [6]
    assert three(three(Stream(), X), [3 * 1024, 1024]).lengths() == [3, 3]


def test_statistics_of_the_elements_belong_to_the_chain() -> None:
    rows = [1024, 1]
    stream = Stream().op("aten::pow", [X]).op("aten::mean", [X], 10, REDUCE).op("aten::add", [rows], 2)
    stream.op("aten::rsqrt", [rows], 2).op("aten::mul", [X, rows])
    assert stream.lengths() == [5]
    assert stream.chains().elements.tolist() == [1024 * 1024]
    assert Stream().op("aten::add_", [[1]]).op("aten::mul", [X]).op("aten::relu", [X]).lengths() == []


def test_without_shapes_threads_tell() -> None:
    found = Stream().threads(2048).threads(8192).threads(2048, run=30).chains()
    assert found.group.tolist() == [0, 0, 0]
    assert found.elements.tolist() == [8192 * 128]
    assert found.bytes.tolist() == [0]  # threads do not tell types
    stream = Stream().threads(2048).threads(2048).threads(2048)
    assert stream.threads(16384).threads(16384).threads(16384).lengths() == [3, 3]


def test_kernels_that_stride_are_of_any_number_of_elements() -> None:
    stream = Stream().threads(2048).threads(13, kernel=REDUCE, name="aten::mean").threads(2048)
    assert stream.lengths() == [3]


@pytest.mark.parametrize(
    "other",
    [
        {"name": "aten::mm", "kernel": GEMM},
        {"name": "aten::mul", "tid": MAIN + 1},
        {"name": "liger::silu", "kernel": "_swiglu_forward_kernel"},
        {"name": "TELayerNorm", "kernel": "void transformer_engine::normalization::ln_fwd_tuned_kernel<float>()"},
        {"name": "CompiledFunction", "kernel": "triton_poi_fused_add_0"},
        {"name": "aten::copy_", "kernel": "Memcpy DtoH (Device -> Pinned)", "cat": "gpu_memcpy"},
    ],
)
def test_other_work_on_the_stream_ends_a_chain(other: dict[str, Any]) -> None:
    stream = three(Stream()).op(inputs=[X], **other)
    assert three(stream).lengths() == [3, 3]
    between = Stream().op("aten::mul", [X]).op("aten::mul", [X]).op(inputs=[X], **other)
    assert between.op("aten::mul", [X]).op("aten::mul", [X]).lengths() == []


def test_work_on_another_stream_does_not() -> None:
    stream = Stream().op("aten::mul", [X]).op("aten::mm", [X, X], 5, GEMM, stream=20)
    assert stream.op("aten::add", [X]).op("aten::relu", [X]).lengths() == [3]


def test_kernels_of_one_op_are_no_chain() -> None:
    draw = Drawing().op("aten::native_batch_norm", 0, 100, **{"Input Dims": [X], "Input type": ["float"]})
    for k in range(3):
        draw.launch(MUL, (10 * k, 10 * k + 1), (200 + 10 * k, 210 + 10 * k))
    found = pointwise_chains(draw.facts())
    assert (found.ids.tolist(), found.bytes.tolist(), found.ops, found.chains) == ([], [], (), 0)
    assert found.memory_bound_share == 1.0


def test_updates_of_parameters_are_not_in_it() -> None:
    stream = three(Stream())
    stream.draw.span("user_annotation", "Optimizer.step#SGD.step", 0, 100)
    found = stream.chains()
    assert (len(found.ids), found.memory_bound_share) == (0, 0)


def test_chains_without_any_host_recording() -> None:
    draw = Drawing()
    for k in range(4):
        draw.work(MUL, (10 * k, 10 * k + 10), grid=[64, 1, 1], block=[128, 1, 1])
    found = pointwise_chains(draw.facts())
    assert (found.group.tolist(), found.ops, found.bytes.tolist()) == ([0, 0, 0, 0], (), [0])


def test_hostile_sizes_do_no_harm() -> None:
    grid = [2**31 - 1] * 3
    stream = Stream().op("aten::mul", [[2**62], [2**44]]).op("aten::mul", None, grid=grid, block=grid)
    stream.op("aten::add", [[0]]).op("aten::add", [[[2**44]] * 500])
    assert stream.chains().memory_bound_share == 1.0
    with pytest.raises(Missing, match="device work"):
        pointwise_chains(Drawing().op("aten::mul", 0, 10).facts())


def test_without_ops_attention_is_not_known() -> None:
    facts = Drawing().work(GEMM, (0, 10)).work(SOFTMAX, (10, 20)).work(GEMM, (20, 30)).facts()
    with pytest.raises(Missing, match="framework ops"):
        attention_chains(facts)


def attention(stream: Stream, *, shapes: bool = True, mask: str = "aten::add", weights: int = 8) -> Stream:
    """Batch and heads 8, 64 queries and keys, head size 32."""
    q, k, v, s = [8, 64, 32], [8, 32, 64], [weights, 64, 32], [weights, 64, 64]

    def told(*inputs: list[int]) -> list[Any] | None:
        return list(inputs) if shapes else None

    number = {"Fwd thread id": 0}
    stream.op("aten::bmm", told(q, k), 10, GEMM, op={"Sequence number": 1, **number})
    stream.op("aten::div", told([2, 4, 64, 64]), 5).op(mask, told([2, 4, 64, 64], [64, 64]), 5)
    stream.op("aten::_softmax", told([2, 4, 64, 64]), 20, SOFTMAX, op={"Sequence number": 2, **number})
    return stream.op("aten::bmm", told(s, v), 12, GEMM, op={"Sequence number": 3, **number})


def test_attention_written_out() -> None:
    stream = Stream().op("aten::mm", [X, X], 100, GEMM)
    (found,) = attention_chains(attention(stream).draw.facts())
    assert (found.batch, found.queries, found.keys, found.head_dim) == (8, 64, 64, 32)
    assert (found.asked_by, found.calls, found.forward_ns, found.backward_ns) == ("aten::bmm", 1, 52_000, None)
    assert found.group.tolist() == [0] * 5
    # Two products of 8 x 64 x 64 pairs and 32 elements; four tensors of 8 x 64 x 32.
    assert found.flops.tolist() == [4 * 8 * 64 * 64 * 32]
    assert found.elements.tolist() == [4 * 8 * 64 * 32]
    assert (found.backward.tolist(), found.masked) == ([False], False)


def test_its_backward_follows_the_links() -> None:
    stream = attention(Stream())
    later: dict[str, Any] = {"tid": MAIN + 1}
    backward = {
        3: [("aten::bmm", 10, GEMM), ("aten::bmm", 14, GEMM)],
        2: [("aten::_softmax_backward_data", 40, SOFTMAX_BACKWARD)],
        1: [("aten::bmm", 9, GEMM), ("aten::bmm", 7, GEMM)],
    }
    for number, ops in backward.items():
        linked = {"Sequence number": number, "Fwd thread id": 1}
        stream.draw.op(f"Backward{number}", stream.host, stream.host + 10 * len(ops), **later, **linked)
        for name, run, kernel in ops:
            stream.op(name, [[8, 64, 64]], run, kernel, **later)
    stream.op("aten::mul", [X], 1000, **later)
    (found,) = attention_chains(stream.draw.facts())
    assert (found.forward_ns, found.backward_ns) == (52_000, 80_000)
    assert found.group.tolist() == [0] * 5 + [1] * 5
    # A fused backward multiplies five times, and reads and writes the gradients as well.
    assert found.flops.tolist() == [4 * 8 * 64 * 64 * 32, 10 * 8 * 64 * 64 * 32]
    assert found.elements.tolist() == [4 * 8 * 64 * 32, 8 * 8 * 64 * 32]
    assert found.backward.tolist() == [False, True]


def test_a_mask_between_the_products_is_seen() -> None:
    (found,) = attention_chains(attention(Stream(), mask="aten::masked_fill_").draw.facts())
    assert found.masked


def test_passes_of_one_shape_are_together() -> None:
    stream = attention(attention(Stream()).op("aten::mm", [X, X], 100, GEMM), mask="aten::masked_fill_")
    (found,) = attention_chains(stream.draw.facts())
    assert (found.calls, found.forward_ns, found.group.tolist()) == (2, 104_000, [0] * 5 + [1] * 5)


def test_what_is_not_attention() -> None:
    """Scores that are not what is multiplied in the end; a matmul of something else between."""
    assert attention_chains(attention(Stream(), weights=4).draw.facts()) == ()
    stream = Stream().op("aten::bmm", [[8, 64, 32], [8, 32, 64]], 10, GEMM).op("aten::mm", [X, X], 10, GEMM)
    stream.op("aten::_softmax", [[8, 64, 64]], 10, SOFTMAX).op("aten::bmm", [[8, 64, 64], [8, 64, 32]], 10, GEMM)
    assert attention_chains(stream.draw.facts()) == ()


def test_attention_of_unknown_size() -> None:
    with pytest.raises(Missing, match="shapes"):
        attention_chains(attention(Stream(), shapes=False).draw.facts())
    assert attention_chains(Stream().op("aten::bmm", None, 10, GEMM).draw.facts()) == ()


PUT = 'aten::index_put_ 1-2 shapes=[[100,1024],[],[250000,1024],[]] types=["float","","float",""]'
KERNELS = 'gpu DeviceRadixSortOnesweepKernel 2-3 @1.2 | "indexing_backward_kernel<float, 4>" 3-8 @1.5'


def test_the_backward_pass_of_indexing() -> None:
    (found,) = sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu {PUT}\n{KERNELS}"))
    assert (found.deterministic, found.calls, found.work.device_ns) == (False, 1, 6_000_000)
    # 1.024 GB three times, at 60 % of 2039 GB/s.
    assert found.floor == pytest.approx(3 * 1.024e9 / (0.6 * 2039e9) / 6e-3)


def test_deterministic_algorithms_add_by_it() -> None:
    (found,) = sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu aten::index_add_ 0-3 | {PUT}\n{KERNELS}"))
    assert found.deterministic


def test_without_shapes_there_is_no_floor() -> None:
    (found,) = sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu {PUT.split(' shapes')[0]}\n{KERNELS}"))
    assert (found.work.device_ns, found.floor) == (6_000_000, None)


def test_putting_without_adding_sorts_nothing() -> None:
    kernels = KERNELS.replace("indexing_backward_kernel", "index_elementwise_kernel")
    assert sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu {PUT}\n{kernels}")) == ()


def test_without_device_work_nothing_is_known() -> None:
    with pytest.raises(Missing):
        sorted_indexing(facts_of("3 steps of 20\ncpu aten::index_put_ 0-3"))
