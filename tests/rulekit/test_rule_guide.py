"""The example in the guide to writing rules is a rule that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagnose.pipeline import diagnose_rank
from diagnose.rulekit import testing
from diagnose.synthetic.reading import facts_of

GUIDE = Path(__file__).parents[2] / "docs" / "writing-rules.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the example as a user would save it."""
    found = re.search(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    name = re.search(r"^def (\w+)", found[1], re.MULTILINE)
    assert name is not None
    (tmp_path / f"{name[1]}.py").write_text(found[1], encoding="utf-8")
    return tmp_path


def test_its_examples_hold(folder: Path) -> None:
    ran = {one.name: testing.failure(one, facts_of, diagnose_rank) for one in testing.examples(folder)}
    assert ran == {"validation_in_every_step::fires[0]": None, "validation_in_every_step::silent[0]": None}


def test_it_names_every_kind_of_edit_and_example() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name in ("Shorten", "Remove", "Detach", "Move", "Replace", "Between", "Fires", "Silent", "CannotTell"):
        assert f"`{name}" in text, name
