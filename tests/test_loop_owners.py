"""The recorder, which may import nothing, and the reader know the same frameworks that own training loops."""

import pytest

from diagnose.capture.agent import loops
from diagnose.fixes.setting import Loop
from diagnose.trace import frames


@pytest.mark.parametrize(("module", "owner"), loops.OWNERS.items())
def test_a_module_that_the_recorder_knows_is_a_file_that_the_reader_knows(module: str, owner: str) -> None:
    of_package, of_module = f"{module.replace('.', '/')}/loop.py", f"{module.replace('.', '/')}.py"
    found = {frames.loop_owner(f"/lib/site-packages/{file}(7): run") for file in (of_package, of_module)}
    assert found - {None} == {owner}


def test_one_that_stands_on_another_comes_first_in_both() -> None:
    assert list(dict.fromkeys(loops.OWNERS.values())) == [owner for owner, _ in frames._OWNERS]
    assert set(loops.OWNERS.values()) < {owner.value for owner in Loop}
