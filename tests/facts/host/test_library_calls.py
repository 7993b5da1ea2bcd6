"""Which function of an installed package took the time of a line, by frames written by hand."""

import numpy as np
import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.host.callees import LibraryCall, Texts, library_call, texts
from diagnose.facts.host.loops import loops
from diagnose.facts.host.process import FetchedMemory, fetched_memory
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.intervals import Intervals
from tests.drawing import Drawing

ZOOM = "scipy/ndimage/_interpolation.py(700): zoom"
ITEM = Site("/home/me/data.py", 8, "__getitem__")


def loading() -> Drawing:
    """A step of 100 us: a loader of torch asks for an item of the user's, which scipy zooms from 20 to 90 us."""
    draw = Drawing().step(0, 0, 100).step(1, 100, 200).op("aten::mm", 190, 195)
    draw.frame("/home/me/train.py(3): main", 0, 200).frame("torch/utils/data/dataloader.py(700): __next__", 105, 195)
    draw.frame("/home/me/data.py(8): __getitem__", 110, 192)
    draw.frame("scipy/ndimage/_interpolation.py(700): zoom", 120, 190)
    draw.frame("scipy/_lib/_util.py(30): wrapper", 121, 189).frame("numpy/core/fromnumeric.py(9): prod", 130, 180)
    return draw


def found(draw: Drawing, start: int, end: int) -> LibraryCall | None:
    facts = draw.facts()
    track = int(facts.rank.spans["track"].iloc[0])
    times = Intervals(np.array([start * 1000]), np.array([end * 1000]))
    return library_call(facts, times, np.array([track]))


def test_the_function_that_the_line_called_is_named_rather_than_what_it_calls_itself() -> None:
    assert found(loading(), 105, 195) == LibraryCall("scipy.ndimage.zoom", ITEM, 70_000, 70_000 / 90_000)


def test_only_the_asked_time_counts() -> None:
    assert found(loading(), 105, 130) is None  # 10 of 25 us
    assert found(loading(), 110, 150) == LibraryCall("scipy.ndimage.zoom", ITEM, 30_000, 0.75)


def test_installed_packages_are_known_by_their_folder_too() -> None:
    draw = loading()
    for event in draw.events:
        event["name"] = event["name"].replace("scipy/", "/env/lib/python3.11/site-packages/cucim/")
    call = found(draw, 105, 195)
    assert call.function == "cucim.ndimage.zoom"


@pytest.mark.parametrize(
    "inner",
    [
        (
            "pytorch_lightning/trainer/trainer.py(5): fit",
            "/home/me/net.py(8): training_step",
        ),  # It calls the user back.
        ("torch/_tensor.py(500): backward", "/usr/lib/python3.11/json/decoder.py(3): decode"),
    ],
)
def test_whose_time_is_not_named(inner: tuple[str, str]) -> None:
    draw = Drawing().step(0, 0, 100).step(1, 100, 200).op("aten::mm", 190, 195)
    draw.frame("/home/me/train.py(3): main", 0, 200).frame(inner[0], 101, 199).frame(inner[1], 110, 190)
    assert found(draw, 100, 200) is None


HEAD = "4 steps of 100\n2 threads, 4 cores\n"
OPS = "cpu  aten::linear 0-30 | aten::mm 1-29 | aten::relu 30-40\n"


def of(*lines: str) -> FetchedMemory | None:
    return fetched_memory(facts_of(HEAD + OPS + "\n".join(lines)))


def test_what_it_takes() -> None:
    """A quarter of a ns for each byte; in some of the outermost ops."""
    found = of("fetched 80 MB a step")
    assert (found.bytes, found.ns, found.ops_ns) == (80_000_000, 20_000_000, 40_000_000)
    assert len(found.op_ids) == 2 * 4


def test_the_largest_tensor() -> None:
    found = of("fetched 80 MB a step", 'cpu  aten::mul 50-60 shapes=[[1000,50],[1000]] types=["float","float"]')
    assert (found.largest_bytes, of("fetched 80 MB a step").largest_bytes) == (200_000, None)


def test_nothing_is_fetched_and_with_a_gpu_tensors_lie_elsewhere() -> None:
    assert of("fetched 0 MB a step").ns == 0
    assert of("fetched 80 MB a step", "gpu  sgemm 5-20 @2") is None


def test_nobody_counted() -> None:
    with pytest.raises(Missing, match="page faults"):
        of()


RANGE = '"Tensor.__repr__ (text)"'
FRAME = '"torch/_tensor_str.py(712): _str"'
CPU = "4 steps of 100\n1 threads, 2 cores\ncpu  aten::mm 0-10"


def of_of_texts(synthetic: str) -> Texts:
    return texts(facts_of(synthetic))


@pytest.mark.parametrize("name", [RANGE, FRAME])
def test_how_many_and_how_long(name: str) -> None:
    found = of_of_texts(f"{CPU} | {name} 20-30 | {name} 40-44 not in 3")
    assert (found.host_ns, found.steps_seen, found.idle_ns) == (12_666_667, 3, None)
    assert found.count == 2  # Five in three steps.


def test_one_inside_another_is_the_other() -> None:
    assert of_of_texts(f"{CPU} | {RANGE} 20-30 | {FRAME} 21-29").host_ns == 10_000_000


def test_for_how_long_the_device_is_idle() -> None:
    synthetic = f"4 steps of 100\ncpu  aten::mm 0-10 | {RANGE} 20-50\ngpu  sgemm 10-30 @5 | sgemm 60-90 @8"
    assert of_of_texts(synthetic).idle_ns == 20_000_000


def test_none_was_seen_where_none_can_be() -> None:
    with pytest.raises(Missing, match="tensors"):
        of_of_texts(CPU)
    assert of_of_texts(f'{CPU} | "train.py(3): main" 0-90').count == 0


def test_what_writes_text_is_no_loop() -> None:
    """Numbers are read one by one, ten times; as many are read elsewhere."""
    reading = "aten::item 21-21.5 x10 every 0.8"
    assert [loop.rounds for loop in loops(facts_of(f"{CPU} | {reading}"))] == [10]
    assert loops(facts_of(f"{CPU} | {RANGE} 20-30 | {reading}")) == ()
