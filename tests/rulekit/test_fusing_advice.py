"""What is left of the host's launches once code is compiled, or CUDA graphs replay it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.device.fusion import pointwise_chains
from diagnose.facts.host.starvation import Starvation, starvation
from diagnose.replay.edits import Between, Shorten
from diagnose.rulekit.fusing_advice import launched
from diagnose.synthetic.reading import facts_of

# Of eight launches a step five are a chain between products: as one kernel they take four launches less.
EAGER = """
4 steps of 2
cpu  aten::mm 0-0.02 | aten::mm 0.05-0.07
cpu  aten::add 0.1-0.12 x5 every 0.05 shapes=[[1024],[1024]] | aten::mm 0.4-0.42
gpu  sgemm 0.03-0.04 @0.01 | sgemm 0.08-0.09 @0.06
gpu  pointwise 0.12-0.13 @0.11 x5 every 0.05 | sgemm 0.43-0.44 @0.41
"""


def kept(found: Starvation, chains: PointwiseChains | None) -> tuple[float, float, float]:
    (edit,) = launched(found, chains, steps(facts_of(EAGER)))
    assert isinstance(edit, Shorten)
    assert isinstance(edit.keep, Between)
    return edit.keep.low, edit.keep.likely, edit.keep.high


def test_what_is_compiled_launches_each_chain_once() -> None:
    facts = facts_of(EAGER)
    varied, chains = replace(starvation(facts), repeats=False), pointwise_chains(facts)
    assert kept(varied, chains) == pytest.approx((0.7, 0.5, 0.3))
    assert kept(varied, None) == (0.9, 0.8, 0.7)
    assert kept(replace(varied, launches=4), chains)[1:] == (0, 0)  # No more launches go than there are.


def test_graphs_replay_steps_that_launch_the_same_kernels() -> None:
    facts = facts_of(EAGER)
    found, chains = starvation(facts), pointwise_chains(facts)
    assert found.repeats
    assert kept(found, chains) == (0.5, 0.2, 0)
    assert kept(replace(found, reads=2), chains) == pytest.approx((0.7, 0.5, 0.3))
    assert kept(replace(found, repeats=None), chains) == (0.9, 0.4, 0)


def test_a_kernel_with_another_grid_is_no_repetition() -> None:
    rank = facts_of(EAGER).rank
    kernels = rank.kernels.copy()
    kernels.iloc[-1, kernels.columns.get_loc("grid_x")] += 1
    assert starvation(Facts(replace(rank, kernels=kernels))).repeats is False


def test_one_step_does_not_tell_whether_steps_repeat() -> None:
    assert starvation(facts_of(EAGER.replace("4 steps", "1 steps"))).repeats is None
