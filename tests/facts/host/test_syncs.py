"""Which calls block the host, for how long, and who asked."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.host.syncs import Sync, blocked_ns, syncs
from diagnose.trace.frames import Site
from tests.drawing import Drawing


def test_syncs_are_grouped_by_call_op_and_line() -> None:
    draw = Drawing().step(0, -20, 0).launch("first", (-10, -9), (-5, 0)).step(1, 0, 200)
    draw.frame("/home/me/train.py(9): train", 0, 200)
    for start in (10, 50):
        draw.op("aten::item", start, start + 30).call("cudaStreamSynchronize", start + 5, start + 25)
    draw.call("cudaDeviceSynchronize", 100, 107).call("cudaEventQuery", 120, 180)
    draw.copy("DtoH (Device -> Pageable)", (130, 133), (131, 133), 4)
    draw.copy("DtoH (Device -> Pinned)", (140, 150), (145, 149), 4)
    draw.launch("last", (190, 191), (199, 200))
    facts = draw.facts()
    line = Site("/home/me/train.py", 9, "train")
    assert syncs(facts) == (
        Sync("cudaStreamSynchronize", "aten::item", line, 2, 40_000),
        Sync("cudaDeviceSynchronize", "", line, 1, 7_000),
        Sync("cudaMemcpyAsync", "", line, 1, 3_000),
    )
    assert blocked_ns(facts) == 50_000


def test_without_runtime_calls_syncs_are_missing_not_none() -> None:
    with pytest.raises(Missing, match="runtime calls"):
        syncs(Drawing().work("k", (0, 5)).op("aten::mm", 0, 2).facts())
