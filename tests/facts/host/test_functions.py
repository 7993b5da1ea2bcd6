"""Time by function of the user's code, derived by hand."""

import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.host import host_compute_ops, host_time
from diagnose.facts.core.idle import idle
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.host.batch import larger_batch
from diagnose.facts.host.functions import FunctionOp, FunctionTime, dominant_lines, functions
from diagnose.facts.host.loops import Loop, apart_in_time, loops
from diagnose.facts.host.python import Op, ops
from diagnose.facts.host.starvation import host_compute
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.intervals import Intervals
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


def dominating(*rows: str, values: str = "") -> list[tuple[str, bool, float, str]]:
    """Of steps of 100 ms: the line and function, whether all of it, its share, and the op."""
    found = dominant_lines(facts_of("\n".join(("4 steps of 100", "1 threads, 2 cores", values, *rows))))
    return [(f"{one.site.line} {one.site.function}", one.whole, round(one.share, 3), one.op) for one in found]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (("aten::sort 10-35 | aten::add 36-40",), [("30 f", False, 0.29, "aten::sort")]),
        # no op takes half of the line, which is all of the function that is known
        (("aten::sort 10-18 | aten::add 20-27 | aten::mul 30-37",), []),
        # a function of three lines, none of which takes half of it
        (
            ("aten::sort 10-20", *(f'"t.py({at}): f" {at}-{at + 10} | aten::sort {at}-{at + 10}' for at in (50, 70))),
            [("30 f", True, 0.3, "aten::sort")],
        ),
        (("aten::linear 10-38",), []),
        (("Optimizer.step#SGD.step 11-39 | aten::add 12-38",), []),
        # an optimizer of the script's own
        (
            ('Optimizer.step#Own.step 11-39 | "t.py(50): step" 12-38 | aten::linalg_eigh 12-37',),
            [("50 step", False, 0.25, "aten::linalg_eigh")],
        ),
        (("aten::sort 10-29",), []),
    ],
)
def test_lines_that_dominate_the_step(rows: tuple[str, ...], found: list[tuple[str, bool, float, str]]) -> None:
    assert dominating('cpu  "t.py(9): main" 0-100 | "t.py(30): f" 10-40', *(f"cpu  {row}" for row in rows)) == found


def test_stacks_are_needed() -> None:
    with pytest.raises(Missing, match="call stacks"):
        functions(Drawing().step(0, 0, 10).op("aten::x", 1, 2).step(1, 10, 30).facts())


def test_the_host_may_be_ahead_of_the_device() -> None:
    """All is launched before the device begins the first step; of four steps three are used."""
    facts = facts_of("4 steps of 100\ncpu  aten::mm 0-10\ngpu  sgemm 450-540 @5")
    assert (steps(facts).measure, steps(facts).count) == (Measure.DEVICE, 3)
    assert ops(facts) == (Op("aten::mm", calls=3, self_ns=10_000_000),)


MADE = """
4 steps of 60
cpu  aten::randn 0-50 | aten::normal_ 1-49 | aten::to 50.1-50.3 | aten::mm 56-56.1 | aten::view 57-57.19
gpu  h2d 50.2-55.2 @50.15 pageable 33MB | sgemm 56.06-59.9 @56.05
"""


def test_an_op_that_starts_nothing_and_takes_longer_than_dispatch_computes() -> None:
    facts = facts_of(MADE)
    (found,) = host_compute(facts)
    assert (found.op, found.calls, len(found.ids), len(found.move_ids)) == ("aten::randn", 3, 4, 4)
    assert (found.ns, found.idle_ns) == (50_000_000, 50_000_000)
    assert host_time(facts).parts[TimeCause.HOST_COMPUTE] == 50_000_000
    assert idle(facts)[0].cause is TimeCause.HOST_COMPUTE


def test_an_op_that_starts_device_work_dispatches_however_long_it_takes() -> None:
    facts = facts_of("4 steps of 60\ncpu  aten::index 0-50 | aten::nonzero 1-49\ngpu  pointwise 48-59.9 @47")
    assert host_compute(facts) == ()
    assert host_time(facts).parts[TimeCause.HOST_COMPUTE] == 0


def test_beside_work_that_is_started_only_the_part_without_it_computes() -> None:
    facts = facts_of("4 steps of 60\ncpu  aten::f 0-50 | aten::sort 1-40 | aten::mm 41-42\ngpu  sgemm 42-59.9 @41.5")
    (found,) = host_compute(facts)
    assert (found.op, found.ns) == ("aten::sort", 39_000_000)


def test_a_batch_that_is_loaded_in_the_process_is_loading() -> None:
    facts = facts_of("4 steps of 60\ncpu  load 0-50 | aten::stack 1-40 | aten::mm 51-52\ngpu  sgemm 52-59.9 @51.5")
    assert host_compute(facts) == ()


