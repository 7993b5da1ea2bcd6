"""Modules: acting on those that the script imports, and those of `diagnose` that need the standard library alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .alone import tried

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


Act = Callable[[ModuleType], None]


def when_imported(name: str, act: Act) -> None:
    """Call `act(module)` once, after the module has been imported; at once if it has been already.

    What `act` raises is swallowed: nothing of ours may break the script's import.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        tried(module.__name__, act, module)
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(act)


_waiting: dict[str, list[Act]] = {}


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _tell(spec.loader, fullname)
                return spec
        return None


def _tell(loader: Any, name: str) -> None:
    """Have this loader call what waits for the module. Loaders of files are made anew for each module."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        for act in _waiting.pop(name, []):
            tried(module.__name__, act, module)

    loader.exec_module = exec_module


NAME = "diagnose_standalone"


def standalone(name: str) -> Any:
    """A module by its name in `diagnose`. Without `diagnose` it is imported from beside the agent's files."""
    if __package__ and __package__.startswith("diagnose."):
        return importlib.import_module(f"diagnose.{name}")
    if NAME not in sys.modules:
        package = sys.modules[NAME] = ModuleType(NAME)
        package.__path__ = [str(Path(__file__).parents[2])]
    return importlib.import_module(f"{NAME}.{name}")
