"""Shapes and lines of a detail recording, on drawings and on a recording of a small training."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.spans import sites_at, sites_of
from diagnose.facts.device.memory import Memory, memory
from diagnose.facts.host.functions import functions
from diagnose.facts.run.pauses import checkpoints
from diagnose.source import ranks
from diagnose.trace.costs import cost
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray
from diagnose.trace.joining import joined
from diagnose.trace.model import Rank, Severity
from tests.drawing import Drawing

RECORDING = Path(__file__).parents[1] / "data" / "recording"


def shapes_of(rank: Rank, name: str) -> list[str]:
    named = rank.spans.loc[rank.ops.index, "name"] == name
    return rank.ops["shapes"][named].astype(str).tolist()


def ids(rank: Rank, name: str) -> IntArray:
    return np.flatnonzero((rank.spans["name"] == name).to_numpy())


def op(draw: Drawing, name: str, start: float, end: float, shapes: list[object] | None = None, **more: int) -> Drawing:
    args = {} if shapes is None else {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
    return draw.op(name, start, end, more.get("tid", 100), **args)


@pytest.fixture
def timing() -> Rank:
    """Two steps of 100 us: mm, mm, add."""
    draw = Drawing()
    for number, at in ((5, 0), (6, 100)):
        draw.step(number, at, at + 100)
        op(op(op(draw, "aten::mm", at + 10, at + 20), "aten::mm", at + 30, at + 40), "aten::add", at + 60, at + 70)
    return draw.rank()


def detail(*steps: list[tuple[str, list[object]]]) -> Rank:
    """Ops of 10 us, 40 us from start to start, each called by a frame of its own name in `net.py`, the loop in `go`."""
    draw = Drawing().frame("go.py(1): go", 0, 1000 * len(steps))
    for k, ops in enumerate(steps):
        draw.step(20 + k, 1000 * k, 1000 * (k + 1))
        for place, (name, shapes) in enumerate(ops):
            at = 1000 * k + 40 * place
            draw.frame(f"net.py({place}): call", at + 9, at + 22)
            op(draw, name, at + 10, at + 20, shapes)
    return draw.rank()


SAME = [("aten::mm", [[1, 2]]), ("aten::mm", [[3, 4]]), ("aten::add", [[5]])]


def test_calls_are_matched_by_their_order_among_those_of_their_name(timing: Rank) -> None:
    found = joined(timing, detail(SAME))
    assert shapes_of(found, "aten::mm") == ["[[1, 2]]", "[[3, 4]]"] * 2
    assert shapes_of(found, "aten::add") == ["[[5]]"] * 2
    assert sites_of(Facts(found), ids(found, "aten::mm")[:2]) == [Site("net.py", 0, "call"), Site("net.py", 1, "call")]
    assert recorded_inputs(Facts(found), ids(found, "aten::add"))[0].tolist() == [0, 0]


def test_a_pause_has_the_line_in_its_middle(timing: Rank) -> None:
    """In the detail recording the frames close 2 us after their ops, and the next op comes 18 us later: `go` runs."""
    found = joined(timing, detail(SAME))
    moments = np.array([15_000, 25_000, 50_000, 80_000])  # in mm; after it; before add; after the last op that is known
    frames = ["net.py:0", "go.py:1", "go.py:1", None]
    sites = sites_at(Facts(found), moments, np.zeros(4, dtype=np.int64))
    assert [site and f"{site.file}:{site.line}" for site in sites] == frames


def test_a_pause_is_shared_out_among_its_lines(timing: Rank) -> None:
    """Of the 30 us in the detail recording 2 are of the first call, 27 of `go`, 1 of the next call: here of 10 us."""
    lines = joined(timing, detail(SAME)).lines
    inside = lines[(lines["start_ns"] >= 20_000) & (lines["start_ns"] + lines["dur_ns"] <= 30_000)]
    lasted = inside.groupby("name", observed=True)["dur_ns"].sum().to_dict()
    assert lasted == pytest.approx({"net.py(0): call": 667, "go.py(1): go": 9000, "net.py(1): call": 333}, abs=1)


def test_between_steps_it_is_the_pause_before_the_same_next_call(timing: Rank) -> None:
    found = joined(timing, detail(SAME, SAME))
    (site,) = sites_at(Facts(found), np.array([90_000]), np.zeros(1, dtype=np.int64))
    assert site == Site("go.py", 1, "go")


def test_names_that_are_called_more_or_less_often_are_left_out(timing: Rank) -> None:
    found = joined(timing, detail([("aten::mm", [[1, 2]]), ("aten::add", [[5]])]))
    assert shapes_of(found, "aten::mm") == [""] * 4
    assert shapes_of(found, "aten::add") == ["[[5]]"] * 2
    assert sites_of(Facts(found), ids(found, "aten::mm")) == [None] * 4
    assert found.integrity[-1].what.startswith("Input shapes and source lines of 33% of the ops come from trace.json")
    assert found.integrity[-1].severity is Severity.WARNING


def test_other_shapes_in_each_step_of_the_detail_recording_are_kept(timing: Rank) -> None:
    """Both mm are left out: the first takes the same in each step, the second in two that follow each other."""
    steps = [
        [("aten::mm", [[1, 2]]), ("aten::mm", [[3, n]]), ("aten::add", [[m]])] for n, m in ((4, 5), (4, 6), (5, 5))
    ]
    found = joined(timing, detail(*steps))
    assert found.varying.steps == (20, 21, 22)
    assert found.varying.shapes == (("[[5]]", "[[6]]", "[[5]]"),)
    assert found.varying.ids.tolist() == ids(found, "aten::add").tolist()
    assert found.varying.which.tolist() == [0, 0]


def test_where_steps_have_more_of_a_name_its_shapes_are_not_compared(timing: Rank) -> None:
    steps = [[("aten::mm", [[n, 2]])] * n + [("aten::add", [[n]])] for n in (1, 2, 3)]
    found = joined(timing, detail(*steps)).varying
    assert found.shapes == (("[[1]]", "[[2]]", "[[3]]"),)


def test_the_step_most_alike_is_taken(timing: Rank) -> None:
    other = [("aten::mm", [[9, 9]]), ("aten::add", [[9]])]
    found = joined(timing, detail(other, SAME, other))
    assert shapes_of(found, "aten::mm")[:2] == ["[[1, 2]]", "[[3, 4]]"]
    assert shapes_of(found, "aten::add")[:1] == ["[[5]]"]


def test_threads_are_told_apart_and_take_their_line_from_the_main_thread() -> None:
    """Two threads call the same op; on the one without frames of its own the main thread's line counts."""
    plain, rich = Drawing(), Drawing()
    for draw, shapes in ((plain, (None, None)), (rich, ([[1]], [[2]]))):
        draw.step(0, 0, 100).step(1, 100, 200)
        op(op(draw, "aten::mm", 10, 20, shapes[0]), "aten::mm", 12, 18, shapes[1], tid=7)
    rich.frame("go.py(1): backward", 5, 50)
    found = joined(plain.rank(), rich.rank())
    assert shapes_of(found, "aten::mm") == ["[[1]]", "[[2]]"]
    assert sites_of(Facts(found), ids(found, "aten::mm")) == [Site("go.py", 1, "backward")] * 2


