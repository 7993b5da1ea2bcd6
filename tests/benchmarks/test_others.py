"""Trainings by others: each has a fault, and a fix that can be put into it."""

import ast
from pathlib import Path

import pytest

from benchmarks.others import both, cases


@pytest.mark.parametrize("case", cases())
def test_a_fix_fits_its_training(case: str, tmp_path: Path) -> None:
    faulty, fixed = ((folder / "train.py").read_text(encoding="utf-8") for folder in both(case, tmp_path))
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(fixed))
