"""Time by function of the user's code, derived by hand."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.host.functions import FunctionOp, FunctionTime, functions
from diagnose.facts.host.python import Op, ops
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from tests.drawing import Drawing

NODE = "autograd::engine::evaluate_function: "
MAIN = Site("/home/me/train.py", 3, "main")
LOSS = Site("/home/me/net.py", 8, "loss")
ENGINE = 7  # The thread of the backward pass.


def numbered(number: int, forward_thread: int = 0) -> dict[str, int]:
    return {"Sequence number": number, "Fwd thread id": forward_thread}


def on_cpu() -> Drawing:
    """A used step from 10 to 110 us."""
    draw = Drawing().step(0, 0, 10).op("aten::x", 1, 2).step(1, 10, 110)
    draw.frame("/home/me/train.py(3): main", 0, 110).frame("/home/me/net.py(8): loss", 20, 50)
    draw.op("aten::linear", 12, 18, **numbered(5)).op("aten::exp", 25, 45, **numbered(6)).op("aten::ones_like", 60, 62)
    draw.op(f"{NODE}ExpBackward0", 62, 80, **numbered(6, 1)).op("ExpBackward0", 63, 79, **numbered(6, 1))
    return draw.op(f"{NODE}AddmmBackward0", 80, 92, **numbered(5, 1))


def on_gpu() -> Drawing:
    """The host's used step is from -10 to 99 us. A second thread runs the backward pass."""
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 99)
    draw.frame("/home/me/train.py(3): main", -60, 110).frame("/home/me/net.py(8): loss", 0, 30)
    draw.op("aten::mm", 5, 20, **numbered(3)).launch("gemm", (6, 7), (10, 40))
    draw.op(f"{NODE}MmBackward0", 50, 70, ENGINE, **numbered(3, 1)).launch("gemm", (55, 56), (60, 90), tid=ENGINE)
    draw.op(f"{NODE}torch::autograd::AccumulateGrad", 70, 80, ENGINE)
    return draw.launch("last", (97, 98), (120, 121))


def test_python_ops_and_their_backward_add_up_to_the_step() -> None:
    main, loss = functions(on_cpu().facts())
    ways = FunctionOp("aten::linear", 18_000), FunctionOp("aten::ones_like", 2_000)
    assert main == FunctionTime(MAIN, 32_000, 8_000, 12_000, None, ways)
    assert loss == FunctionTime(LOSS, 10_000, 20_000, 18_000, None, (FunctionOp("aten::exp", 38_000),))
    assert main.host_ns + loss.host_ns == 100_000


def test_device_time_counts_where_it_was_launched_and_whenever_it_ran() -> None:
    loss, main = functions(on_gpu().facts())
    assert loss == FunctionTime(LOSS, 15_000, 15_000, 20_000, 60_000, (FunctionOp("aten::mm", 60_000),))
    assert main == FunctionTime(MAIN, 48_000, 1_000, 10_000, 1_000, (FunctionOp("cudaLaunchKernel", 1_000),))


def test_two_steps_are_averaged() -> None:
    draw = on_cpu().step(2, 110, 130).frame("/home/me/train.py(3): main", 110, 130).op("aten::exp", 112, 124)
    main, loss = functions(draw.facts())
    assert (main.python_ns, main.ops_ns) == ((32_000 + 8_000) // 2, (8_000 + 12_000) // 2)
    assert loss.ops_ns == 10_000


def test_a_pause_is_cut_where_functions_change() -> None:
    draw = Drawing().step(0, 0, 10).op("aten::x", 1, 2).step(1, 10, 30).op("aten::mm", 20, 30)
    draw.frame("/home/me/train.py(3): main", 10, 12)
    assert [(function.site, function.host_ns) for function in functions(draw.facts())] == [
        (None, 18_000),
        (Site("/home/me/train.py", 3, "main"), 2_000),
    ]


def test_stacks_are_needed() -> None:
    with pytest.raises(Missing, match="call stacks"):
        functions(Drawing().step(0, 0, 10).op("aten::x", 1, 2).step(1, 10, 30).facts())


def test_the_host_may_be_ahead_of_the_device() -> None:
    """All is launched before the device begins the first step; of four steps three are used."""
    facts = facts_of("4 steps of 100\ncpu  aten::mm 0-10\ngpu  sgemm 450-540 @5")
    assert (steps(facts).measure, steps(facts).count) == (Measure.DEVICE, 3)
    assert ops(facts) == (Op("aten::mm", calls=3, self_ns=10_000_000),)
