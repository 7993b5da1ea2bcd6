"""What is left of the host's launches once code is compiled, or CUDA graphs replay it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.facts.core.steps import steps
from diagnose.facts.device.fusion import pointwise_chains
from diagnose.facts.host.starvation import starvation
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


def test_what_is_compiled_launches_each_chain_once() -> None:
    facts = facts_of(EAGER)
    found, chains, used = starvation(facts), pointwise_chains(facts), steps(facts)
    (edit,) = launched(found, chains, used, graphed=False)
    assert isinstance(edit, Shorten)
    assert isinstance(edit.keep, Between)
    assert (edit.keep.low, edit.keep.likely, edit.keep.high) == pytest.approx((0.7, 0.5, 0.3))
    (replayed,) = launched(found, chains, used, graphed=True)
    assert isinstance(replayed, Shorten)
    assert isinstance(replayed.keep, Between)
    assert replayed.keep.likely < 0.1
    (unknown,) = launched(found, None, used, graphed=False)
    assert isinstance(unknown, Shorten)
    assert unknown.keep == Between(0.9, 0.8, 0.7)


def test_more_launches_than_there_are_do_not_go() -> None:
    facts = facts_of(EAGER)
    few = replace(starvation(facts), launches=4)
    (edit,) = launched(few, pointwise_chains(facts), steps(facts), graphed=False)
    assert isinstance(edit, Shorten)
    assert isinstance(edit.keep, Between)
    assert (edit.keep.likely, edit.keep.high) == (0, 0)


def test_graphs_replay_steps_that_launch_the_same_kernels() -> None:
    facts = facts_of(EAGER)
    assert starvation(facts).repeats
    rank = facts.rank
    kernels = rank.kernels.copy()
    kernels.iloc[-1, kernels.columns.get_loc("grid_x")] += 1
    assert not starvation(type(facts)(replace(rank, kernels=kernels))).repeats
