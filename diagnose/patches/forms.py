"""What each form of a fix changes in the user's files: the same as `diagnose try` changes in the running script."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from diagnose.capture.agent.injection import Trial
from diagnose.patches import models, settings, statements
from diagnose.patches.arguments import constant, given, in_all, set_argument
from diagnose.patches.code import Code, Edit
from diagnose.patches.errors import CannotEdit
from diagnose.patches.project import Found, Project, is_call, is_method
from diagnose.trace.frames import Site

Form = Callable[[Trial, Project, Site | None], list[Edit]]
"""The fix, the files, where the finding is -> edits. Raises CannotEdit."""

WITH_FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers that take fused=True (PyTorch 2)."""

OF_WORKERS = ("prefetch_factor", "persistent_workers")
"""A DataLoader without workers refuses them."""


SINCE = {"batched_grad_copy": (2, 13)}
"""Arguments -> the first PyTorch that knows them, where that is a late one (its release notes)."""


def edits_of(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """What a fix changes. Raises CannotEdit if it cannot be made in the files."""
    form = FORMS.get((trial.name, trial.argument)) or FORMS.get((trial.name, "*"))
    if trial.kind == "env":
        form = _environment
    if form is None:
        raise CannotEdit("it needs an edit by hand")
    _refuse_older(trial, project)
    return form(trial, project, site)


def _refuse_older(trial: Trial, project: Project) -> None:
    """Raises CannotEdit if the PyTorch that ran does not know the argument, or is not known."""
    needs, ran = SINCE.get(trial.argument), project.manifest.versions.get("torch", "")
    found = re.match(r"(\d+)\.(\d+)", ran)
    if needs is not None and (found is None or (int(found[1]), int(found[2])) < needs):
        has = f"PyTorch {ran} was recorded" if found else "the recording does not say which ran"
        raise CannotEdit(f"{trial.argument} takes PyTorch {needs[0]}.{needs[1]}, and {has}")


def _environment(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return [edit for name, value in trial.variables for edit in settings.set_variable(project, name, str(value))]


def _loader(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    found = project.made("DataLoader", project.loaders_made)
    values = [_of_workers(code, call, trial) if trial.argument in OF_WORKERS else trial.value for code, call in found]
    return [
        set_argument(code, call, "DataLoader", trial.argument, value)
        for (code, call), value in zip(found, values, strict=True)
    ]


def _of_workers(code: Code, call: cst.Call, trial: Trial) -> object:
    """The value of an argument that needs workers: where their number comes from elsewhere, it may be none.

    Raises CannotEdit if it is, or cannot be asked for once more.
    """
    there = given(call, "DataLoader", "num_workers")
    workers = "0" if there is None else code.text(there[1].value)
    if workers == "0":
        raise CannotEdit(f"the DataLoader at {code.place(call)} has no workers")
    if workers.isdecimal():
        return trial.value
    if not all(part.isidentifier() for part in workers.split(".")):
        raise CannotEdit(f"whether there are workers is decided by `{workers}` at {code.place(call)}")
    if trial.value is True:
        return cst.parse_expression(f"{workers} > 0")
    return cst.parse_expression(f"{trial.value} if {workers} > 0 else None")


def _ddp(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    name = "DistributedDataParallel"
    found = project.made(name, project.ddp_made)
    return [set_argument(code, call, name, trial.argument, trial.value) for code, call in found]


def _fused(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """Arguments that exclude fused=True are switched off."""
    edits = list[Edit]()
    for name, code, call in _optimizers(project):
        for other in ("foreach", "differentiable"):
            there = given(call, name, other)
            if there is None or code.text(there[1].value) in ("False", "None"):
                continue
            if other == "differentiable" or not constant(there[1].value):
                raise CannotEdit(f"{other} is {code.text(there[1].value)} at {code.place(call)}, which excludes fused")
            edits.append(set_argument(code, call, name, other, False))
        edits.append(set_argument(code, call, name, trial.argument, trial.value))
    return edits


def _optimizers(project: Project) -> list[tuple[str, Code, cst.Call]]:
    """The calls that make optimizers which could be fused and are not, by their names. Raises CannotEdit."""
    known = [one for one in project.rank.optimizers if one.name in WITH_FUSED and one.fused is not True]
    if not known:
        raise CannotEdit("the recording does not say which optimizer is made where")
    made = dict.fromkeys((one.name, one.made) for one in known)
    return [(name, code, call) for name, place in made for code, call in project.made(name, [place])]


def _calls_of(function: str) -> Form:
    """Every call of a function of torch's that gives the argument."""

    def form(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
        found = project.calls(function, lambda code, call: is_call(code, call, function))
        return in_all(found, function, trial.argument, trial.value)

    return form


def _methods(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """Every call of a method that gives the argument."""
    found = project.calls(trial.name, lambda code, call: is_method(call, trial.name))
    return in_all(found, trial.name, trial.argument, trial.value)


def _compile_call(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    found = project.calls("compile", lambda code, call: code.imported(call.func) == "torch.compile")
    if not found:
        raise CannotEdit("no call of torch.compile() stands in your files")
    return [set_argument(code, call, "torch.compile", trial.argument, trial.value) for code, call in found]


def _threads(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return settings.set_by_call(project, "set_num_threads", "threads", trial.value)


def _attribute(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return settings.set_attribute(project, f"{trial.name}.{trial.argument}", trial.value)


def _called(trial: Trial, project: Project, site: Site | None) -> list[Found]:
    """The calls of the function that a fix names, where the finding is. Raises CannotEdit."""
    word = trial.name.rpartition(".")[2]
    found = project.calls(word, lambda code, call: code.imported(call.func) == trial.name)
    return project.inside(found, site, trial.name)


def _left_out(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return statements.left_out(_called(trial, project, site), trial.name)


def _seldom(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return statements.made_seldom(_called(trial, project, site), trial.name, int(trial.value))


def _compiled(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return models.compiled(project, trial.argument, trial.value)


def _channels_last(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return models.to_channels_last(project)


def _autocast(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return models.under_autocast(project)


FORMS: dict[tuple[str, str], Form] = {
    ("DataLoader", "*"): _loader,
    ("DistributedDataParallel", "*"): _ddp,
    ("torch.optim", "fused"): _fused,
    ("zero_grad", "set_to_none"): _methods,
    ("set_detect_anomaly", "mode"): _calls_of("set_detect_anomaly"),
    ("torch.compile", "dynamic"): _compile_call,
    ("torch.set_num_threads", "threads"): _threads,
    ("torch.backends.cudnn", "benchmark"): _attribute,
    ("gc.collect", "every"): _seldom,
    ("torch.cuda.synchronize", ""): _left_out,
    ("torch.cuda.empty_cache", ""): _left_out,
    ("torch.compile", ""): _compiled,
    ("torch.compile", "mode"): _compiled,
    ("channels_last", ""): _channels_last,
    ("torch.autocast", ""): _autocast,
}
"""By the name of what is changed and the argument ("*": any), as `injection.parsed` gives them."""
