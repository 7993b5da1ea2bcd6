"""Settings of frameworks are there in the installed packages, and take the values that are advised."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from diagnose.fixes.frameworks import OWN_WORK
from diagnose.fixes.setting import Argument, Code, Loop
from tests.fixes.test_catalogue import ALL, RUN

pytestmark = pytest.mark.slow

ADVISED = sorted(
    {
        (told.owner, told.name, repr(told.value)): told
        for told in [
            *(setting.framework(loop, RUN) for setting in ALL for loop in Loop),
            *(work.setting for work in OWN_WORK),
        ]
        if isinstance(told, Argument) and "." in told.owner
    }.values(),
    key=str,
)
"""But for DeepSpeed's configuration, which is no Python, and from_pretrained(), which takes what the model does."""

NEEDED: dict[str, dict[str, Any]] = {
    "lightning.Trainer": {"logger": False, "accelerator": "cpu"},
    "lightning.Fabric": {"accelerator": "cpu"},
}


@pytest.mark.parametrize("told", ADVISED, ids=lambda told: f"{told.owner}.{told.name}={told.value}")
def test_an_argument_that_is_advised_can_be_given(told: Argument, tmp_path: Path) -> None:
    """Where this machine has the device that it takes; that the class knows it is checked everywhere."""
    module, _, name = told.owner.rpartition(".")
    pytest.importorskip(module.partition(".")[0])
    kind = getattr(importlib.import_module(module), name)
    known = inspect.signature(kind).parameters
    assert told.name in known or any(one.kind is one.VAR_KEYWORD for one in known.values())
    if isinstance(told.value, Code):
        return
    needed = NEEDED.get(told.owner, {})
    if name == "TrainingArguments":
        needed = {"output_dir": str(tmp_path), "use_cpu": told.name != "tf32"}
    if told.name == "prefetch_factor" or told.name.endswith("prefetch_factor"):
        needed["dataloader_num_workers"] = 2
    if module == "accelerate":  # It lets a process choose once.
        importlib.import_module("accelerate.state").AcceleratorState._reset_state(True)
    refused = ""
    try:
        kind(**{**needed, told.name: told.value})
    except (ValueError, ImportError) as error:
        refused = str(error)
    assert not refused or re.search("GPU|CUDA|Ampere|supported device", refused), refused
