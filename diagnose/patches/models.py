"""The model: compiled, in another memory format, under autocast, once it is complete and its optimizer is made."""

from typing import NamedTuple

import libcst as cst

from diagnose.patches.code import Code, Edit, inside
from diagnose.patches.files import CannotEdit
from diagnose.patches.project import Project

OPTIMIZERS = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD", "SparseAdam"),
)
"""Of torch.optim (PyTorch 2)."""


class Model(NamedTuple):
    """What an optimizer updates."""

    code: Code
    name: str  # As it stands in the optimizer's call: `model` or `self.net`.
    optimizer: cst.Call


def under_autocast(project: Project) -> list[Edit]:
    """Have forward pass and loss under autocast to bfloat16, where both stand just before `backward()`."""
    model, devices = _model(project), {name for optimizer in project.rank.optimizers for name in optimizer.devices}
    if len(devices) != 1:
        raise CannotEdit("the recording does not show the model's device")
    found = [
        (code, one)
        for code in project.everywhere("backward")
        for one in code.every(cst.Call)
        if isinstance(one.func, cst.Attribute) and one.func.attr.value == "backward"
    ]
    if len(found) != 1:
        raise CannotEdit(
            f"{'several calls' if found else 'no call'} of backward() {'are' if found else 'is'} in your files"
        )
    code, backward = found[0]
    lines = _forward_and_loss(code, code.statement(backward), model.name)
    torch = _torch(code)
    text = f'{torch}.autocast("{devices.pop()}", dtype={torch}.bfloat16)'
    head = (cst.WithItem(cst.parse_expression(text)),)
    place = f"{code.place(lines[0])}: with {text}"
    return [Edit(code, line, place, (line, "with"), inside(head, line is lines[0])) for line in lines]


def _forward_and_loss(code: Code, backward: cst.SimpleStatementLine, model: str) -> list[cst.SimpleStatementLine]:
    """The assignments from the one that calls the model up to `backward()`. Raises CannotEdit if it is another form."""
    block = list(code.block(backward))
    found = list[cst.SimpleStatementLine]()
    for one in reversed(block[: block.index(backward)]):
        if not isinstance(one, cst.SimpleStatementLine) or not _computes(one):
            if found:
                break
            continue
        found.insert(0, one)
        if any(code.text(call.func) == model and one in code.around(call) for call in code.every(cst.Call)):
            return found
    raise CannotEdit(f"no assignments from {model}(...) to the loss come directly before {code.place(backward)}")


def _computes(line: cst.SimpleStatementLine) -> bool:
    return len(line.body) == 1 and isinstance(line.body[0], cst.Assign | cst.AnnAssign | cst.AugAssign)


def _model(project: Project) -> Model:
    """The model whose optimizer has most to update. Raises CannotEdit if it has no name there."""
    known = [optimizer for optimizer in project.rank.optimizers if optimizer.made is not None]
    most = max(known, key=lambda one: one.elements or 0, default=None)
    if most is not None:
        ((code, call),) = project.made(most.name, [most.made])
    else:
        found = project.calls(
            "optim",
            lambda code, call: (
                (name := code.imported(call.func)).startswith("torch.optim.") and name.rpartition(".")[2] in OPTIMIZERS
            ),
        )
        if len(found) != 1:
            raise CannotEdit("the recording does not show where the optimizer is created")
        ((code, call),) = found
    inner = [one for one in code.every(cst.Call) if call.args and _inside(code, one, call.args[0])]
    owners = {
        code.text(one.func.value)
        for one in inner
        if isinstance(one.func, cst.Attribute) and one.func.attr.value in ("parameters", "named_parameters")
    }
    name = owners.pop() if len(owners) == 1 else ""
    if not all(part.isidentifier() for part in name.split(".")) or name == "self":
        raise CannotEdit(f"the optimizer at {code.place(call)} does not name its model, as in model.parameters()")
    return Model(code, name, call)


def _inside(code: Code, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    return any(one is outer for one in code.around(node))


def after_optimizer(project: Project, call: str) -> Edit:
    """A call of a method of the model's after the statement that makes its optimizer.

    `{torch}` in it stands for the file's name for torch.
    """
    model = _model(project)
    call = call.format(torch=_torch(model.code)) if "{torch}" in call else call
    line, text = model.code.statement(model.optimizer), f"{model.name}.{call}"
    place = f"{model.code.source.name}:{model.code.lines(line)[1] + 1}: {text}"
    if isinstance(line.body[0], cst.Return):
        return Edit(model.code, line, place, (line, call.partition("(")[0]), before=(text,))
    return Edit(model.code, line, place, (line, call.partition("(")[0]), after=(text,))


def _torch(code: Code) -> str:
    """The name by which a file knows torch. Raises CannotEdit if it has none."""
    for one in code.every(cst.ImportAlias):
        if code.text(one.name) == "torch" or (one.asname is None and code.text(one.name).startswith("torch.")):
            around = next(code.around(one))
            if isinstance(around, cst.Import):
                return "torch" if one.asname is None else code.text(one.asname.name)
    raise CannotEdit(f"{code.source.name} does not import torch itself")
