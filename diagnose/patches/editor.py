"""The user's files as kinds of settings edit them: the same changes as `diagnose try` makes in the running script."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from diagnose.fixes.setting import DS_CONFIG, Argument, Loop, NotPossible, Run, Setting
from diagnose.fixes.setting import Code as Expression
from diagnose.patches import changes
from diagnose.patches.changes import constant, given, in_all, set_argument
from diagnose.patches.code import Code, Edit, inside
from diagnose.patches.files import CannotEdit
from diagnose.patches.project import Found, Project, is_call, is_method
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Made, training_loaders

WITH_FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
WITH_FOREACH = (*WITH_FUSED, "ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
OPTIMIZERS = (*WITH_FOREACH, "Adafactor", "LBFGS", "Muon", "SparseAdam")
"""Of torch.optim, those that take fused=True, those that take foreach=True, and all (PyTorch 2)."""

EXCLUSIVE = ("differentiable", "foreach", "fused")  # Arguments of optimizers of which one may be true (PyTorch 2).
MAKES_MODELS = ("from_pretrained", "from_config")  # Methods of transformers' classes of models.

SINCE = {"batched_grad_copy": (2, 13)}  # Arguments -> the first PyTorch that knows them (its release notes).
SPELLINGS = {"lightning": ("lightning_fabric", "pytorch_lightning")}  # Packages -> others that have the same classes.

BY_HAND = "it needs an edit by hand"


def edits_of(setting: Setting, project: Project, site: Site | None) -> list[Edit]:
    """The edits that make a setting: of the framework's own argument if it has one, else of the script's calls.
    Raises CannotEdit if that cannot be done."""
    _refuse_older(setting, project)
    editor = Editor(project)
    run = Run(project.rank, training_loaders(project.rank), project.manifest.environment)
    theirs = setting.framework(project.loop, run) if project.loop is not Loop.OWN else None
    if isinstance(theirs, Argument) and (theirs.owner == DS_CONFIG or isinstance(theirs.value, Expression)):
        editor.refuse(BY_HAND)
    if isinstance(theirs, Argument) and "." in theirs.owner:
        return editor.of_framework(theirs)
    try:
        return setting.edit(editor, site)
    except NotPossible as error:
        raise CannotEdit(str(error)) from error


def _refuse_older(setting: Setting, project: Project) -> None:
    """Raises CannotEdit if the PyTorch that ran does not know the argument, or is not known."""
    needs, ran = SINCE.get(setting.argument), project.manifest.versions.get("torch", "")
    found = re.match(r"(\d+)\.(\d+)", ran)
    if needs is not None and (found is None or (int(found[1]), int(found[2])) < needs):
        has = f"the recording has PyTorch {ran}" if found else "the recording has no PyTorch version"
        raise CannotEdit(f"{setting.argument} needs PyTorch {needs[0]}.{needs[1]}, but {has}")


class Editor:
    """What `diagnose.fixes.interfaces.Editor` says. All raise CannotEdit if it cannot be done."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.rank, self.ddp_made, self.loaders_made = project.rank, project.ddp_made, project.loaders_made

    def refuse(self, why: str) -> None:
        """Raises CannotEdit."""
        raise CannotEdit(why)

    def where_made(self, name: str, places: Sequence[Made | None], argument: str, value: object) -> list[Edit]:
        """Set an argument in the calls that create objects of torch's class `name` at these places (None: unknown)."""
        found = self._project.made(name, places)
        return [set_argument(code, call, name, argument, value) for code, call in found]

    def of_workers(self, argument: str, value: object) -> list[Edit]:
        """Set an argument of the training's DataLoaders that they take with workers only."""
        found = self._project.made("DataLoader", self.loaders_made)
        values = [_of_workers(code, call, value) for code, call in found]
        return [set_argument(*one, "DataLoader", argument, own) for one, own in zip(found, values, strict=True)]

    def of_optimizers(self, argument: str, value: object) -> list[Edit]:
        """Set `fused` or `foreach` of the recorded optimizers without it; the other form is switched off if given."""
        edits, others = list[Edit](), {*EXCLUSIVE} - {argument}
        for name, code, call in self._optimizers(argument, value):
            for other in sorted(others):
                there = given(call, name, other)
                if there is None or code.text(there[1].value) in ("False", "None"):
                    continue
                if other == "differentiable" or not constant(there[1].value):
                    which = f"which excludes {argument}"
                    raise CannotEdit(f"{other} is {code.text(there[1].value)} at {code.place(call)}, {which}")
                edits.append(set_argument(code, call, name, other, False))
            edits.append(set_argument(code, call, name, argument, value))
        return edits

    def _optimizers(self, argument: str, value: object) -> list[tuple[str, Code, cst.Call]]:
        """The calls that make optimizers which take the argument and have not got it: class, code and call."""
        takers = WITH_FUSED if argument == "fused" else WITH_FOREACH
        without = [one for one in self.rank.optimizers if one.name in takers and getattr(one, argument) is not value]
        if not without:
            raise CannotEdit("the recording does not show where each optimizer is created")
        made = dict.fromkeys((one.name, one.made) for one in without)
        return [(name, code, call) for name, place in made for code, call in self._project.made(name, [place])]

    def every_call(self, function: str, argument: str, value: object) -> list[Edit]:
        """Set an argument in all calls of a function or class: by its name in torch, or its whole name with modules."""
        name, found = self._calls(function)
        if not found:
            raise CannotEdit(f"no call of {function}() is in your files")
        return [set_argument(code, call, name, argument, value) for code, call in found]

    def of_framework(self, told: Argument) -> list[Edit]:
        """Set an argument in all calls of a framework's class, or of one of that package whose name ends like it."""
        package, name = told.owner.partition(".")[0], told.owner.rpartition(".")[2]
        packages = {package, *SPELLINGS.get(package, ())}

        def fits(code: Code, call: cst.Call) -> bool:
            whole = code.imported(call.func)
            return whole.partition(".")[0] in packages and whole.rpartition(".")[2].endswith(name)

        found = self._project.calls(name, fits)
        if not found:
            raise CannotEdit(f"no call of {told.owner}() is in your files")
        return [set_argument(code, call, name, told.name, told.value) for code, call in found]

    def giving_calls(self, function: str, argument: str, value: object) -> list[Edit]:
        """Set an argument in those calls of a function that give it already, by its name as in `every_call`."""
        name, found = self._calls(function)
        return in_all(found, name, argument, value)

    def _calls(self, whole: str) -> tuple[str, list[Found]]:
        """The name after the last dot, and all calls of it; a name with dots must have been imported as `whole`."""
        name = whole.rpartition(".")[2]
        if name == whole:
            return name, self._project.calls(name, lambda code, call: is_call(code, call, name))
        return name, self._project.calls(name, lambda code, call: code.imported(call.func) == whole)

    def giving_methods(self, method: str, argument: str, value: object) -> list[Edit]:
        """Set an argument in those calls of a method, of whatever object, that give it already."""
        found = self._project.calls(method, lambda code, call: is_method(call, method))
        return in_all(found, method, argument, value)

    def loaded_by_transformers(self, argument: str, value: object) -> list[Edit]:
        """Set an argument in the one call by which transformers loads or makes a model."""
        found = [
            (code, call, whole.removeprefix("transformers."))
            for code, call in self._project.calls("transformers", lambda code, call: is_method(call, *MAKES_MODELS))
            if (whole := code.imported(call.func)).startswith("transformers.") and ("Model" in whole or "For" in whole)
        ]
        if len(found) != 1:
            what = "several calls load" if found else "no call of from_pretrained() or from_config() loads"
            raise CannotEdit(f"{what} a model of transformers in your files")
        ((code, call, name),) = found
        return [set_argument(code, call, name, argument, value)]

    def call_once(self, function: str, argument: str, value: object) -> list[Edit]:
        """Set a value by a function of torch's: in its calls if they give it, else by a new call after the imports."""
        return changes.set_by_call(self._project, function, argument, value)

    def assigned(self, attribute: str, value: object) -> list[Edit]:
        """Set an attribute of torch's: where it is assigned, else after the imports."""
        return changes.set_attribute(self._project, attribute, value)

    def variable(self, name: str, value: str) -> list[Edit]:
        """Set an environment variable in the script, or unset it if the value is empty."""
        return changes.set_variable(self._project, name, value)

    def without_calls(self, function: str, site: Site | None) -> list[Edit]:
        """Remove the calls of a function in the function of the finding (`site`)."""
        return changes.left_out(self._where_found(function, site), function)

    def seldom_calls(self, function: str, every: int, site: Site | None) -> list[Edit]:
        """Make the calls of a function in the function of the finding (`site`) once in `every` steps."""
        return changes.made_seldom(self._where_found(function, site), function, every)

    def _where_found(self, function: str, site: Site | None) -> list[Found]:
        """The calls of a function (its whole name) in the function of the finding, as `Project.inside` says."""
        word = function.rpartition(".")[2]
        found = self._project.calls(word, lambda code, call: code.imported(call.func) == function)
        return self._project.inside(found, site, function)

    def after_optimizer(self, call: str) -> list[Edit]:
        """Add a call of a method of the model after its optimizer is made, as `to(...)`."""
        return [_after_optimizer(self._project, call)]

    def under_autocast(self) -> list[Edit]:
        """Put forward pass and loss under autocast to bfloat16."""
        return _under_autocast(self._project)


