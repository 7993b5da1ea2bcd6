"""Which function of an installed package took the time of a line, by frames written by hand."""

import numpy as np

from diagnose.facts.host.library_calls import LibraryCall, library_call
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


def test_functions_that_call_back_have_not_the_time_of_the_user_s_code() -> None:
    draw = Drawing().step(0, 0, 100).step(1, 100, 200).op("aten::mm", 190, 195)
    draw.frame("/home/me/train.py(3): main", 0, 200).frame("pytorch_lightning/trainer/trainer.py(5): fit", 101, 199)
    draw.frame("/home/me/net.py(8): training_step", 110, 190)
    assert found(draw, 100, 200) is None


def test_installed_packages_are_known_by_their_folder_too() -> None:
    draw = loading()
    for event in draw.events:
        event["name"] = event["name"].replace("scipy/", "/env/lib/python3.11/site-packages/cucim/")
    call = found(draw, 105, 195)
    assert call is not None
    assert call.function == "cucim.ndimage.zoom"


def test_what_torch_or_python_s_own_library_does_is_not_named() -> None:
    draw = Drawing().step(0, 0, 100).step(1, 100, 200).op("aten::mm", 190, 195)
    draw.frame("/home/me/train.py(3): main", 0, 200).frame("torch/_tensor.py(500): backward", 101, 199)
    draw.frame("/usr/lib/python3.11/json/decoder.py(3): decode", 102, 198)
    assert found(draw, 100, 200) is None
