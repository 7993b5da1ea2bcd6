"""Where the script makes its loaders, optimizers and wrapped models, and the calls as they stand there."""

from __future__ import annotations

import ast
import sys
import weakref
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .loops import is_library, line_of

LONGEST_CALL = 400  # Characters of a call that are kept (our choice).
SHORT_NAMES = {"DistributedDataParallel": ("DDP",)}  # Names by which scripts import them, besides their own.


class Place(NamedTuple):
    """A line of the user's own that runs."""

    file: str
    line: int
    function: str


_places: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()


def note(made: Any) -> None:
    """Something is being made: remember by which line of the user's."""
    if (place := running()) is not None:
        _places[made] = place


def running() -> Place | None:
    """The line of the user's that runs now; None if all are of libraries."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Place(frame.f_code.co_filename, line_of(frame), frame.f_code.co_name)


def begins(function: object) -> dict[str, object] | None:
    """Where a function of the user's own begins, as `Made` in the manifest; None of others."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not is_users(code.co_filename):
        return None
    return Place(code.co_filename, code.co_firstlineno, code.co_name)._asdict()


def where(made: Any) -> dict[str, object] | None:
    """As `Made` in the manifest; None if that is not known."""
    place = _places.get(made)
    return None if place is None else {**place._asdict(), "call": call_at(place, type(made).__name__)}


def call_at(place: Place, name: str) -> str:
    """The call of what has that name at a line of a file, in one line; empty if there is not exactly one.

    Texts in it that are more than a word are left out, as they may name what is private.
    """
    try:
        tree = ast.parse(Path(place.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ""
    names = (name, *SHORT_NAMES.get(name, ()))
    around = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Call) and one.lineno <= place.line <= (one.end_lineno or 0) and _name(one.func) in names
    ]
    text = ast.unparse(_Discreet().visit(around[0])) if len(around) == 1 else ""
    return text if len(text) <= LONGEST_CALL else ""


class _Discreet(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        told = isinstance(node.value, str | bytes) and not (isinstance(node.value, str) and node.value.isidentifier())
        return ast.Constant(...) if told else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant(...)


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def is_users(file: str) -> bool:
    """Whether a file is the user's own."""
    return not (file.startswith("<") or is_library(file))
