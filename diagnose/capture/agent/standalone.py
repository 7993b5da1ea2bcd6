"""Modules of `diagnose` that need the standard library alone, where the process need not have `diagnose` installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "diagnose_standalone"


def standalone(name: str) -> Any:
    """A module by its name in `diagnose`. Without `diagnose` it is imported from beside the agent's files."""
    if __package__ and __package__.startswith("diagnose."):
        return importlib.import_module(f"diagnose.{name}")
    if NAME not in sys.modules:
        package = sys.modules[NAME] = ModuleType(NAME)
        package.__path__ = [str(Path(__file__).parents[2])]
    return importlib.import_module(f"{NAME}.{name}")