def test_main_threads_are_the_same_whatever_their_ids() -> None:
    plain = Drawing().step(0, 0, 50).op("aten::mm", 1, 5)
    rich = Drawing().span("user_annotation", "ProfilerStep#3", 0, 50, tid=4)
    op(rich, "aten::mm", 1, 5, [[1]], tid=4)
    assert shapes_of(joined(plain.rank(), rich.rank()), "aten::mm") == ["[[1]]"]


def test_calls_of_the_runtime_have_lines_too() -> None:
    plain = Drawing().step(0, 0, 50).op("aten::mm", 1, 5).call("cudaDeviceSynchronize", 10, 20)
    rich = Drawing().step(0, 0, 50).op("aten::mm", 1, 5).call("cudaDeviceSynchronize", 10, 20)
    rich.frame("go.py(1): wait", 9, 21)
    found = joined(plain.rank(), rich.rank())
    assert sites_of(Facts(found), ids(found, "cudaDeviceSynchronize")) == [Site("go.py", 1, "wait")]


def test_a_detail_recording_without_the_device_tells_lines_of_its_calls_by_what_is_around_them() -> None:
    """As beside Nsight Systems, where one recorder at a time can ask the device."""
    plain = Drawing().step(0, 0, 200).op("aten::mm", 10, 30).call("cudaLaunchKernel", 15, 20)
    plain.call("cudaDeviceSynchronize", 40, 90).op("aten::add", 100, 110)
    rich = Drawing().step(3, 0, 200).op("aten::mm", 10, 30).op("aten::add", 100, 110)
    rich.frame("net.py(1): forward", 5, 35).frame("go.py(8): wait", 38, 92)
    found = joined(plain.rank(), rich.rank())
    (launch, sync) = (ids(found, name) for name in ("cudaLaunchKernel", "cudaDeviceSynchronize"))
    assert sites_of(Facts(found), launch) == [Site("net.py", 1, "forward")]
    assert sites_of(Facts(found), sync) == [Site("go.py", 8, "wait")]