def _of_workers(code: Code, call: cst.Call, value: object) -> object:
    """What to give for an argument that DataLoaders only take with workers: `value`, or, if their number is a variable,
    an expression that asks whether it is 0. Raises CannotEdit if it is 0, or another expression."""
    there = given(call, "DataLoader", "num_workers")
    workers = "0" if there is None else code.text(there[1].value)
    if workers == "0":
        raise CannotEdit(f"the DataLoader at {code.place(call)} has no workers")
    if workers.isdecimal():
        return value
    if not all(part.isidentifier() for part in workers.split(".")):
        raise CannotEdit(f"`{workers}` at {code.place(call)} decides whether the DataLoader has workers")
    if value is True:
        return cst.parse_expression(f"{workers} > 0")
    return cst.parse_expression(f"{value!r} if {workers} > 0 else None")


class _Model(NamedTuple):
    """The model that an optimizer updates."""

    code: Code
    name: str  # As it stands in the optimizer's call: `model` or `self.net`.
    optimizer: cst.Call


def _under_autocast(project: Project) -> list[Edit]:
    """Have forward pass and loss under autocast to bfloat16, where both stand just before `backward()`."""
    model, devices = _model(project), {name for optimizer in project.rank.optimizers for name in optimizer.devices}
    if len(devices) != 1:
        raise CannotEdit("the recording does not show the model's device")
    found = project.calls("backward", lambda code, call: is_method(call, "backward"))
    if len(found) != 1:
        raise CannotEdit(f"{'several calls of backward() are' if found else 'no call of backward() is'} in your files")
    ((code, backward),) = found
    lines = _forward_and_loss(code, code.statement(backward), model.name)
    torch = _torch(code)
    text = f'{torch}.autocast("{devices.pop()}", dtype={torch}.bfloat16)'
    head = (cst.WithItem(cst.parse_expression(text)),)
    place = f"{code.place(lines[0])}: with {text}"
    return [Edit(code, line, place, (line, "with"), inside(head, line is lines[0])) for line in lines]


