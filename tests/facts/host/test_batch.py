"""What a larger batch would spread over more samples."""

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.host.batch import larger_batch
from diagnose.synthetic.reading import facts_of


def synthetic(memory: str) -> Facts:
    """10 ops of 0.05 ms with a pause of 0.05 ms after each, then half a ms of work that the optimizer launches."""
    return facts_of(
        f"""
        3 steps of 2
        {memory}
        cpu  aten::add 0-0.05 x10 every 0.1 | optimizer 1.4-1.5 | aten::_foreach_add_ 1.41-1.45
        gpu  pointwise 0.04-0.045 @0.03-0.035 x10 every 0.1 blocks=33 | foreach 1.45-1.95 @1.42
        """
    )


@pytest.mark.parametrize(
    ("reserved", "times"),
    # Of 85.018 GB nine tenths may be used: 76.5 GB.
    [("9.5", 8), ("9.6", 4), ("19.1", 4), ("19.2", 2), ("38.2", 2), ("38.3", 1)],
)
def test_how_many_times_the_batch_fits(reserved: str, times: int) -> None:
    assert larger_batch(synthetic(f"memory 1 of {reserved} GB")).times == times


def test_what_does_not_grow_with_the_batch() -> None:
    found = larger_batch(synthetic("memory 1 of 2 GB"))
    assert (found.used_bytes, found.capacity_bytes) == (2_000_000_000, 85_018_279_936)
    assert found.update_ns == 500_000
    # 33 blocks on 132 multiprocessors; the update's kernel counts with the updates.
    assert (found.underfilled_ns, found.filled_share, len(found.underfilled_ids)) == (50_000, 0.25, 30)
    assert found.host_idle_ns == 1_450_000  # all but the kernels, for Python


def test_a_long_pause_may_grow_with_the_batch() -> None:
    """Of pauses of 0.05 ms and one of 0.4 ms a step, on average 0.08 ms, and the optimizer; and of pauses of 9 ms."""
    short = larger_batch(synthetic("memory 1 of 2 GB"))
    long = larger_batch(
        facts_of("memory 1 of 2 GB\n3 steps of 10\ncpu aten::add 0-0.05\ngpu pointwise 0.04-0.045 @0.03-0.035")
    )
    assert (len(short.host_times), len(long.host_times)) == (2, 0)


def test_without_memory_nothing_is_known() -> None:
    with pytest.raises(Missing, match="memory events"):
        larger_batch(synthetic(""))