def test_what_the_timing_recording_has_itself_is_kept(timing: Rank) -> None:
    own = detail(SAME)
    found = joined(own, detail([(name, [[8]]) for name, _ in SAME]))
    assert found.ops is own.ops
    assert found.lines is own.lines
    assert found.provenance.joined == frozenset()


@pytest.mark.parametrize("other", [detail([("aten::relu", [[1]])]), Drawing().op("aten::mm", 0, 5).rank()])
def test_recordings_that_have_nothing_in_common(timing: Rank, other: Rank) -> None:
    found = joined(timing, other)
    assert found.ops is timing.ops
    assert found.provenance.joined == frozenset()
    assert found.integrity[-1].what == "Nothing could be taken from trace.json."
    assert sites_of(Facts(found), ids(found, "aten::add")) == [None, None]


def test_tables_are_not_changed(timing: Rank) -> None:
    before = timing.ops.copy(deep=True)
    joined(timing, detail(SAME))
    assert timing.ops.equals(before)
    assert not len(timing.lines)


@pytest.fixture(scope="module")
def real() -> Facts:
    plain, rich = (ranks.read(RECORDING / f"rank0.{name}.json.gz") for name in ("trace", "detail"))
    assert not {"shapes", "stacks"} & plain.provenance.recorded
    return Facts(joined(plain, rich))


def test_a_real_recording_has_every_shape(real: Facts) -> None:
    assert real.rank.integrity[-1].what == (
        "Input shapes and source lines of 100% of the ops come from rank0.detail.json.gz."
    )
    assert shapes_of(real.rank, "aten::linear") == ["[[4, 16], [32, 16], [32]]", "[[4, 32], [4, 32], [4]]"] * 4
    # Backward of the second layer, which needs both gradients, and of the first, whose input needs none.
    assert shapes_of(real.rank, "aten::mm")[:3] == ["[[4, 4], [4, 32]]", "[[4, 4], [4, 32]]", "[[32, 4], [4, 16]]"]
    (first, *_) = real.rank.ops[
        (real.rank.spans.loc[real.rank.ops.index, "name"] == "aten::mm").to_numpy()
    ].itertuples()
    known = cost("aten::mm", first.shapes, first.dtypes)
    assert (known.flops, known.dtype) == (2 * 4 * 4 * 32, "fp32")


