"""Arguments of calls, set to a value where the call stands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst

from diagnose.patches.code import Code, Edit
from diagnose.patches.errors import CannotEdit

POSITIONS = {
    "DataLoader": (
        *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory"),
        *("drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
    ),
    "DistributedDataParallel": (
        *("module", "device_ids", "output_device", "dim", "broadcast_buffers", "init_sync", "process_group"),
        *("bucket_cap_mb", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph"),
    ),
    "fully_shard": ("module",),
    "use_deterministic_algorithms": ("mode",),
    "zero_grad": ("set_to_none",),
    "set_detect_anomaly": ("mode",),
    "set_num_threads": ("threads",),
    "set_float32_matmul_precision": ("precision",),
}
"""Arguments that may be given by position, in order (PyTorch 2)."""

NOT_BY_NAME = {"set_num_threads"}  # Calls that take their argument by position only.

Constant = (cst.Integer, cst.Float, cst.SimpleString)


def expression(value: object) -> cst.BaseExpression:
    """A value of a fix as it is written; an expression as it is."""
    if isinstance(value, cst.BaseExpression):
        return value
    return cst.parse_expression(json.dumps(value) if isinstance(value, str) else repr(value))


def constant(node: cst.BaseExpression) -> bool:
    """Whether a value stands there itself, rather than a name for it."""
    if isinstance(node, cst.UnaryOperation):
        return constant(node.expression)
    return isinstance(node, Constant) or (isinstance(node, cst.Name) and node.value in ("True", "False", "None"))


def given(call: cst.Call, function: str, name: str) -> tuple[int, cst.Arg] | None:
    """The argument of that name in a call of a function, and its number. Raises CannotEdit if that cannot be told."""
    starred = [arg for arg in call.args if arg.star]
    by_name = [(at, one) for at, one in enumerate(call.args) if one.keyword is not None and one.keyword.value == name]
    if by_name:
        return by_name[0]
    if starred:
        raise CannotEdit(f"its arguments come from `{cst.Module([]).code_for_node(starred[0]).strip().rstrip(',')}`")
    positions: Sequence[str] = POSITIONS.get(function, ())
    at = positions.index(name) if name in positions else len(call.args)
    there = at < len(call.args) and call.args[at].keyword is None
    return (at, call.args[at]) if there else None


def set_argument(code: Code, call: cst.Call, function: str, name: str, value: object) -> Edit:
    """Have a call give an argument that value, or an expression.

    Raises CannotEdit if something else than a value decides on it.
    """
    there, wanted = given(call, function, name), expression(value)
    if there is not None and not constant(there[1].value):
        raise CannotEdit(f"{name} comes from `{code.text(there[1].value)}` at {code.place(call)}")
    if there is not None and there[1].value.deep_equals(wanted):
        raise CannotEdit(f"{name} is {code.text(wanted)} at {code.place(call)} already")
    key = (call, name)
    text = f"{code.place(call)}: {function}({name}={code.text(wanted)})"
    if there is not None:
        return Edit(code, there[1], text, key, lambda node: node.with_changes(value=wanted))
    keyword = None if function in NOT_BY_NAME else cst.Name(name)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(wanted, keyword, equal if keyword else cst.MaybeSentinel.DEFAULT)
    return Edit(code, call, text, key, lambda node: node.with_changes(**_with(node, new)))


def _with(call: cst.Call, new: cst.Arg) -> dict[str, Any]:
    if not call.args:
        return {"args": [new]}
    last = call.args[-1]
    comma = last.comma if isinstance(last.comma, cst.Comma) else None
    closing = last.whitespace_after_arg if comma is None else comma.whitespace_after
    before = call.whitespace_before_args
    if len(call.args) > 1 and isinstance(earlier := call.args[-2].comma, cst.Comma):
        before = earlier.whitespace_after
    between: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
    if isinstance(before, cst.ParenthesizedWhitespace):
        between = before.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
        if isinstance(closing, cst.ParenthesizedWhitespace):  # A comment stays with what it is beside.
            between = between.with_changes(first_line=closing.first_line, empty_lines=closing.empty_lines)
            closing = closing.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    if comma is None:
        last = last.with_changes(
            comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
        )
        new = new.with_changes(whitespace_after_arg=closing)
    else:
        last = last.with_changes(comma=comma.with_changes(whitespace_after=between))
        new = new.with_changes(comma=cst.Comma(whitespace_after=closing))
    return {"args": [*call.args[:-1], last, new]}


def in_all(calls: Iterable[tuple[Code, cst.Call]], function: str, name: str, value: object) -> list[Edit]:
    """Have all these calls give an argument that value if they give it. Raises CannotEdit if none can."""
    edits, why = list[Edit](), list[str]()
    for code, call in calls:
        try:
            if given(call, function, name) is not None:
                edits.append(set_argument(code, call, function, name, value))
        except CannotEdit as error:
            why.append(str(error))
    if not edits:
        raise CannotEdit(why[0] if why else f"no call of {function}() in your files sets {name}")
    return edits
