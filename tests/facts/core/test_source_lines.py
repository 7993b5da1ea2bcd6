"""Lines of the user's code that host spans come from."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.source_lines import sites_of
from diagnose.trace.enums import SpanKind
from tests.drawing import Drawing


@pytest.mark.parametrize(("kind", "line"), [(SpanKind.SYSTEM, 2), (SpanKind.RUNTIME, 5)])
def test_a_call_of_the_system_has_the_line_of_its_middle_and_others_that_of_their_start(
    kind: SpanKind, line: int
) -> None:
    """The frame that sleeps is placed 10 us too late, as it was recorded in another step."""
    draw = Drawing().step(0, 0, 1_000).frame("train.py(5): <module>", 0, 1_000).op("aten::add", 0, 50)
    rank = draw.frame("train.py(2): wait", 110, 200).call("clock_nanosleep", 100, 200).rank()
    asleep = np.flatnonzero(rank.spans["name"] == "clock_nanosleep")
    kinds = rank.spans["kind"].copy()
    kinds.iloc[asleep] = kind.value
    facts = Facts(replace(rank, spans=rank.spans.assign(kind=kinds)))
    assert [site.line for site in sites_of(facts, asleep) if site] == [line]