def test_a_real_recording_has_lines(real: Facts) -> None:
    """As train.py has them: torch's own frames are passed over."""
    lines = {
        "aten::item": "report",
        "aten::linear": "forward",
        "aten::stack": "train_step",
        "aten::full": "__getitem__",
        "NllLossBackward0": "train_step",
        "aten::add_": "train_step",
    }
    for name, function in lines.items():
        assert {site and site.function for site in sites_of(real, ids(real.rank, name))} == {function}, name
    assert {one.site.function for one in functions(real) if one.site} >= {"train_step", "forward"}


def test_what_needs_frames_of_the_same_steps_still_says_so(real: Facts) -> None:
    with pytest.raises(Missing, match="checkpoints"):
        checkpoints(real)


@pytest.mark.parametrize("name", ["mi300_resnet18", "mi300_qwen05b", "h100_qwen05b"])
def test_lines_of_a_recording_joined_to_itself_are_its_own(corpus: Path, name: str) -> None:
    """As if its stacks were another recording's: every op and every idle gap has the line that it has anyway."""
    rich = ranks.read(next((corpus / "kineto").rglob(f"{name}.json.gz")))
    plain = replace(rich.provenance, recorded=rich.provenance.recorded - {"shapes", "stacks"})
    found = joined(replace(rich, provenance=plain), rich)
    ops = np.flatnonzero(((rich.spans["kind"] == "op") & (rich.spans["step"] >= 0)).to_numpy())
    assert sites_of(Facts(found), ops) == sites_of(Facts(rich), ops)
    assert idle_gaps(Facts(found)).sites == idle_gaps(Facts(rich)).sites
    assert any(idle_gaps(Facts(found)).sites)


def test_allocations_come_from_the_detail_recording(timing: Rank) -> None:
    """They say how much was allocated, whenever that was."""
    assert optional(memory, Facts(timing)) is None
    more = Drawing().step(20, 0, 100).op("aten::mm", 10, 20)
    for total in (4096, 1024):
        args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Allocated": total, "Total Reserved": 2 * total}
        more.events.append({"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5, "args": args})
    both = joined(timing, more.rank())
    assert optional(memory, Facts(both)) == (Memory(0, 4096, 8192),)


def loop(turns: int, at: int, lines: bool) -> Drawing:
    """A step of `turns` rounds of mm, relu, and sum at the end."""
    draw = Drawing().step(1, at, at + 1000)
    names = [*["aten::mm", "aten::relu"] * turns, "aten::sum"]
    for place, name in enumerate(names):
        begin = at + 20 * place
        if lines:
            draw.frame(f"net.py({7 if name == 'aten::sum' else 5}): f", begin + 9, begin + 19)
        op(draw, name, begin + 10, begin + 18, [[4, 4]] if lines else None)
    return draw


def test_where_loops_turn_more_often_calls_are_known_by_those_around_them() -> None:
    found = joined(loop(9, 0, lines=False).rank(), loop(5, 0, lines=True).rank())
    products = sites_of(Facts(found), ids(found, "aten::mm"))
    assert products == [Site("net.py", 5, "f")] * 9
    assert sites_of(Facts(found), ids(found, "aten::sum")) == [Site("net.py", 7, "f")]
    assert shapes_of(found, "aten::relu") == ["[[4, 4]]"] * 9


def test_calls_whose_surroundings_tell_different_lines_stay_unknown() -> None:
    """The same two ops, each on a line of its own: of five instead of four rounds nobody knows which is which."""
    draws = []
    for turns, lines in ((5, False), (4, True)):
        draw = Drawing().step(1, 0, 1000)
        for place in range(2 * turns):
            begin = 20 * place
            if lines:
                draw.frame(f"net.py({5 + place}): f", begin + 9, begin + 19)
            op(draw, ("aten::mm", "aten::relu")[place % 2], begin + 10, begin + 18)
        draws.append(draw.rank())
    found = joined(*draws)
    middle = ids(found, "aten::mm")[2:3]
    assert sites_of(Facts(found), middle) == [None]
