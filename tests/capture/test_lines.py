"""Lines of a loop, recorded in a function that was on the stack, and lines of trainings by others, each recorded as a
user would, against their own source.
"""

import ast
import inspect
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.others import FOLDER, cases
from diagnose.capture.agent import lines
from diagnose.capture.agent.plan import WORK
from diagnose.capture.agent.recordings import Recording
from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import sites_of
from diagnose.source import ranks
from diagnose.trace.frames import Site
from tests.capture.scripts import profile
from tests.capture.written import Source, Verdict, Work, judged
from tests.exhaustive import some_of


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


IN_THE_LOOP = (Work.BACKWARD, Work.OPTIMIZER_STEP, Work.ZERO_GRAD)
"""What these trainings do in the function that has the loop, which is on the stack when the recording begins."""


def test_a_source_tells_where_its_calls_are(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        """import torch
def made(): return torch.nn.Sequential(torch.nn.Linear(2, 2))
def loss_of(x):
    return torch.nn.functional.mse_loss(
        x, x)
net, opt = made(), torch.optim.SGD([], 1)
other = Other()
for x in loader:
    other.step()
    for part in [net]:
        loss_of(part(x)).backward()
    opt.step()
    opt.zero_grad()
"""
    )
    source = Source(tmp_path, [file])
    found = {work: source.calls(file, work, "aten::mse_loss") for work in Work}
    assert found == {
        Work.BACKWARD: [(11, 11)],
        Work.OPTIMIZER_STEP: [(12, 12)],
        Work.ZERO_GRAD: [(13, 13)],
        Work.LOADER: [(8, 8)],
        Work.LOSS: [(4, 5)],
        Work.MODEL: [(11, 11)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", some_of(cases(), list(cases())[::10]))
def test_lines_are_those_of_the_source(case: str, tmp_path: Path) -> None:
    """Of a function that is called, where it starts is known; of the one with the loop, each line."""
    shutil.copy(FOLDER / case / "train.py", tmp_path)
    done = profile(tmp_path, "-q", "--warmup", 1, "--steps", 1, "train.py")
    assert done.code == 0, done.stderr
    said = judged(done.folder, tmp_path)
    assert [one for one in said if one.verdict is Verdict.WRONG] == []
    assert {one.work for one in said} >= {*IN_THE_LOOP, Work.MODEL}
    source = Source(tmp_path, [tmp_path / "train.py"])
    for work in IN_THE_LOOP:
        ours = [one for one in said if one.work is work]
        assert {one.verdict for one in ours} == {Verdict.LINE}
        named = {one.site.line for one in ours if one.site is not None}
        written = source.calls(tmp_path / "train.py", work, "")
        assert [of for of in written if not any(of[0] <= line <= of[1] for line in named)] == []
