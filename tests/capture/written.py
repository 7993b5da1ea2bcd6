"""Where a training's own source has the calls whose work a recording shows: a second way to know their lines.

`python -m tests.capture.written RECORDING FOLDER` judges a recording of a training whose files are in the folder.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import sites_of
from diagnose.source import recording
from diagnose.trace import intervals
from diagnose.trace.frames import Site
from diagnose.trace.kinds import Activity, activity

LOSSES = {
    "aten::cross_entropy_loss": ("cross_entropy", "CrossEntropyLoss"),
    "aten::nll_loss_nd": ("nll_loss", "NLLLoss"),
    "aten::mse_loss": ("mse_loss", "MSELoss"),
    "aten::smooth_l1_loss": ("smooth_l1_loss", "SmoothL1Loss"),
    "aten::binary_cross_entropy": ("binary_cross_entropy", "BCELoss"),
    "aten::binary_cross_entropy_with_logits": ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
    "aten::kl_div": ("kl_div", "KLDivLoss"),
}
"""The function and the module of each op that computes a loss."""

LAYERS = {
    *("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv_transpose2d", "aten::embedding", "aten::layer_norm"),
    *("aten::batch_norm", "aten::gru", "aten::lstm", "aten::lstm_cell"),
}
"""Ops of modules; not where the source calls a function of that name."""


class Work(Enum):
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    ZERO_GRAD = "zero_grad"
    LOADER = "loader"
    LOSS = "loss"
    MODEL = "model"


class Verdict(Enum):
    LINE = "the line of the call"
    FUNCTION = "where the function starts in which the call is"
    NOT_TOLD = "no line"
    WRONG = "a line that has no such call"


@dataclass(frozen=True)
class Judged:
    """So many spans of one kind of work, of one name, at one place."""

    work: Work
    name: str
    site: Site | None
    verdict: Verdict
    count: int


Lines = tuple[int, int]  # The first and the last of a call.


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _named(value: ast.AST) -> set[str]:
    """All names and attributes in an expression."""
    return {_last(one) for one in ast.walk(value) if isinstance(one, ast.Name | ast.Attribute)}


class Source:
    """What the files of a training call, by name alone: `model` is a module wherever one is assigned to a `model`."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self.folder = folder
        self.trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        makers = {"Sequential", "ModuleList"}
        self.modules, self.losses, self.optimizers, self.loaders = (set[str]() for _ in range(4))
        for node in [*nodes, *nodes]:  # Twice, as what is called may be written below.
            if isinstance(node, ast.ClassDef) and {"Module", *makers} & {_last(base) for base in node.bases}:
                makers.add(node.name)
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(one, ast.Return) and one.value and self._makes(one.value, makers) for one in ast.walk(node)
            ):
                makers.add(node.name)
            for names, value in _bound(node):
                text = ast.unparse(value)
                if _named(value) & {loss for _, loss in LOSSES.values()}:
                    self.losses |= names
                elif self._makes(value, makers) or (not isinstance(node, ast.Assign) and _named(value) & self.modules):
                    self.modules |= names
                if "optim" in text.lower():
                    self.optimizers |= names
                if "oader" in text:
                    self.loaders |= names

    def _makes(self, value: ast.expr, makers: set[str]) -> bool:
        """Whether a value is a module, or has some in it."""
        calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
        of_nn = any(isinstance(one.func, ast.Attribute) and _last(one.func.value) in ("nn", "models") for one in calls)
        return of_nn or any(_last(one.func) in makers for one in calls)

    def calls(self, file: Path, work: Work, op: str) -> list[Lines]:
        nodes = list(ast.walk(self.trees[file]))
        if work is Work.LOADER:
            fors = [one for one in nodes if isinstance(one, ast.For) and self._loads(one)]
            nexts = [one for one in nodes if isinstance(one, ast.Call) and _last(one.func) in ("next", "iter")]
            heads = [(one.lineno, one.iter.end_lineno or 0) for one in fors]
            return heads + [(one.lineno, one.end_lineno or 0) for one in nexts]
        found = [one for one in nodes if isinstance(one, ast.Call) and self._does(one, work, op)]
        return [(one.lineno, one.end_lineno or 0) for one in found]

    def _loads(self, loop: ast.For) -> bool:
        return "oader" in ast.unparse(loop.iter) or bool(_named(loop.iter) & self.loaders)

    def _does(self, call: ast.Call, work: Work, op: str) -> bool:
        name = _last(call.func)
        if work is Work.BACKWARD:
            return name in ("backward", "grad")
        if work is Work.ZERO_GRAD:
            return name == "zero_grad"
        if work is Work.OPTIMIZER_STEP:
            of = call.func.value if isinstance(call.func, ast.Attribute) else call.func
            return name == "step" and bool({_last(one) for one in (of, *call.args)} & self.optimizers)
        if work is Work.LOSS:
            return name in (*self.losses, LOSSES[op][0])
        return name in self.modules or (isinstance(call.func, ast.Subscript) and _last(call.func.value) in self.modules)

    def does_itself(self, op: str) -> bool:
        """Whether the source calls a function of the op's name."""
        nodes = (node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call))
        return op.removeprefix("aten::") in {_last(node.func) for node in nodes}

    def verdict(self, site: Site | None, work: Work, op: str) -> Verdict:
        if site is None or not site.line:
            return Verdict.NOT_TOLD
        file = next((one for one in self.trees if one == (self.folder / site.file).resolve()), None)
        if file is None:
            return Verdict.WRONG
        calls = self.calls(file, work, op)
        if any(first <= site.line <= last for first, last in calls):
            return Verdict.LINE
        functions = [
            one for one in ast.walk(self.trees[file]) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for one in functions:
            starts = min(node.lineno for node in (one, *one.decorator_list))
            inside = any(one.lineno <= first and last <= (one.end_lineno or 0) for first, last in calls)
            if (one.name, starts) == (site.function, site.line) and inside:
                return Verdict.FUNCTION
        return Verdict.WRONG


def _bound(node: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    """Names to which something is assigned, also turn by turn."""
    if isinstance(node, ast.For | ast.comprehension):
        yield _named(node.target), node.iter
    elif isinstance(node, ast.Assign):
        values = node.value.elts if isinstance(node.value, ast.Tuple) else []
        for target in node.targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for at, name in enumerate(names):
                yield {_last(name)}, values[at] if len(values) == len(names) else node.value


def works(facts: Facts, source: Source) -> dict[int, Work]:
    """The host spans in steps that are such work, but those inside of others."""
    spans = facts.rank.spans
    layers = {op for op in LAYERS if not source.does_itself(op)}
    of_name = [_work(str(name), layers) for name in spans["name"].cat.categories]
    of_span = [of_name[code] for code in spans["name"].cat.codes]
    ids = np.flatnonzero((spans["step"].to_numpy() >= 0) & np.array([work is not None for work in of_span]))
    some = spans.iloc[ids]
    start = some["start_ns"].to_numpy()
    outer = intervals.parents(some["track"].to_numpy().astype(np.int64), start, start + some["dur_ns"].to_numpy()) < 0
    return {at: work for at in ids[outer].tolist() if (work := of_span[at])}


def _work(name: str, layers: set[str]) -> Work | None:
    known = activity(name)
    if known in (Activity.OPTIMIZER_STEP, Activity.ZERO_GRAD, Activity.LOADER):
        return Work(known.value)
    if name.startswith("autograd::engine::evaluate_function"):
        return Work.BACKWARD
    return Work.LOSS if name in LOSSES else Work.MODEL if name in layers else None


def judged(recorded: Path, folder: Path) -> list[Judged]:
    """What a recording's lines are worth, of a training whose files are all in the folder."""
    (files,) = recording.find([recorded]).ranks
    facts = Facts(recording.read(files))
    source = Source(folder.resolve(), sorted(folder.resolve().rglob("*.py")))
    found = works(facts, source)
    names = facts.rank.spans["name"]
    sites = sites_of(facts, np.array(list(found), dtype=np.int64))
    told = Counter((work, str(names.iloc[at]), site) for (at, work), site in zip(found.items(), sites, strict=True))
    return [Judged(*one, source.verdict(one[2], one[0], one[1]), count) for one, count in told.items()]


if __name__ == "__main__":
    rows = judged(Path(sys.argv[1]), Path(sys.argv[2]))
    for work in Work:
        counts = Counter[Verdict]()
        for row in rows:
            counts[row.verdict] += row.count * (row.work is work)
        print(f"{work.value}: " + (", ".join(f"{n} {v.value}" for v, n in counts.items() if n) or "none seen"))
    for row in rows:
        if row.verdict is Verdict.WRONG:
            print("WRONG", row.work.value, row.name, row.site, row.count)
