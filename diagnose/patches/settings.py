"""Settings of the process: changed where the script makes them, else made where it begins."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import libcst as cst

from diagnose.patches.arguments import constant, expression, in_all
from diagnose.patches.code import Code, Edit, removed
from diagnose.patches.errors import CannotEdit
from diagnose.patches.project import Project, is_call

AT_THE_START = ("MALLOC_", "LD_", "GLIBC_")  # How variables begin that the process reads before any Python runs.

IMPORT = (cst.Import, cst.ImportFrom)


def set_by_call(project: Project, function: str, name: str, value: object) -> list[Edit]:
    """Have the calls of a function of torch's own set a value; without any, call it after the imports."""
    found = project.calls(function, lambda code, call: is_call(code, call, function))
    if found:
        return in_all(found, function, name, value)
    return [_after_imports(project.script, f"torch.{function}({_text(value)})")]


def set_attribute(project: Project, name: str, value: object) -> list[Edit]:
    """Have assignments to an attribute of torch's set a value; without any, assign it after the imports."""
    edits = list[Edit]()
    for code in project.everywhere(name.rpartition(".")[2]):
        for one in code.every(cst.Assign):
            if any(code.imported(target.target) == name for target in one.targets):
                edits.append(_assigned(code, one, f"{name} = {_text(value)}", value))
    return edits or [_after_imports(project.script, f"{name} = {_text(value)}")]


def set_variable(project: Project, name: str, value: str) -> list[Edit]:
    """Have the script set an environment variable before it imports what reads it; or not, if the value is empty."""
    if name.startswith(AT_THE_START):
        raise CannotEdit("the process reads it before Python starts: set it before the command")
    edits = list[Edit]()
    for code in project.everywhere(name):
        for one in code.every(cst.Assign):
            if any(_is_variable(code, target.target, name) for target in one.targets):
                edits.append(_variable(code, one, name, value))
    if edits:
        return edits
    if project.manifest.environment.get(name, value) != value:
        raise CannotEdit(f"{name} is set where the script is started: unset it there")
    return [_before_imports(project.script, name, value)] if value else []


def _text(value: object) -> str:
    return cst.Module([]).code_for_node(expression(value))


def _assigned(code: Code, one: cst.Assign, shown: str, value: object) -> Edit:
    """An assignment of another value. Raises CannotEdit if the value comes from elsewhere."""
    if not constant(one.value):
        raise CannotEdit(f"the value comes from `{code.text(one.value)}` at {code.place(one)}")
    wanted = expression(value)
    if one.value.deep_equals(wanted):
        raise CannotEdit(f"{code.place(one)} already has this value")
    return Edit(code, one, f"{code.place(one)}: {shown}", (one,), lambda node: node.with_changes(value=wanted))


def _variable(code: Code, one: cst.Assign, name: str, value: str) -> Edit:
    if value:
        return _assigned(code, one, f'os.environ["{name}"] = {_text(value)}', value)
    line = code.statement(one)
    return Edit(code, line, f"{code.place(one)}: without {name}", (line,), removed)


def _is_variable(code: Code, target: cst.BaseExpression, name: str) -> bool:
    if not isinstance(target, cst.Subscript) or code.imported(target.value) != "os.environ" or len(target.slice) != 1:
        return False
    index = target.slice[0].slice
    return (
        isinstance(index, cst.Index)
        and isinstance(index.value, cst.SimpleString)
        and (index.value.evaluated_value == name)
    )


def _after_imports(code: Code, text: str) -> Edit:
    """A line after those imports that stand on top of the script. Raises CannotEdit if it has none."""
    imports = list[cst.SimpleStatementLine]()
    for one in code.module.body:
        if isinstance(one, cst.FunctionDef | cst.ClassDef | cst.If):
            break
        if isinstance(one, cst.SimpleStatementLine) and any(isinstance(small, IMPORT) for small in one.body):
            imports.append(one)
    if not imports:
        raise CannotEdit(f"{code.source.name} has no imports to set it after")
    last = imports[-1]
    lines = (text,) if _binds(code, imports, "torch") else ("import torch", text)
    place = f"{code.source.name}:{code.lines(last)[1] + 1}: {text}"
    return Edit(code, last, place, ("after imports", text.partition("=")[0]), after=("", *lines))


def _before_imports(code: Code, name: str, value: str) -> Edit:
    """A line before whatever may import torch. Raises CannotEdit if the script imports nothing such."""
    first = next((node for node in code.nodes if _is_foreign_import(code, node)), None)
    if first is None:
        raise CannotEdit(f"{code.source.name} has no import to set it before")
    body = list(code.module.body)
    at = next(at for at, one in enumerate(body) if one in code.around(first))
    text = f'os.environ.setdefault("{name}", {_text(value)})'
    lines = (text,) if _binds(code, body[:at], "os") else ("import os", text)
    place = f"{code.source.name}:{code.lines(body[at])[0]}: {text}"
    return Edit(code, body[at], place, ("os.environ", name), before=lines)


def _is_foreign_import(code: Code, node: cst.CSTNode) -> bool:
    """Whether it imports anything but Python's own modules as soon as the file is run."""
    if isinstance(node, cst.Import):
        names = [code.text(one.name) for one in node.names]
    elif isinstance(node, cst.ImportFrom):
        names = ["." if node.relative or node.module is None else code.text(node.module)]
    else:
        return False
    own = all(name.partition(".")[0] in sys.stdlib_module_names for name in names)
    return not own and not any(isinstance(one, cst.FunctionDef) for one in code.around(node))


def _binds(code: Code, statements: Iterable[cst.CSTNode], name: str) -> bool:
    """Whether one of these statements imports a module under its own name."""
    return any(
        code.text(alias).rstrip(", ") == name
        for statement in statements
        if isinstance(statement, cst.SimpleStatementLine)
        for small in statement.body
        if isinstance(small, cst.Import)
        for alias in small.names
    )
