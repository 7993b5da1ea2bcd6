"""Memories that last from step to step, and are moved whole."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.values.ledger import Wasted
from diagnose.facts.values.shifted_buffers import shifted_buffers
from diagnose.synthetic.reading import facts_of

ROLL = "aten::roll 0-50 shapes=[[4096,64],[],[]]"
JOIN = "aten::cat 0-50 shapes=[[[4080,64],[16,64]],[]]"
REST = "aten::copy_ 50-51 | aten::mm 60-90"


def of(values: str, drawn: str) -> tuple[Wasted, ...]:
    return shifted_buffers(
        facts_of(f"4 steps of 100\n2 threads, 4 cores\nvalues {values} | aten::mm\ncpu  {drawn} | {REST}")
    )


def test_a_memory_that_is_rolled() -> None:
    (found,) = of("aten::roll carried 1 | aten::copy_ takes 0", ROLL)
    assert (found.times, found.detail, found.work.host_ns, found.steps_seen) == (1, "4,096 by 64", 50_000_000, 3)


def test_a_memory_that_is_joined_anew() -> None:
    (found,) = of("aten::cat carried 0 | aten::copy_", JOIN)
    assert found.detail == "4,080 by 64"


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ("aten::roll | aten::copy_ takes 0", ROLL),  # Of this step.
        ("aten::roll takes - | aten::copy_ takes 0", ROLL),  # Of a batch.
        ("aten::roll back carried 1 | aten::copy_ takes 0", ROLL),
        ("aten::cat carried 0 | aten::copy_", "aten::cat 0-50 shapes=[[[16,64],[16,64]],[]]"),  # A state and an input.
        ("aten::cat carried 0 | aten::copy_", "aten::cat 0-50 shapes=[[[16,64]],[]]"),
        ("aten::cat carried 1 | aten::copy_", JOIN),  # A weight, which an optimizer wrote to.
        ("aten::roll carried 1 | aten::copy_", "aten::roll 0-50"),  # Nobody knows how large it is.
    ],
)
def test_what_is_none(values: str, drawn: str) -> None:
    assert of(values, drawn) == ()


def test_nobody_looked() -> None:
    with pytest.raises(Missing, match="diagnose profile"):
        shifted_buffers(facts_of(f"4 steps of 100\n2 threads, 4 cores\ncpu  {ROLL} | {REST}"))