def _forward_and_loss(code: Code, backward: cst.SimpleStatementLine, model: str) -> list[cst.SimpleStatementLine]:
    """The neighbouring assignments from the one that calls the model to the last before `backward()`, whose block they
    share. Raises CannotEdit if the code has another form."""
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


def _model(project: Project) -> _Model:
    """The model whose optimizer has most to update. Raises CannotEdit if it has no name there."""
    known = [optimizer for optimizer in project.rank.optimizers if optimizer.made is not None]
    most = max(known, key=lambda one: one.elements or 0, default=None)
    if most is not None:
        ((code, call),) = project.made(most.name, [most.made])
    else:

        def makes_one(code: Code, call: cst.Call) -> bool:
            package, _, name = code.imported(call.func).rpartition(".")
            return f"{package}.".startswith("torch.optim.") and name in OPTIMIZERS

        found = project.calls("optim", makes_one)
        if len(found) != 1:
            raise CannotEdit("the recording does not show where the optimizer is created")
        ((code, call),) = found
    owners = {
        code.text(one.func.value)
        for one in code.every(cst.Call)
        if call.args and any(outer is call.args[0] for outer in code.around(one))
        if isinstance(one.func, cst.Attribute) and one.func.attr.value in ("parameters", "named_parameters")
    }
    name = owners.pop() if len(owners) == 1 else ""
    if not all(part.isidentifier() for part in name.split(".")) or name == "self":
        raise CannotEdit(f"the optimizer at {code.place(call)} does not name its model, as in model.parameters()")
    return _Model(code, name, call)


def _after_optimizer(project: Project, call: str) -> Edit:
    """A call of a method of the model's after its optimizer is made; `{torch}` in it is the file's name for torch."""
    model = _model(project)
    call = call.format(torch=_torch(model.code)) if "{torch}" in call else call
    line, text = model.code.statement(model.optimizer), f"{model.name}.{call}"
    place, key = f"{model.code.source.name}:{model.code.lines(line)[1] + 1}: {text}", (line, call.partition("(")[0])
    if isinstance(line.body[0], cst.Return):
        return Edit(model.code, line, place, key, before=(text,))
    return Edit(model.code, line, place, key, after=(text,))


def _torch(code: Code) -> str:
    """The name by which a file knows torch. Raises CannotEdit if it has none."""
    for one in code.every(cst.ImportAlias):
        if code.text(one.name) == "torch" or (one.asname is None and code.text(one.name).startswith("torch.")):
            around = next(code.around(one))
            if isinstance(around, cst.Import):
                return "torch" if one.asname is None else code.text(one.asname.name)
    raise CannotEdit(f"{code.source.name} does not import torch itself")
