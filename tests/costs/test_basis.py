"""What a price says that it rests on."""

import pytest

from diagnose.pipeline import present
from diagnose.replay.saving import Basis
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

ON_GPU = """
4 steps of 40
device H100
cpu  aten::mul 0-0.1 | aten::add 0.2-0.3 | aten::gelu 0.4-0.5 | sync 1-39.01
gpu  pointwise 1-5 @0.05 | pointwise 5.01-9 @0.25 | pointwise 9.01-13 @0.45 | bf16_gemm 13.1-39 @0.6
"""
ON_CPU = """
4 steps of 100
1 threads, 2 cores
cpu  aten::mul 1-31 shapes=[[1024,1024],[1024,1024]] | aten::tanh 61-81 shapes=[[1024,1024]]
cpu  aten::add 31-61 shapes=[[1024,1024],[1024,1024]] | aten::mm 81-99 shapes=[[1024,1024],[1024,1024]]
"""


@pytest.mark.parametrize(("drawn", "basis"), [(ON_GPU, Basis.TIMED_ELSEWHERE), (ON_CPU, Basis.RULE_OF_THUMB)])
def test_changed_kernels_are_priced_by_timings_elsewhere(drawn: str, basis: Basis) -> None:
    """What a CPU's chain of ops takes as one is not known from any."""
    (found,) = present(facts_of(drawn), [built_in("unfused_pointwise")]).findings
    assert found.saving.basis is basis


def test_what_saves_time_of_the_host_as_well_is_a_typical_speed_up() -> None:
    starved = "4 steps of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02\ngpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"
    (found,) = present(facts_of(starved), [built_in("launch_bound")]).findings
    assert found.saving.basis is Basis.RULE_OF_THUMB