def test_where_the_cpu_trains_all_ops_compute() -> None:
    facts = facts_of("4 steps of 60\n1 threads, 2 cores\ncpu  aten::mm 0-50")
    assert not len(host_compute_ops(facts))
    assert host_time(facts).parts[TimeCause.OPS] == 50_000_000


def test_what_follows_a_wait_for_the_device_is_the_wait_s() -> None:
    facts = facts_of("""
        4 steps of 60
        cpu  aten::item 0-20.1 | sync 1-20.02 | aten::sort 21-40 | aten::mm 41-41.1
        gpu  d2h 20-20.01 @0.5 8B | sgemm 41.06-79.9 @41.05
    """)
    (found,) = host_compute(facts)
    assert (found.ns, found.idle_ns) == (19_000_000, 0)


def synthetic(memory: str) -> Facts:
    """10 ops of 0.05 ms with a pause of 0.05 ms after each, then half a ms of work that the optimizer launches."""
    return facts_of(f"""
        3 steps of 2
        {memory}
        cpu  aten::add 0-0.05 x10 every 0.1 | optimizer 1.4-1.5 | aten::_foreach_add_ 1.41-1.45
        gpu  pointwise 0.04-0.045 @0.03-0.035 x10 every 0.1 blocks=33 | foreach 1.45-1.95 @1.42
    """)


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


BACKWARD = "autograd::engine::evaluate_function: "
MS = 1_000_000


def of(*rows: str) -> tuple[Loop, ...]:
    return loops(facts_of("\n".join(("4 steps of 100", *rows))))


def backward(*rounds: str) -> str:
    return "cpu  " + " | ".join(f'"{BACKWARD}{name}" {rest}' for name, rest in (one.split(" ", 1) for one in rounds))


def test_rounds_of_two_ops_forward_and_backward() -> None:
    (found,) = of(
        "2 threads, 4 cores",
        "cpu  aten::mul 10-10.5 x5 every 2 | aten::tanh 11-11.9 x5 every 2",
        backward("TanhBackward0 30-31 x5 every 4", "MulBackward0 32-33 x5 every 4"),
    )
    assert found.ops == ("aten::mul", "aten::tanh")
    assert found.rounds == 5
    # Forward from 10 to 19.9 ms, of which 7 in ops; backward from 30 to 49, of which 10. Of each op 20 us are fixed.
    assert found.ns == 28_900_000
    assert found.fixed_ns == 11_900_000 + 20 * 20_000
    assert found.left == pytest.approx(1 - 0.8 * 12.3 / 28.9)
    assert [pieces.total for _, pieces in found.pieces] == [3 * 28_900_000]


def test_the_last_backward_round_completes_gradients_and_is_not_like_the_others() -> None:
    (found,) = of(
        "cpu  aten::mul 10-11 x4 every 2",
        backward("MulBackward0 30-31 x4 every 2", "torch::autograd::AccumulateGrad 36.5-36.6"),
        "gpu  pointwise 10.6-10.7 @10.5 x4 every 2",
    )
    assert (found.ops, found.rounds) == (("aten::mul",), 4)
    assert found.fixed_ns == found.ns  # the device computes: the host only starts ops
    assert len(found.work_ids) == 3 * 4
    assert found.work_left == pytest.approx(1 - 0.75 * 3 / 100)


@pytest.mark.parametrize(
    "rows",
    [
        # A parameter's gradient is complete in each round: layers.
        (
            "cpu  aten::mul 10-11 x6 every 2",
            backward("MulBackward0 30-30.5 x6 every 2", "torch::autograd::AccumulateGrad 30.6-30.7 x6 every 2"),
        ),
        # Three rounds.
        ("cpu  aten::mul 10-11 x3 every 2", backward("MulBackward0 30-30.5 x3 every 2")),
        # Each round has another shape.
        (
            "cpu  " + " | ".join(f"aten::mul {10 + k}-{10.5 + k} shapes=[[{k + 1}]]" for k in range(6)),
            "cpu  " + " | ".join(f'"{BACKWARD}MulBackward0" {30 + k}-{30.5 + k} shapes=[[{k + 1}]]' for k in range(6)),
        ),
    ],
)
def test_what_is_no_loop(rows: tuple[str, ...]) -> None:
    assert of(*rows, "gpu  sgemm 1-99 @0.5") == ()


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (
            "cpu  aten::mul 10-11 sequence=1 | aten::mul 12-13 sequence=2 | aten::mul 14-15 sequence=3"
            " | aten::mul 16-17 sequence=4",
            1,
        ),
        (
            "cpu  aten::gru 9-18 | aten::mul 10-11 sequence=1 | aten::mul 12-13 sequence=2 | aten::mul 14-15 sequence=3"
            " | aten::mul 16-17 sequence=4",
            0,
        ),
    ],
)
def test_a_loop_within_one_call_is_torchs_own(forward: str, found: int) -> None:
    back = " | ".join(
        f'"{BACKWARD}MulBackward0" {30 + 2 * k}-{31 + 2 * k} sequence={4 - k} "Fwd thread id"=1' for k in range(4)
    )
    assert len(of("2 threads, 4 cores", forward, f"cpu  {back}")) == found


