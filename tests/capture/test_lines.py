"""Lines of a loop, recorded in a function that was on the stack, against the script's own source."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from diagnose.capture.agent import lines
from diagnose.capture.agent.plan import WORK
from diagnose.capture.agent.recordings import Recording
from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import sites_of
from diagnose.source import ranks
from diagnose.trace.frames import Site


def half(values: torch.Tensor) -> torch.Tensor:
    return values.div(2)


def loop(recording: Recording, steps: int) -> None:
    values = torch.ones(8)
    for step in range(steps):
        if step == 2:
            recording.begin(step)
        elif step > 2:
            recording.mark(step)
        values = values.mul(3)
        chosen = [values.clone() for _ in range(2)]
        half(values.add(1))
        chosen[0].neg()


def recorded(run: Callable[[Recording, int], None], folder: Path) -> Facts:
    (folder / WORK).mkdir()
    recording = Recording(detailed=True)
    run(recording, 6)
    recording.end(folder / "trace.json.gz", folder / WORK)
    return Facts(ranks.read(folder / "trace.json.gz"))


def said(facts: Facts, op: str) -> set[Site | None]:
    ids = np.flatnonzero((facts.rank.spans["name"] == f"aten::{op}").to_numpy())
    assert len(ids) >= 3
    return set(sites_of(facts, ids))


def written(function: Callable[..., object], called: str) -> tuple[int, int]:
    """First and last line of a function's call of a method, in this file."""
    lines, first = inspect.getsourcelines(function)
    calls = [one for one in ast.walk(ast.parse(textwrap.dedent("".join(lines)))) if isinstance(one, ast.Call)]
    (found,) = (one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == called)
    return first - 1 + found.lineno, first - 1 + (found.end_lineno or 0)


@pytest.fixture(autouse=True)
def untraced() -> None:
    """Coverage and debuggers trace themselves, which turns the marks off."""
    if sys.gettrace() is not None:
        pytest.skip("something else traces lines")


@pytest.mark.parametrize(("function", "op"), [(loop, "mul"), (loop, "add"), (loop, "neg"), (half, "div")])
def test_an_op_has_the_line_at_which_it_stands(function: Callable[..., object], op: str, tmp_path: Path) -> None:
    (site,) = said(recorded(loop, tmp_path), op)
    first, last = written(function, op)
    assert (first <= site.line <= last, site.function) == (True, function.__name__)


def test_a_function_with_too_many_lines_has_the_one_at_which_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_OF_ONE", 2)
    facts = recorded(loop, tmp_path)
    called, starts = written(half, "div")[0], inspect.getsourcelines(half)[1]
    assert {site and site.line for site in said(facts, "div")} == {called, starts}
    assert {site and site.function for site in said(facts, "neg")} == {"loop"}


def test_a_generator_takes_turns_with_what_asks_it(tmp_path: Path) -> None:
    def some(steps: int) -> object:
        for step in range(steps):
            torch.ones(2).mul(3)
            yield step

    def run(recording: Recording, steps: int) -> None:
        for step in some(steps):
            if step == 2:
                recording.begin(step)
            torch.ones(2).neg()

    facts = recorded(run, tmp_path)
    assert {site and site.function for site in said(facts, "neg")} == {"run"}
    assert {site and site.function for site in said(facts, "mul")} == {"some"}


def test_a_frame_may_end_and_nothing_is_traced_after(tmp_path: Path) -> None:
    inner: list[object] = []

    def begun(recording: Recording) -> None:
        inner.append(sys._getframe())
        recording.begin(0)
        torch.ones(2).neg()

    def run(recording: Recording, steps: int) -> None:
        begun(recording)
        for _ in range(steps):
            torch.ones(2).mul(3)

    (site,) = said(recorded(run, tmp_path), "mul")
    assert site.function == "run"
    assert sys.gettrace() is None
    assert sys._getframe().f_trace is None


def test_a_trace_function_of_the_script_stays_and_lines_are_not_known(tmp_path: Path) -> None:
    seen = set[str]()

    def traced(frame: object, event: str, arg: object) -> None:
        seen.add(event)

    sys.settrace(traced)
    try:
        facts = recorded(loop, tmp_path)
        kept = sys.gettrace()
    finally:
        sys.settrace(None)
    assert (kept, seen) == (traced, {"call"})
    (site,) = said(facts, "mul")
    assert (site.line, site.function) == (0, "loop")


def test_a_script_may_set_its_own_meanwhile(tmp_path: Path) -> None:
    def traced(frame: object, event: str, arg: object) -> None:
        return None

    def run(recording: Recording, steps: int) -> None:
        loop(recording, steps)
        sys.settrace(traced)

    try:
        recorded(run, tmp_path)
        assert sys.gettrace() is traced
    finally:
        sys.settrace(None)
