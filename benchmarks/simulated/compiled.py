"""What torch.compile makes of eager ops: Triton kernels for chains of pointwise ops, and one Python frame."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from benchmarks.simulated.program import Backward, Host, Launch, Node, Range, Work

GUARDS_NS = 40_000
"""Checking guards and entering a compiled region."""
LAUNCH_NS = 4_000
"""Of a Triton kernel: its launcher and cuLaunchKernel."""
EXTERN_NS = 5_000
"""Of a matmul, called without dispatching views."""
CHAIN = 6
"""Kernels that become one: reductions and their users end a chain."""
FUSED = 1.15
"""Of the longest kernel of a chain; the others' inputs are read as well."""

KEPT = re.compile(r"gemm|nvjet|cudnn|flash|scudnn|engine<|nccl|cub::|radix|index|compute_grad|Memcpy|nll_loss")


def forward(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The forward pass as a compiled region."""
    body = (Range("CompiledFunction", tuple(_calls(nodes)), sequence=_sequence(nodes)),)
    graph = Range("## Call CompiledFxGraph fx2kq ##", body, "user_annotation")
    return (Range("Torch-Compiled Region: 0/0", (Host(GUARDS_NS), graph), "user_annotation"),)


def backward(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The backward pass: one node of autograd, then each parameter's gradient."""
    found = list[Node]()
    for node in nodes:
        if isinstance(node, Backward):
            gradients, others = list[Node](), list[Node]()
            for one in node.body:
                is_gradient = isinstance(one, Range) and "AccumulateGrad" in one.name
                (gradients if is_gradient else others).append(one)
            number = _sequence(others)
            inner = Range("CompiledFunctionBackward", tuple(_calls(others)), sequence=number, is_backward=True)
            name = "autograd::engine::evaluate_function: CompiledFunctionBackward"
            found.append(Backward((Range(name, (inner,), sequence=number, is_backward=True), *gradients)))
        else:
            found.append(node)
    return tuple(found)


def _sequence(nodes: Sequence[Node]) -> int | None:
    """The lowest of the ops: autograd numbers one function instead of all of them."""
    inner = (one for node in nodes if isinstance(node, Range) for one in (node.sequence, _sequence(node.body)))
    return min((one for one in inner if one is not None), default=None)


def _calls(nodes: Sequence[Node]) -> Iterator[Node]:
    number = 0
    for kept, launches in groupby(_launches(nodes, ""), key=lambda one: bool(KEPT.search(one[1].work.name))):
        some = list(launches)
        if kept:
            for name, launch, args in some:
                yield Range(name, (Host(EXTERN_NS), launch), args=args)
            continue
        for at in range(0, len(some), CHAIN):
            chain = some[at : at + CHAIN]
            longest = max((one[1].work for one in chain), key=lambda work: work.dur_ns)
            ops = "_".join(dict.fromkeys(one[0].removeprefix("aten::").strip("_") for one in chain))
            reduces = any("reduce" in one[1].work.name or "norm" in one[1].work.name for one in chain)
            name = f"triton_{'red' if reduces else 'poi'}_fused_{ops[:60]}_{number}"
            number += 1
            factor = FUSED if len(chain) > 1 else 1.0
            work = Work("kernel", name, round(longest.dur_ns * factor), longest.grid, longest.block)
            yield Range(name, (Host(LAUNCH_NS), Launch(work, call="cuLaunchKernel")))


def _launches(nodes: Sequence[Node], op: str) -> Iterator[tuple[str, Launch, dict[str, object]]]:
    for node in nodes:
        if isinstance(node, Range):
            for name, launch, args in _launches(node.body, node.name):
                yield name, launch, args or dict(node.args)
        elif isinstance(node, Launch):
            yield op, node, {}