def rounds_without_backward(*rows: str) -> list[tuple[tuple[str, ...], int, int]]:
    """(Ops, rounds, ns) of loops that no backward pass goes through; there is one, through another op."""
    back = f'cpu  aten::tanh 80-81 sequence=7 | "{BACKWARD}TanhBackward0" 90-91 sequence=7 "Fwd thread id"=1'
    found = of("2 threads, 4 cores", *rows, back)
    assert not any(one.has_backward for one in found)
    return [(one.ops, one.rounds, one.ns) for one in found]


def test_what_no_backward_pass_goes_through_is_a_loop_of_any_shapes() -> None:
    """Six rounds of 1 ms, 1 ms apart."""
    rows = " | ".join(f"aten::mul_ {10 + 2 * k}-{11 + 2 * k} shapes=[[{k % 2 + 3}]]" for k in range(6))
    assert rounds_without_backward(f"cpu  {rows}") == [(("aten::mul_",), 6, 11 * MS)]


@pytest.mark.parametrize(("every", "fixed_ns"), [(0.1, 8 * 10_000 + 7 * 90_000), (0.14, 8 * 10_000)])
def test_python_that_takes_long_between_ops_is_no_part_of_what_they_cost(every: float, fixed_ns: int) -> None:
    """Eight ops of 10 us with 90 us between two, or 130 us."""
    (found,) = of("2 threads, 4 cores", f"cpu  aten::lift_fresh 10-10.01 x8 every {every}")
    assert (found.rounds, found.fixed_ns) == (8, fixed_ns)


@pytest.mark.parametrize(
    "rows",
    [
        ("cpu  aten::mul 10-11 x6 every 2 | aten::linear 11.1-11.9 x6 every 2",),  # layers where no gradient is kept
        ("cpu  aten::mul_ 10-11 x3 every 2",),
        ("cpu  mine::mul 10-11 x6 every 2",),
        ("cpu  optimizer 9-30 | aten::mul_ 10-11 x6 every 2",),
        ("cpu  zero_grad 9-30 | aten::mul_ 10-11 x6 every 2",),
        ("cpu  load 9-30 | aten::select 10-11 x6 every 2",),
    ],
    ids=["layers", "few", "not torch's", "optimizer", "zero_grad", "loader"],
)
def test_what_is_no_loop_without_a_backward_pass(rows: tuple[str, ...]) -> None:
    assert rounds_without_backward(*rows) == []


def test_where_links_are_not_recorded_what_goes_backward_is_not_known() -> None:
    rows = ("cpu  aten::mul 10-11 x6 every 2", backward("TanhBackward0 30-31"), "gpu  sgemm 1-99 @0.5")
    assert of(*rows) == ()
    (alone,) = of(rows[0], rows[2])
    assert not alone.has_backward


def test_a_loop_in_a_loop_has_each_forward_part_once() -> None:
    (found,) = of(
        "cpu  aten::mul 10-11 x5 every 2 | aten::neg 20-21 | aten::mul 22-23 x5 every 2",
        backward("MulBackward0 40-41 x5 every 2", "NegBackward0 50-51", "MulBackward0 52-53 x5 every 2"),
    )
    assert (found.rounds, found.ns) == (5, 4 * 9 * MS)


def test_waits_for_other_ranks_are_no_part_of_a_loop() -> None:
    rows = "cpu  aten::mul_ 10-11 x6 every 2"
    (found,) = of("2 threads, 4 cores", rows, "cpu gloo  gloo:all_reduce 11.2-20.8")
    assert found.ns == 11 * MS - 4_800_000  # Of the five pauses of 1 ms, 0.8 of the first and all of the others.


def test_additions_of_gradients_do_not_part_rounds() -> None:
    first = backward("MulBackward0 30-31", "MulBackward0 32-33 x5 every 2")
    (found,) = of(
        "cpu  aten::mul 10-11 x6 every 2", first + " | aten::add_ 33.2-33.4 x5 every 2", "gpu  sgemm 1-99 @0.5"
    )
    assert found.rounds == 6


