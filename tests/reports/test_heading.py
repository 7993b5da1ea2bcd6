"""The first line of a report."""

from __future__ import annotations

from pathlib import Path

import diagnose
from diagnose.reports.heading import headline
from diagnose.synthetic import notation

STEPS = 6


def first_line(path: Path, most: int) -> str:
    """Of a training of six steps, whose backward pass goes through the graphs of at most so many."""
    items = [f"cpu  aten::add 0-1 sequence={step} in {step}" for step in range(STEPS)]
    for step in range(STEPS):
        for node in range(max(step - most + 1, 0), step + 1):
            at = 2 + 2 * (step - node)
            name = '"autograd::engine::evaluate_function: AddBackward0"'
            items.append(f'cpu  {name} {at}-{at + 2} sequence={node} "Fwd thread id"=1 in {step}')
    trace = path / "trace.json"
    trace.write_bytes(notation.trace("\n".join([f"{STEPS} steps of 100", *items])))
    return headline(diagnose.analyze(trace))


def test_steps_that_do_more_each_are_said_first(tmp_path: Path) -> None:
    """Of all steps but the last, which may be cut off."""
    assert first_line(tmp_path, STEPS).endswith(". Steps are not steady: backward nodes 1 to 5, 1 more each")


def test_of_even_steps_nothing_is_said(tmp_path: Path) -> None:
    assert "steady" not in first_line(tmp_path, 1)
