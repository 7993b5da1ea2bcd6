"""How much memory each step fetches from the system."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.host.process import FetchedMemory, fetched_memory
from diagnose.synthetic.reading import facts_of

HEAD = "4 steps of 100\n2 threads, 4 cores\n"
OPS = "cpu  aten::linear 0-30 | aten::mm 1-29 | aten::relu 30-40\n"


def of(*lines: str) -> FetchedMemory | None:
    return fetched_memory(facts_of(HEAD + OPS + "\n".join(lines)))


def test_what_it_takes() -> None:
    """A quarter of a ns for each byte; in some of the outermost ops."""
    found = of("fetched 80 MB a step")
    assert found is not None
    assert (found.bytes, found.ns, found.ops_ns) == (80_000_000, 20_000_000, 40_000_000)
    assert len(found.op_ids) == 2 * 4


def test_the_largest_tensor() -> None:
    found = of("fetched 80 MB a step", 'cpu  aten::mul 50-60 shapes=[[1000,50],[1000]] types=["float","float"]')
    assert found is not None
    assert found.largest_bytes == 200_000
    without = of("fetched 80 MB a step")
    assert without is not None
    assert without.largest_bytes is None


def test_nothing_is_fetched() -> None:
    found = of("fetched 0 MB a step")
    assert found is not None
    assert found.ns == 0


def test_with_a_gpu_tensors_lie_elsewhere() -> None:
    assert of("fetched 80 MB a step", "gpu  sgemm 5-20 @2") is None


def test_nobody_counted() -> None:
    with pytest.raises(Missing, match="how much memory is fetched anew"):
        of()
