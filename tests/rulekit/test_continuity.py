"""Thresholds decide what is worth a line, not whether a cause exists: what takes a little more saves a little more."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from diagnose import pipeline
from diagnose.contracts.finding import RankedFinding
from diagnose.pipeline import present
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

GROWTH_PERCENT = range(0, 31, 2)  # What the cause takes of the step, about.
LIMITED = " | sync 3-99.91"  # By the GPU: the host waits for it.


def _on_the_gpu(host: str, *kernels: str) -> str:
    """Kernels one after the other until the step's end; `host` is quick."""
    return "\n".join((f"4 steps of 100\ndevice A100\ncpu  {host}{LIMITED}", f"gpu  {' | '.join(kernels)}"))


CAUSES: dict[str, Callable[[float], str]] = {
    # 200 ops, for each of which the GPU waits that share of 0.49 ms.
    "launch_bound": lambda x: (
        f"4 steps of 100\ncpu  aten::add 0-{0.007 + 0.0049 * x:.4f} x200 every 0.49\n"
        f"gpu  pointwise {0.005 + 0.0049 * x:.4f}-0.488 @{0.001 + 0.0049 * x:.4f} x200 every 0.49"
    ),
    "host_work": lambda x: (
        f'4 steps of 100\ncpu  "train.py(3): mask" 0-{x + 0.5} | aten::mm {x + 1}-{x + 2} | aten::mm {x + 3}-{x + 4}\n'
        f"gpu  sgemm {x + 1.5}-{x + 2.5} @{x + 1.2:.1f} | sgemm {x + 3.5}-99.9 @{x + 3.2:.1f}"
    ),
    "no_mixed_precision": lambda x: _on_the_gpu(
        "aten::mm 0-0.1 | aten::mm 0.2-0.3", f"sgemm 0.5-{0.6 + x} @0.05", f"bf16_gemm {0.7 + x}-99.9 @0.25"
    ),
    "unfused_pointwise": lambda x: _on_the_gpu(
        "aten::mul 0-0.1 | aten::add 0.2-0.3 | aten::gelu 0.4-0.5 | aten::mm 0.6-0.7",
        f"pointwise 1-{1.1 + x / 3:.2f} @0.05",
        f"pointwise {1.2 + x / 3:.2f}-{1.3 + 2 * x / 3:.2f} @0.25",
        f"pointwise {1.4 + 2 * x / 3:.2f}-{1.5 + x:.2f} @0.45",
        f"bf16_gemm {1.6 + x:.2f}-99.9 @0.65",
    ),
    "layout_conversions": lambda x: _on_the_gpu(
        "aten::cudnn_convolution 0-0.5", f"nchw2nhwc 1-{1.1 + x:.1f} @0.05", f"conv {1.2 + x:.1f}-99.9 @0.2"
    ),
    "pageable_copies": lambda x: (
        f"4 steps of 100\ncpu  aten::to 0-{0.5 + x:.1f} | aten::mm {0.6 + x:.1f}-{0.7 + x:.1f}\n"
        f"gpu  h2d 0.1-{0.4 + x:.1f} @0.05-{0.4 + x:.1f} pageable {2 + 10 * x}MB"
        f" | sgemm {0.8 + x:.1f}-99.9 @{0.65 + x:.2f}"
    ),
    "dataloader_starvation": lambda x: (
        f"4 steps of 100\ncpu  next 0-{0.1 + x:.1f} | aten::mm {0.2 + x:.1f}-{0.3 + x:.1f}\n"
        f"gpu  sgemm {0.4 + x:.1f}-99.9 @{0.25 + x:.2f}"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", sorted(CAUSES))
def test_a_little_more_saves_a_little_more(rule: str) -> None:
    """From 2 % of the step to the next it saves 5 % of the step more at most, in all of its findings together.
    But for the first that a rule with a larger threshold tells."""
    saved = []
    for percent in GROWTH_PERCENT:
        said = present(facts_of(CAUSES[rule](percent)), [built_in(rule)])
        saved.append(sum(finding.share_of_step for finding in said.findings))
    assert saved[0] < 0.03
    assert saved[-1] > 0.1
    jumps = [one for one, other in pairwise(saved) if abs(other - one) > 0.05]
    assert jumps == ([0.0] if rule in CHANCE else [])


CHANCE = {
    "straggler": "ranks of equal work differ by chance",
    "work_imbalance": "ranks of equal work differ by chance",
    "unexplained_time": "it tells what no rule names, and other rules name what is less",
    "host_work": "it names what no other rule knows, and each loop has small such work",
    "garbage_collection": "it decides how sure the finding is, not whether there is one",
}
"""Rules with a larger threshold, and why."""


def test_no_cause_is_hidden_by_a_threshold_on_its_share_of_the_step() -> None:
    shares = [
        (loaded.page.id, one.name, one.value)
        for loaded in engine.load(RuleSet())
        if not loaded.page.code.startswith("MQ")  # About the recording: nothing is found by these.
        for one in engine.shown(loaded).thresholds
        if one.name.endswith("_SHARE") and re.match(r"of (the|a) step\b", one.reason)
    ]
    assert len(shares) > 10
    assert [share for share in shares if share[0] not in CHANCE and share[2] > 0.01] == []


STEPS = "{} steps of 100\n2 threads, 4 cores\n"


def cuts(count: int, begin: int = 1, number: int = 1) -> str:
    return f"aten::select {begin}-{begin}.5 x{count} every 1 shapes=[[32,10,64],[],[]] sequence={number}"


def back(count: int) -> str:
    """Nodes of 2 ms."""
    node = '"autograd::engine::evaluate_function: SelectBackward0"'
    return f'{node} 50-52 x{count} every 3 sequence=1 "Fwd thread id"=1'


def found(*items: str, steps: int = 1) -> Sequence[RankedFinding]:
    facts = facts_of(STEPS.format(steps) + "\n".join(f"cpu  {item}" for item in items))
    return pipeline.present(facts, [built_in("gradients_of_slices")]).findings


@pytest.mark.parametrize("between", ["", "aten::linear 1.6-1.9 x8 every 1 shapes=[[32,64],[64,64]]"])
def test_what_works_on_pieces_may_come_between(between: str) -> None:
    (one,) = found(cuts(8), *filter(None, [between]), back(8))
    assert one.evidence[0].text.startswith("8 slices in a row of a tensor of 32 x 10 x 64:")
    assert one.evidence[0].value == 16_000_000


@pytest.mark.parametrize(
    "items",
    [
        (cuts(7), back(7)),
        # An op on the whole ends a row: four pieces before it and four after it, of two tensors.
        (cuts(4), "aten::add 5-5.5 shapes=[[32,10,64],[32,10,64]]", cuts(4, 6, 2), back(8)),
        (cuts(8).replace("sequence=1", ""), back(8)),  # no gradient goes to them
    ],
)
def test_what_is_left_alone(items: tuple[str, ...]) -> None:
    assert not found(*items)


def test_rows_end_with_the_step() -> None:
    assert not found(cuts(4), back(4), steps=2)
