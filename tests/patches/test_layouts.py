"""A property of every patch of a call: the file is Python, and without the argument it is the file as it was."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.contracts.patches import Patch
from tests.patches.patching import manifest, patch

PARTS = ["data", "data_of('x', 1)", "[a,\n  b]", "lambda x: x", "(yield)", "f'{x}, {y}'"]
NAMED = ["batch_size=8", "shuffle = True", "collate_fn=lambda x: (x,\n    x)", "timeout=\\\n  1", "sampler=[*a]"]
SPACES = ["", " ", "\n", "\n    ", "  # why\n", "  # (,\n\n        # more\n    ", "\t", "\\\n"]


@st.composite
def calls(draw: st.DrawFn) -> str:
    """A call of a DataLoader in some layout."""
    arguments = [
        *draw(st.lists(st.sampled_from(PARTS), max_size=2)),
        *draw(st.permutations(NAMED))[: draw(st.integers(0, 3))],
    ]
    space = st.sampled_from(SPACES)
    text = "".join(f"{draw(space)}{argument}{draw(space)}," for argument in arguments)
    if arguments and draw(st.booleans()):
        text = text[:-1]
    return f"DataLoader({text}{draw(space)})"


@given(calls(), st.sampled_from(["{}", "f(1, {}, 2)", "[{}]", "({}\n)", "x = y = {}  # z"]))
def test_an_argument_is_all_that_is_added(tmp_path_factory: pytest.TempPathFactory, call: str, around: str) -> None:
    text = (
        f"from torch.utils.data import DataLoader\ndef f():\n    if x:\n        {around.format(call)}\n    return 1\n"
    )
    try:
        before = ast.parse(text)
    except SyntaxError:
        return
    folder = tmp_path_factory.mktemp("layout")
    path = folder / "train.py"
    path.write_text(text)
    done: Patch = patch(
        folder, ["patch:DataLoader(num_workers=4)", "patch:DataLoader(pin_memory=True)"], manifest(path)
    )
    ((changed,), ()) = done.files, done.by_hand
    after = ast.parse(changed.after)
    (made,) = (one for one in ast.walk(after) if isinstance(one, ast.Call) and ast.unparse(one.func) == "DataLoader")
    assert [ast.unparse(keyword) for keyword in made.keywords[-2:]] == ["num_workers=4", "pin_memory=True"]
    del made.keywords[-2:]
    assert ast.dump(after) == ast.dump(before)
    assert comments(changed.after.decode()) == comments(text)


def comments(text: str) -> list[str]:
    return [line[line.index("#") :] for line in text.splitlines() if "#" in line]
