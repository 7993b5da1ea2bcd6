"""Additions at sorted indices."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.device.indexing import sorted_indexing
from diagnose.synthetic.reading import facts_of

PUT = 'aten::index_put_ 1-2 shapes=[[100,1024],[],[250000,1024],[]] types=["float","","float",""]'
KERNELS = 'gpu DeviceRadixSortOnesweepKernel 2-3 @1.2 | "indexing_backward_kernel<float, 4>" 3-8 @1.5'


def test_the_backward_pass_of_indexing() -> None:
    (found,) = sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu {PUT}\n{KERNELS}"))
    assert (found.deterministic, found.calls, found.work.device_ns) == (False, 1, 6_000_000)
    # 1.024 GB three times, at 60 % of 2039 GB/s.
    assert found.floor == pytest.approx(3 * 1.024e9 / (0.6 * 2039e9) / 6e-3)


def test_deterministic_algorithms_add_by_it() -> None:
    (found,) = sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu aten::index_add_ 0-3 | {PUT}\n{KERNELS}"))
    assert found.deterministic


def test_without_shapes_there_is_no_floor() -> None:
    (found,) = sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu {PUT.split(' shapes')[0]}\n{KERNELS}"))
    assert (found.work.device_ns, found.floor) == (6_000_000, None)


def test_putting_without_adding_sorts_nothing() -> None:
    kernels = KERNELS.replace("indexing_backward_kernel", "index_elementwise_kernel")
    assert sorted_indexing(facts_of(f"3 steps of 20\ndevice A100\ncpu {PUT}\n{kernels}")) == ()


def test_without_device_work_nothing_is_known() -> None:
    with pytest.raises(Missing):
        sorted_indexing(facts_of("3 steps of 20\ncpu aten::index_put_ 0-3"))
