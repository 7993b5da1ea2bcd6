"""Every real trace keeps the laws, and each law notices when it is broken."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace

from diagnose.source import ranks
from diagnose.trace.model import Rank, Step
from tests import laws
from tests.drawing import Drawing


def sound() -> Rank:
    draw = Drawing().step(0, 0, 50).op("aten::mm", 0, 9).launch("k", (1, 2), (3, 9)).step(1, 50, 90)
    return draw.copy("HtoD (Pinned -> Device)", (51, 52), (53, 60), 64).rank()


def test_a_sound_trace_breaks_none() -> None:
    assert laws.broken(sound()) == ()


def test_real_traces_break_none(corpus: Path) -> None:
    paths = sorted((corpus / "kineto").rglob("*.json*"))
    assert paths
    for path in paths:
        assert laws.broken(ranks.read(path)) == (), path


def spans(**columns: object) -> Callable[[Rank], Rank]:
    return lambda rank: replace(rank, spans=rank.spans.assign(**columns))


def relabelled(name: str, labels: list[int]) -> Callable[[Rank], Rank]:
    return lambda rank: replace(rank, **{name: getattr(rank, name).set_axis(labels)})


def link(source: int, target: int) -> Callable[[Rank], Rank]:
    def change(rank: Rank) -> Rank:
        row = pd.DataFrame({"from_id": [source], "to_id": [target], "kind": rank.links["kind"].iloc[:1]})
        return replace(rank, links=pd.concat([rank.links, row]))

    return change


BROKEN = {
    "spans are not in order of start": spans(start_ns=[0, 1, 0, 3, 4, 5, 6]),
    "the first span does not start at 0": spans(start_ns=range(5, 12)),
    "a duration is negative": spans(dur_ns=-1),
    "a span lies on no track": spans(track=9),
    "device work lies on a host thread, or the reverse": spans(track=0),
    "span ids are not 0, 1, 2, ...": relabelled("spans", [1, 2, 3, 4, 5, 6, 7]),
    "kernels describes a span twice, or one that is not there": relabelled("kernels", [99]),
    "copies describes a span of another kind": relabelled("copies", [0]),
    "a link ends nowhere": link(0, 99),
    "a launch does not lead from a call to device work": link(3, 0),
    "device work was launched twice": link(2, 3),
    "a span belongs to no recorded step": spans(step=5),
    "steps overlap": lambda rank: replace(rank, steps=(Step(0, 0, 60), Step(1, 50, 90))),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_noticed(law: str) -> None:
    assert law in laws.broken(BROKEN[law](sound()))
