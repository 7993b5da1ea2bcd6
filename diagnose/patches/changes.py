"""What a patch changes: arguments of calls, calls that are left out or made seldom, settings of the process."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst

from diagnose.patches.code import Code, Edit, removed
from diagnose.patches.files import CannotEdit
from diagnose.patches.project import Found, Project, is_call

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


def expression(value: object) -> cst.BaseExpression:
    """A value of a fix as a syntax tree; one that is a tree already stays as it is."""
    if isinstance(value, cst.BaseExpression):
        return value
    return cst.parse_expression(json.dumps(value) if isinstance(value, str) else repr(value))


def constant(node: cst.BaseExpression) -> bool:
    """Whether the expression is a literal (a number, a text, True, False or None), rather than a name or a call."""
    if isinstance(node, cst.UnaryOperation):
        return constant(node.expression)
    named = isinstance(node, cst.Name) and node.value in ("True", "False", "None")
    return named or isinstance(node, cst.Integer | cst.Float | cst.SimpleString)


def given(call: cst.Call, function: str, name: str) -> tuple[int, cst.Arg] | None:
    """The index and the argument `name` of a call; None: it is not given. Raises CannotEdit if * or ** may give it."""
    by_name = [(at, one) for at, one in enumerate(call.args) if one.keyword is not None and one.keyword.value == name]
    if by_name:
        return by_name[0]
    if starred := [arg for arg in call.args if arg.star]:
        raise CannotEdit(f"its arguments come from `{cst.Module([]).code_for_node(starred[0]).strip().rstrip(',')}`")
    positions: Sequence[str] = POSITIONS.get(function, ())
    at = positions.index(name) if name in positions else len(call.args)
    there = at < len(call.args) and call.args[at].keyword is None
    return (at, call.args[at]) if there else None


def set_argument(code: Code, call: cst.Call, function: str, name: str, value: object) -> Edit:
    """Have a call give an argument that value. Raises CannotEdit if it does so already, or gives what is no literal."""
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
    return Edit(code, call, text, key, lambda node: node.with_changes(**_with_argument(node, new)))


def _with_argument(call: cst.Call, new: cst.Arg) -> dict[str, Any]:
    """Changed fields of the call: its arguments with a new last one, laid out as the others are."""
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
    """Change an argument in those of the calls that give it, where that can be done. Raises CannotEdit if none can."""
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


def left_out(calls: Sequence[Found], name: str) -> list[Edit]:
    """Edits that remove these calls. Raises CannotEdit if one is no statement of its own."""
    found = [(code, call, _statement(code, call)) for code, call in calls]
    return [Edit(code, line, f"{code.place(call)}: without {name}()", (line,), removed) for code, call, line in found]


def made_seldom(calls: Sequence[Found], name: str, every: int) -> list[Edit]:
    """Edits that make these calls once in `every` steps. Raises CannotEdit if their loop does not count its steps."""
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
    """The statement that is nothing but this call. Raises CannotEdit if the script uses its result."""
    line = code.statement(call)
    if not (isinstance(line.body[0], cst.Expr) and line.body[0].value is call):
        raise CannotEdit(f"the script uses the result of the call at {code.place(call)}")
    return line


def _counter(code: Code, call: cst.Call) -> str:
    """The name that counts the rounds of the innermost loop around the call. Raises CannotEdit without one."""
    loop = code.loop(call)
    if isinstance(loop, cst.For) and isinstance(loop.iter, cst.Call):
        function = code.text(loop.iter.func)
        target: cst.BaseExpression = loop.target
        if function == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if function in ("enumerate", "range") and isinstance(target, cst.Name):
            return target.value
    raise CannotEdit(f"the loop around {code.place(call)} has no step counter")


AT_THE_START = ("MALLOC_", "LD_", "GLIBC_")  # How variables begin that the process reads before any Python runs.
IMPORT = (cst.Import, cst.ImportFrom)


def set_by_call(project: Project, function: str, name: str, value: object) -> list[Edit]:
    """Have the calls of a function of torch's own set a value; without any, call it after the imports."""
    if found := project.calls(function, lambda code, call: is_call(code, call, function)):
        return in_all(found, function, name, value)
    return [_after_imports(project.script, f"torch.{function}({_text(value)})")]


def set_attribute(project: Project, name: str, value: object) -> list[Edit]:
    """Have all assignments to an attribute of torch's set a value; without any, assign it after the imports."""
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
    """The edit that makes an assignment assign `value`. Raises CannotEdit if its value is no literal, or the same."""
    if not constant(one.value):
        raise CannotEdit(f"the value comes from `{code.text(one.value)}` at {code.place(one)}")
    wanted = expression(value)
    if one.value.deep_equals(wanted):
        raise CannotEdit(f"{code.place(one)} already has this value")
    return Edit(code, one, f"{code.place(one)}: {shown}", (one,), lambda node: node.with_changes(value=wanted))


def _variable(code: Code, one: cst.Assign, name: str, value: str) -> Edit:
    """The edit of an assignment to an environment variable: to another value, or removed if that is empty."""
    if value:
        return _assigned(code, one, f'os.environ["{name}"] = {_text(value)}', value)
    line = code.statement(one)
    return Edit(code, line, f"{code.place(one)}: without {name}", (line,), removed)


def _is_variable(code: Code, target: cst.BaseExpression, name: str) -> bool:
    """Whether what is assigned to is `os.environ[name]`."""
    if not isinstance(target, cst.Subscript) or code.imported(target.value) != "os.environ" or len(target.slice) != 1:
        return False
    index = target.slice[0].slice
    value = index.value if isinstance(index, cst.Index) else None
    return isinstance(value, cst.SimpleString) and value.evaluated_value == name


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
    """Whether it imports anything but the standard library, outside of functions: as soon as the file is run."""
    if isinstance(node, cst.Import):
        names = [code.text(one.name) for one in node.names]
    elif isinstance(node, cst.ImportFrom):
        names = ["." if node.relative or node.module is None else code.text(node.module)]
    else:
        return False
    own = all(name.partition(".")[0] in sys.stdlib_module_names for name in names)
    return not own and not any(isinstance(one, cst.FunctionDef) for one in code.around(node))


def _binds(code: Code, statements: Iterable[cst.CSTNode], name: str) -> bool:
    """Whether any of the statements imports a module under exactly this name."""
    return any(
        code.text(alias).rstrip(", ") == name
        for statement in statements
        if isinstance(statement, cst.SimpleStatementLine)
        for small in statement.body
        if isinstance(small, cst.Import)
        for alias in small.names
    )
