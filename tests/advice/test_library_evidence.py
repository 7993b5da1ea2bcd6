"""A finding names the library function behind the user's line, and none that has little of its time."""

from pathlib import Path

import diagnose
from diagnose.contracts.finding import RankedFinding
from tests.drawing import Drawing

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def training(zoom_ms: int) -> Drawing:
    """Five steps of a second, 600 ms of which load: of these, scipy zooms for so long."""
    draw, ms = Drawing(), 1000
    for number in range(5):
        at = 1000 * ms * number
        draw.step(number, at, at + 1000 * ms).frame("/home/me/train.py(3): main", at, at + 999 * ms)
        draw.span("user_annotation", FETCH, at, at + 600 * ms)
        draw.frame("/home/me/data.py(8): __getitem__", at + ms, at + 599 * ms)
        draw.frame("scipy/ndimage/_interpolation.py(700): zoom", at + 10 * ms, at + (10 + zoom_ms) * ms)
        draw.op("aten::mm", at + 601 * ms, at + 610 * ms)
        draw.launch("sgemm", (at + 602 * ms, at + 604 * ms), (at + 606 * ms, at + 996 * ms))
    return draw


def loading(draw: Drawing, path: Path) -> RankedFinding:
    found = diagnose.analyze(draw.write(path / "trace.json")).findings
    return next(one for one in found if one.code == "DL02")


def test_the_library_function_is_named_with_the_line_that_calls_it(tmp_path: Path) -> None:
    said = [one.text for one in loading(training(529), tmp_path).evidence]
    assert said[-1] == (
        "Of this, 529 ms a step is in scipy.ndimage.zoom, which `__getitem__` (/home/me/data.py:8) calls."
    )


def test_a_function_with_less_than_half_of_the_time_is_not_named(tmp_path: Path) -> None:
    assert not any("scipy" in one.text for one in loading(training(250), tmp_path).evidence)
