"""Break one function of the program at a time, wherever it has been imported to."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any


def raising(*args: object, **kwargs: object) -> None:
    raise ValueError("4x")


def functions(*rooms: str) -> dict[str, FunctionType]:
    """All functions and methods of the loaded modules of these packages, but closures, by module and name."""
    found: dict[str, FunctionType] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(rooms) and module is not None:
            for var in list(vars(module).values()):
                members = vars(var).values() if isinstance(var, type) else (var,)
                for member in members:
                    function = _bare(member)
                    if function is not None and function.__module__ == name:
                        found[f"{name}.{function.__qualname__}"] = function
    return found


def function(name: str) -> FunctionType:
    """One of them by module and name; the module is loaded for that."""
    module, _, owner = name.rpartition(".")[0].rpartition(".")
    module = module if owner[0].isupper() else f"{module}.{owner}"
    importlib.import_module(module)
    return functions(module)[name]


def _bare(member: Any) -> FunctionType | None:
    member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    while hasattr(member, "__wrapped__"):
        member = member.__wrapped__
    closed = isinstance(member, FunctionType) and member.__code__.co_freevars
    return member if isinstance(member, FunctionType) and not closed else None


@contextmanager
def broken(function: FunctionType) -> Iterator[None]:
    """Have a function raise ValueError, whoever calls it."""
    before = function.__code__
    function.__code__ = raising.__code__
    try:
        yield
    finally:
        function.__code__ = before


def called(run: Callable[[], object], among: dict[str, FunctionType]) -> list[str]:
    """The names of those functions that a run calls, in order of their first call."""
    names = {function.__code__: name for name, function in among.items()}
    met: dict[CodeType, None] = {}

    def look(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in names:
            met[frame.f_code] = None

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(before)
    return [names[code] for code in met]
