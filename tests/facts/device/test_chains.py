"""Chains of memory-bound ops where the CPU computes."""

import numpy as np
import pytest

from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.device.fusion import pointwise_chains
from diagnose.synthetic.reading import facts_of

MS = 1_000_000
X = "shapes=[[1024,1024]]"
XX = "shapes=[[1024,1024],[1024,1024]]"
CHAIN = f"aten::mul 0-3 {XX} | aten::add 3-6 {XX} | aten::relu 6-8 {X}"


def chains(*lines: str, ms: int = 20) -> PointwiseChains:
    """Of three steps, of which two are used."""
    synthetic = "\n".join(f"cpu {line}" for line in lines)
    return pointwise_chains(facts_of(f"3 steps of {ms}\n1 threads, 2 cores\n{synthetic}"))


def lengths(*lines: str) -> list[int]:
    """Ops in each chain of a step."""
    found = chains(*lines)
    return np.bincount(found.group)[: len(found.ns) // 3].tolist()


def test_a_chain_and_what_it_would_take_as_one() -> None:
    found = chains(CHAIN, f"aten::mm 8-16 {XX}")
    assert found.on_cpu
    assert found.group.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert found.elements.tolist() == [1024 * 1024] * 3
    assert found.ns.tolist() == [8 * MS] * 3
    # Of 4 MiB each they move 3 + 3 + 2; mul and add each need not write one, that the next need not read: half is left.
    assert found.fused_ns.tolist() == [[7 * MS] * 3, [5_600_000] * 3, [4 * MS] * 3]
    assert (found.chains, found.chains_ns) == (1, 8 * MS)
    assert found.ops == ("aten::mul", "aten::add", "aten::relu")
    assert found.memory_bound_share == 0.5
    ((_, times),) = found.times
    assert (times.ends - times.starts).tolist() == [8 * MS] * 3


@pytest.mark.parametrize(
    "between",
    [
        f"aten::mm 8-9 {XX}",  # something that is not memory-bound
        "aten::mul 8-9 shapes=[[512,512]]",  # on other sizes
        "aten::mul 8-9",  # on unknown ones
        f"aten::bernoulli_ 8-9 {X}",  # which compiled code does more slowly
    ],
)
def test_what_lies_between_parts_a_chain(between: str) -> None:
    second = f"aten::mul 9-10 {X} | aten::exp 10-11 {X} | aten::log 11-12 {X}"
    assert lengths(CHAIN, between, second) == [3, 3]
    assert lengths(CHAIN, second) == [6]


def test_views_and_statistics_do_not_part_a_chain() -> None:
    assert lengths(CHAIN, f"aten::view 8-8.009 {X}", f"aten::exp 9-10 {X}") == [4]
    sums = "aten::sum 8-9 shapes=[[1024,1024]] | aten::log 9-9.1 shapes=[[1024]] | aten::sub 10-11 " + XX
    assert lengths(CHAIN, sums) == [6]


def test_two_are_no_chain() -> None:
    found = chains(f"aten::mul 0-3 {XX} | aten::add 3-6 {XX}")
    assert (found.chains, found.chains_ns, found.ids.tolist(), found.times) == (0, 0, [], ())
    assert found.memory_bound_share == 1.0


ADDS = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@pytest.mark.parametrize("name", ["optimizer", "zero_grad", ADDS, "aten::addmm", "## Call CompiledFxGraph abc ##"])
def test_what_serves_something_else_or_is_compiled_is_none(name: str) -> None:
    around = f'"{name}"' if " " in name else name
    assert lengths(f"{around} 0-19", CHAIN) == []
    assert lengths(f"{around} 9-19", CHAIN) == [3]


def test_an_op_that_calls_another_for_all_it_does_is_that_one() -> None:
    inside = f"aten::clamp_min 6.1-8 {X}"
    assert lengths(CHAIN, inside) == [3]
    assert chains(CHAIN, inside).ops == ("aten::mul", "aten::add", "aten::clamp_min")


def test_an_op_that_converts_first_is_two() -> None:
    found = chains(CHAIN, f"aten::copy_ 0-2 {XX}")
    assert found.ops == ("aten::mul", "aten::copy_", "aten::add", "aten::relu")
    assert found.ns.tolist() == [8 * MS] * 3  # No time counts twice.


def test_the_backward_of_one_op_is_torchs_own() -> None:
    """As of `amax`. That of three ops is the user's, who wrote these."""
    inside = (f"aten::eq 0-3 {XX}", f"aten::mul 3-6 {XX}", f"aten::mul 6-8 {XX}")
    nodes = [f"autograd::engine::evaluate_function:_Node{k} {a}" for k, a in enumerate(("0-3", "3-6", "6-8"))]
    assert lengths(" | ".join(("AmaxBackward0 0-8", *inside))) == []
    assert lengths(" | ".join((*nodes, *inside))) == [3]


def test_steps_without_any_op_of_torch_have_none() -> None:
    found = chains(f"mine::op 0-3 {X}")
    assert (found.chains, found.memory_bound_share) == (0, 0.0)
