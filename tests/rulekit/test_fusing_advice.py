"""What is left of the host's launches once code is compiled, or CUDA graphs replay it."""

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.device.fusion import pointwise_chains
from diagnose.facts.host.starvation import Starvation, starvation
from diagnose.pipeline import present
from diagnose.replay.edits import Between, Shorten
from diagnose.rulekit.fusing_advice import launched
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

QUICK = "gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"

# Of eight launches a step five are a chain between products: as one kernel they take four launches less.
EAGER = """
4 steps of 2
cpu  aten::mm 0-0.02 | aten::mm 0.05-0.07
cpu  aten::add 0.1-0.12 x5 every 0.05 shapes=[[1024],[1024]] | aten::mm 0.4-0.42
gpu  sgemm 0.03-0.04 @0.01 | sgemm 0.08-0.09 @0.06
gpu  pointwise 0.12-0.13 @0.11 x5 every 0.05 | sgemm 0.43-0.44 @0.41
"""


def kept(found: Starvation, chains: PointwiseChains | None, replayed: bool = False) -> tuple[float, float, float]:
    (edit,) = launched(found, chains, steps(facts_of(EAGER)), replayed)
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
    assert kept(found, chains, replayed=True) == (0.5, 0.2, 0)
    assert kept(replace(found, reads=2), chains, replayed=True) == (0.9, 0.4, 0)
    assert kept(replace(found, repeats=None), chains, replayed=True) == (0.9, 0.4, 0)


def test_a_kernel_with_another_grid_is_no_repetition() -> None:
    rank = facts_of(EAGER).rank
    kernels = rank.kernels.copy()
    kernels.iloc[-1, kernels.columns.get_loc("grid_x")] += 1
    assert starvation(Facts(replace(rank, kernels=kernels))).repeats is False


def test_one_step_does_not_tell_whether_steps_repeat() -> None:
    assert starvation(facts_of(EAGER.replace("4 steps", "1 steps"))).repeats is None


@pytest.mark.parametrize(
    ("steps_drawn", "region", "setting"),
    [
        ("4 steps", "", "wrap:torch.compile(mode=reduce-overhead)"),
        ("1 steps", "", "wrap:torch.compile(mode=reduce-overhead)"),
        ("4 steps", ' | "Torch-Compiled Region: 0/0" 1.95-1.96', "patch:torch.compile(mode=reduce-overhead)"),
    ],
)
def test_graphs_are_advised_where_they_may_replay_the_step(steps_drawn: str, region: str, setting: str) -> None:
    drawn = f"{steps_drawn} of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02{region}\n{QUICK}"
    (found,) = present(facts_of(drawn), [built_in("launch_bound")]).findings
    assert found.fixes[0].trial == setting
    assert ("Each step launches the same kernels." in [one.text for one in found.evidence]) is ("4" in steps_drawn)


def test_a_model_that_is_read_from_is_compiled_alone() -> None:
    reads = "aten::mm 0-0.4 x30 every 1 | aten::item 0.5-0.8 x30 every 1 | sync 0.6-0.7 x30 every 1"
    kernels = "gpu  sgemm 0.06-0.2 @0.05 x30 every 1 | d2h 0.6-0.61 @0.55 8B x30 every 1"
    (found,) = present(facts_of(f"4 steps of 31\ncpu  {reads}\n{kernels}"), [built_in("launch_bound")]).findings
    assert found.fixes[0].trial == "wrap:torch.compile"
