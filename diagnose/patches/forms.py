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
WITH_FOREACH = (*WITH_FUSED, "ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
"""Optimizers that take fused=True, and foreach=True (PyTorch 2)."""

EXCLUSIVE = ("differentiable", "foreach", "fused")
"""Arguments of optimizers of which one may be true (PyTorch 2)."""

OF_WORKERS = ("prefetch_factor", "persistent_workers")
"""A DataLoader without workers refuses them."""

OF_DDP = (
    *("batched_grad_copy", "broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "forward_sync_buffers"),
    *("gradient_as_bucket_view", "static_graph"),
)

MAKES_MODELS = ("from_pretrained", "from_config")
"""Methods of transformers' classes of models."""

SINCE = {"batched_grad_copy": (2, 13)}
"""Arguments -> the first PyTorch that knows them, where that is a late one (its release notes)."""


def edits_of(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """What a fix changes. Raises CannotEdit if it cannot be made in the files."""
    form = _environment if trial.kind == "env" else FORMS.get((trial.kind, trial.name, trial.argument))
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
    edits = [edit for name, value in trial.variables for edit in settings.set_variable(project, name, value)]
    if not edits:
        raise CannotEdit(f"nothing in your files sets {' or '.join(name for name, _ in trial.variables)}")
    return edits


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


def _optimizer(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """Arguments that exclude what is set are switched off."""
    edits, others = list[Edit](), {*EXCLUSIVE} - {trial.argument}
    for name, code, call in _optimizers(trial, project):
        for other in sorted(others):
            there = given(call, name, other)
            if there is None or code.text(there[1].value) in ("False", "None"):
                continue
            if other == "differentiable" or not constant(there[1].value):
                which = f"which excludes {trial.argument}"
                raise CannotEdit(f"{other} is {code.text(there[1].value)} at {code.place(call)}, {which}")
            edits.append(set_argument(code, call, name, other, False))
        edits.append(set_argument(code, call, name, trial.argument, trial.value))
    return edits


def _optimizers(trial: Trial, project: Project) -> list[tuple[str, Code, cst.Call]]:
    """The calls that make optimizers which take the argument and have not got it, by their names. Raises CannotEdit."""
    takers, wanted = (WITH_FUSED if trial.argument == "fused" else WITH_FOREACH), trial.argument
    known = [one for one in project.rank.optimizers if one.name in takers and getattr(one, wanted) is not trial.value]
    if not known:
        raise CannotEdit("the recording does not say which optimizer is made where")
    made = dict.fromkeys((one.name, one.made) for one in known)
    return [(name, code, call) for name, place in made for code, call in project.made(name, [place])]


def _called(trial: Trial, project: Project) -> tuple[str, list[Found]]:
    """The calls of torch's function of that name, which may be a whole one or its last part."""
    name, function = trial.name, trial.name.rpartition(".")[2]
    if name == function:
        return function, project.calls(function, lambda code, call: is_call(code, call, function))
    return function, project.calls(function, lambda code, call: code.imported(call.func) == name)


def _calls(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """Every call that gives the argument."""
    function, found = _called(trial, project)
    return in_all(found, function, trial.argument, trial.value)


def _methods(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """Every call of a method that gives the argument."""
    found = project.calls(trial.name, lambda code, call: is_method(call, trial.name))
    return in_all(found, trial.name, trial.argument, trial.value)


def _every_call(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    _, found = _called(trial, project)
    if not found:
        raise CannotEdit(f"no call of {trial.name}() stands in your files")
    return [set_argument(code, call, trial.name, trial.argument, trial.value) for code, call in found]


def _transformers(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    """The one call by which transformers loads or makes a model."""
    found = [
        (code, call, whole.removeprefix("transformers."))
        for code, call in project.calls("transformers", lambda code, call: is_method(call, *MAKES_MODELS))
        if (whole := code.imported(call.func)).startswith("transformers.") and ("Model" in whole or "For" in whole)
    ]
    if len(found) != 1:
        what = "several calls load" if found else "no call of from_pretrained() or from_config() loads"
        raise CannotEdit(f"{what} a model of transformers in your files")
    ((code, call, name),) = found
    return [set_argument(code, call, name, trial.argument, trial.value)]


def _setting(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return settings.set_by_call(project, trial.name.rpartition(".")[2], trial.argument, trial.value)


def _attribute(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return settings.set_attribute(project, f"{trial.name}.{trial.argument}", trial.value)


def _left_out(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return statements.left_out(_where_found(trial, project, site), trial.name)


def _seldom(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return statements.made_seldom(_where_found(trial, project, site), trial.name, int(trial.value))


def _where_found(trial: Trial, project: Project, site: Site | None) -> list[Found]:
    """The calls of the function that a fix names, where the finding is. Raises CannotEdit."""
    word = trial.name.rpartition(".")[2]
    found = project.calls(word, lambda code, call: code.imported(call.func) == trial.name)
    return project.inside(found, site, trial.name)


def _compiled(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return models.compiled(project, trial.argument, trial.value)


def _channels_last(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return models.to_channels_last(project)


def _autocast(trial: Trial, project: Project, site: Site | None) -> list[Edit]:
    return models.under_autocast(project)


FORMS: dict[tuple[str, str, str], Form] = {
    **{("patch", "DataLoader", one): _loader for one in ("num_workers", "pin_memory", *OF_WORKERS)},
    **{("wrap", "DistributedDataParallel", one): _ddp for one in OF_DDP},
    ("patch", "torch.optim", "fused"): _optimizer,
    ("patch", "torch.optim", "foreach"): _optimizer,
    ("patch", "zero_grad", "set_to_none"): _methods,
    ("patch", "Embedding", "max_norm"): _calls,
    ("patch", "set_detect_anomaly", "mode"): _calls,
    ("patch", "torch.use_deterministic_algorithms", "mode"): _calls,
    ("patch", "fully_shard", "reshard_after_forward"): _every_call,
    ("patch", "torch.compile", "dynamic"): _every_call,
    ("patch", "torch.compile", "mode"): _every_call,
    ("patch", "transformers", "attn_implementation"): _transformers,
    ("patch", "torch.set_num_threads", "threads"): _setting,
    ("patch", "torch.set_flush_denormal", "mode"): _setting,
    ("patch", "torch.backends.cudnn", "benchmark"): _attribute,
    ("patch", "gc.collect", "every"): _seldom,
    ("patch", "torch.cuda.synchronize", ""): _left_out,
    ("patch", "torch.cuda.empty_cache", ""): _left_out,
    ("patch", "torch.distributed.barrier", ""): _left_out,
    ("wrap", "torch.compile", ""): _compiled,
    ("wrap", "torch.compile", "mode"): _compiled,
    ("wrap", "channels_last", ""): _channels_last,
    ("wrap", "torch.autocast", ""): _autocast,
}
"""By the kind of the fix, the name of what is changed and the argument, as `injection.parsed` gives them."""
