"""What is said of code that runs compiled already."""

import pytest

from diagnose.pipeline import present
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

REGION = '"Torch-Compiled Region: 0/0"'
SYNTHETIC = {
    "launch_bound": (
        "4 steps of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02 | {region} 1.95-1.96\n"
        "gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"
    ),
    "python_overhead": (
        "4 steps of 10\ncpu  aten::mm 0.1-0.15 x48 every 0.2 | {region} 9.8-9.85\n"
        "gpu  sgemm 0.14-0.2 @0.12 x48 every 0.2"
    ),
    "unfused_pointwise": (
        "4 steps of 40\ncpu  aten::mul 0-0.1 | aten::add 0.2-0.3 | aten::gelu 0.4-0.5"
        " | {region} 0.8-0.9 | sync 1-39.01\n"
        "gpu  pointwise 1-5 @0.05 | pointwise 5.01-9 @0.25 | pointwise 9.01-13 @0.45 | bf16_gemm 13.1-39 @0.6"
    ),
}


@pytest.mark.parametrize("name", sorted(SYNTHETIC))
@pytest.mark.parametrize("compiled", [False, True])
def test_code_that_runs_compiled_is_not_told_to_compile(name: str, compiled: bool) -> None:
    synthetic = SYNTHETIC[name].replace("{region}", REGION if compiled else "aten::view")
    (found,) = present(facts_of(synthetic), [built_in(name)]).findings
    compiles = [(fix.trial or "").startswith("wrap:torch.compile") for fix in found.fixes]
    assert any(compiles) is not compiled