def test_adding_up_gradients_is_what_rounds_cost() -> None:
    """1 ms of every 1.5 backward; what a round computes itself does not count, nor what a formula adds."""
    rows = ("2 threads, 4 cores", "cpu  aten::mul 10-10.5 x5 every 2", backward("MulBackward0 30-31.5 x5 every 2"))
    (alone,) = of(*rows)
    (engine,) = of(*rows, "cpu  aten::add_ 30.4-31.4 x5 every 2")
    assert engine.fixed_ns - alone.fixed_ns == 5 * MS
    (formula,) = of(*rows, "cpu  MulBackward0 30.1-31.45 x5 every 2 | aten::add 30.4-31.4 x5 every 2")
    assert formula.fixed_ns == alone.fixed_ns


def test_loops_stay_within_a_step_and_need_ops() -> None:
    assert of("cpu  aten::mul 10-11", backward("MulBackward0 30-31"), "gpu  sgemm 1-99 @0.5") == ()
    with pytest.raises(Missing, match="framework ops"):
        of("gpu  sgemm 1-99 @0.5")
    with pytest.raises(Missing, match="marked steps"):
        loops(facts_of("cpu  aten::mul 10-11 x6 every 2"))


def test_ops_between_products_are_one_where_rounds_stay_apart() -> None:
    """Of six ops five are left, and three if those between take nothing: all of the time is fixed, on a GPU."""
    names = ("aten::linear", "aten::tanh", "aten::mm", "aten::mul", "aten::t", "aten::linalg_solve")
    ops = " | ".join(f"{name} {1 + 0.5 * at}-{1.5 + 0.5 * at} x8 every 3" for at, name in enumerate(names))
    (loop,) = of(f"cpu  {ops}", backward("MulBackward0 30-31 x8 every 2"), "gpu  sgemm 90-91 @89")
    assert (loop.ops, loop.rounds) == (names, 8)
    assert loop.in_turn_left == pytest.approx(5 / 6)
    assert loop.in_turn_least == pytest.approx(3 / 6)


ASKING = (
    "cpu  aten::lift_fresh 10-10.2 x6 every 2 | aten::mul 10.4-11 x6 every 2 | {} 11.2-11.4 x6 every 2",
    backward("MulBackward0 30-30.5 x6 every 2"),
)


@pytest.mark.parametrize(
    ("gives_back", "is_loop"), [("aten::item", False), ("aten::is_nonzero", False), ("aten::tanh", True)]
)
def test_rounds_that_ask_python_what_comes_next_are_no_loop_of_tensors(gives_back: str, is_loop: bool) -> None:
    """As of an environment that takes an action and gives a state: autograd sees no need of the round before."""
    found = of(ASKING[0].format(gives_back), ASKING[1])
    assert bool(found) is is_loop


def test_a_loop_that_is_found_twice_is_one() -> None:
    """Found at other ops, it takes the same time: the one with more fixed time stays."""
    (larger,) = of("cpu  aten::mul 10-11 x6 every 2", backward("MulBackward0 30-30.5 x6 every 2"))
    smaller = replace(larger, ops=("aten::tanh",), fixed_ns=larger.fixed_ns - 1)
    (track, times), *_ = larger.pieces
    later = Intervals(times.starts + 50 * MS, times.ends + 50 * MS)
    elsewhere = replace(smaller, pieces=((track, later),))
    assert apart_in_time([larger, smaller, elsewhere]) == (larger, elsewhere)


def test_a_loop_gains_nothing_by_computing_together_what_is_known() -> None:
    """What uses the weight is left: in five rounds, forward and back, 1 ms each. Of that 20 us come with any op, and
    what exceeds 500 us is as fast as it can be; one round in five stays."""
    synthetic, seen = [], []
    for number in range(5):
        begin, back = 5 * number, 50 + 5 * (4 - number)
        synthetic.append(f"aten::linalg_qr {begin}-{begin + 4} sequence={2 * number + 1}")
        synthetic.append(f"aten::linear {begin + 4}-{begin + 5} sequence={2 * number + 2}")
        synthetic.append(f'"{BACKWARD}AddmmBackward0" {back}-{back + 1} sequence={2 * number + 2} "Fwd thread id"=1')
        synthetic.append(f'"{BACKWARD}QrBackward0" {back + 1}-{back + 5} sequence={2 * number + 1} "Fwd thread id"=1')
        seen.append("aten::linalg_qr as 0 | aten::linear" if number else "aten::linalg_qr | aten::linear")
    text = f"cpu  aten::ones_like 48-49 sequence=11 | {' | '.join(synthetic)}"
    (found,) = loops(facts_of(f"1 steps of 100\n2 threads, 4 cores\nvalues {' | '.join(seen)}\n{text}"))
    assert (found.ns, found.fixed_ns) == (10_000_000, 200_000)
    assert (found.left, found.least_left) == (pytest.approx(1 - 0.8 * 0.02), pytest.approx(1 - 0.8 * 0.5))
