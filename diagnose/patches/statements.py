"""Calls that are statements of their own: left out, or made seldom."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from diagnose.patches.code import Code, Edit, removed
from diagnose.patches.errors import CannotEdit
from diagnose.patches.project import Found


def left_out(calls: Sequence[Found], name: str) -> list[Edit]:
    """Without these calls. Raises CannotEdit if one is no statement of its own."""
    edits = list[Edit]()
    for code, call in calls:
        line = _statement(code, call)
        edits.append(Edit(code, line, f"{code.place(call)}: without {name}()", (line,), removed))
    return edits


def made_seldom(calls: Sequence[Found], name: str, every: int) -> list[Edit]:
    """With these calls made in one step of so many. Raises CannotEdit if their loop does not count its steps."""
    edits = list[Edit]()
    for code, call in calls:
        line, condition = _statement(code, call), f"{_counter(code, call)} % {every} == 0"
        if any(isinstance(one, cst.If) and code.text(one.test) == condition for one in code.around(call)):
            raise CannotEdit(f"the call at {code.place(call)} already runs only if {condition}")

        def seldom(node: cst.SimpleStatementLine, condition: str = condition) -> cst.If:
            block = cst.IndentedBlock([node.with_changes(leading_lines=[])])
            return cst.If(cst.parse_expression(condition), block, leading_lines=node.leading_lines)

        edits.append(Edit(code, line, f"{code.place(call)}: {name}() if {condition}", (line,), seldom))
    return edits


def _statement(code: Code, call: cst.Call) -> cst.SimpleStatementLine:
    line = code.statement(call)
    if not (isinstance(line.body[0], cst.Expr) and line.body[0].value is call):
        raise CannotEdit(f"the script uses the result of the call at {code.place(call)}")
    return line


def _counter(code: Code, call: cst.Call) -> str:
    """The variable that counts the rounds of the innermost loop. Raises CannotEdit without one."""
    loop = code.loop(call)
    if isinstance(loop, cst.For) and isinstance(loop.iter, cst.Call):
        function = code.text(loop.iter.func)
        target: cst.BaseExpression = loop.target
        if function == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if function in ("enumerate", "range") and isinstance(target, cst.Name):
            return target.value
    raise CannotEdit(f"the loop around {code.place(call)} has no step counter")
