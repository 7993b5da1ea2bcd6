"""Files of rules as modules: beside the facts of their folder, and with the thresholds that are set."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_ROOT = "diagnose_rules"


def module_of(path: Path, thresholds: Mapping[str, float]) -> ModuleType:
    """A new module of the file, in which constants have other values by name. Raises whatever its code raises.

    Its folder is its package, so that `from ._name import Something` finds the module `_name.py` there. That is no
    rule, and is kept once it is loaded, as the facts that it registers are.
    """
    spec = importlib.util.spec_from_file_location(f"{_package(path.parent)}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if not thresholds:
        spec.loader.exec_module(module)
    else:
        exec(compile(_with(path, thresholds), str(path), "exec"), vars(module))
    return module


def _package(folder: Path) -> str:
    name = f"{_ROOT}_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return name


def _with(path: Path, values: Mapping[str, float]) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in values:
            node.value = ast.copy_location(ast.Constant(values[node.targets[0].id]), node.value)
    return tree
