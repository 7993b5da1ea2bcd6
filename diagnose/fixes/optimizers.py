"""Settings of optimizers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .interfaces import CannotSwitch, Editor, Edits, Given, Injection, Switch
from .setting import (
    Argument,
    Loop,
    Run,
    Safety,
    Setting,
    Words,
    as_in_own_loop,
    by_calls,
    flag,
    not_possible,
    only,
    said_itself,
)

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import Made, RankManifest

OTHER = {"fused": "foreach", "foreach": "fused"}  # They exclude each other.
Forms = dict[str, Any]  # `fused` and `foreach` as one parameter group has them.


def _forms(optimizer: Any) -> list[Forms]:
    return [{name: group.get(name) for name in OTHER} for group in optimizer.param_groups]


@dataclass(frozen=True)
class OptimizerArgument(Setting):
    """How optimizers of torch.optim update their parameters: fused, or foreach."""

    form = "patch:torch.optim"
    takes = {"fused": only(True), "foreach": only(True)}
    since = (2, 3)  # For all classes that have it; some had it before.
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/optim.html"

    def words(self) -> Words:
        call = "torch.optim.AdamW(model.parameters()"
        return Words(f"Use the {self.argument} optimizer.", f"{call})", f"{call}, {self.argument}={self.value})")

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        """transformers names an optimizer and its form by one word (transformers.training_args.OptimizerNames)."""
        if loop is Loop.TRANSFORMERS and self.argument == "fused" and self.made(run)[0] in ("Adam", "AdamW"):
            return Argument("transformers.TrainingArguments", "optim", "adamw_torch_fused")
        return "where the optimizer is made, as in configure_optimizers()" if loop is Loop.LIGHTNING else None

    def made(self, run: Run) -> tuple[str, tuple[Made | None, ...]]:
        """The class of the optimizers without it, and where each is made; ("", ()) unless they are of one class."""
        without = [one for one in run.rank.optimizers if getattr(one, self.argument) is not self.value]
        names = {one.name for one in without}
        return (names.pop(), tuple(one.made for one in without)) if len(names) == 1 else ("", ())

    def in_force(self, run: Run) -> bool:
        has = [getattr(optimizer, self.argument) for optimizer in run.rank.optimizers]
        return bool(has) and all(value is self.value for value in has)

    def inject(self, injection: Injection) -> None:
        other = OTHER[self.argument]

        def prevented(given: Given) -> str:
            """Switches the other form off, which excludes this one. A clause if the optimizer cannot have it."""
            if given.get(other):
                given[other] = False
            return "the optimizer is differentiable" if given.get("differentiable") else ""

        def act(module: Any) -> None:
            kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and "__init__" in vars(kind)]
            for kind in kinds:
                if issubclass(kind, module.Optimizer) and self.argument in inspect.signature(kind).parameters:
                    injection.change_argument(kind, "__init__", "", prevented)

        injection.when_imported("torch.optim", act)

    def switch(self, injection: Injection) -> Switch:
        """Sets the arguments of parameter groups. Of the optimizer's state only the count of steps changes: it moves to
        the GPU for fused ones, which read it there. `of_copy` turns a copy, which `agent/arm.py` compares with it."""
        takers = [one for one in injection.optimizers() if self.argument in one.defaults]
        others = [one for one in takers if any(group[self.argument] != self.value for group in one.param_groups)]
        if not takers:
            raise CannotSwitch(f"no optimizer that stepped has {self.argument}")
        if not others:
            raise CannotSwitch(f"the script has {self.argument}={self.value} already")
        before = {id(one): _forms(one) for one in others}
        names = ", ".join(dict.fromkeys(type(one).__name__ for one in others))

        def turn(on: bool) -> None:
            for one in others:
                self._turn(one, on, before[id(one)])

        def of_copy(optimizer: Any, on: bool) -> None:
            self._turn(optimizer, on, _forms(optimizer))

        def why_none() -> str:
            kept = all(group[self.argument] == self.value for one in others for group in one.param_groups)
            return "" if kept else f"the script sets {self.argument} of its optimizer back"

        what = f"{names}: {self.argument} {before[id(others[0])][0][self.argument]} -> {self.value}"
        return Switch(turn, why_none, what, of_optimizer=of_copy)

    def _turn(self, optimizer: Any, on: bool, before: list[Forms]) -> None:
        """Set the form, or restore it from `before` (per parameter group), and move each count of steps for it."""
        other = OTHER[self.argument]
        for group, forms in zip(optimizer.param_groups, before, strict=False):
            group[self.argument] = self.value if on else forms[self.argument]
            group[other] = False if on and forms[other] else forms[other]
            fused = group["fused"] or group.get("capturable")
            for weight in group["params"]:
                state = optimizer.state.get(weight, {})
                if hasattr(state.get("step"), "to"):
                    state["step"] = state["step"].to(weight.device if fused else "cpu")

    def took_effect(self, rank: RankManifest) -> str:
        said = any(getattr(optimizer, self.argument) == self.value for optimizer in rank.optimizers)
        loaded = "; a loaded checkpoint may reset it"
        return "" if said else f"no optimizer that stepped has {self.argument}={self.value}{loaded}"

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.of_optimizers(self.argument, self.value)


@dataclass(frozen=True)
class ZeroGrad(Setting):
    """How gradients are zeroed, by optimizers and modules."""

    argument: str = "set_to_none"
    value: Any = True

    form = "patch:zero_grad"
    takes = {"set_to_none": flag}
    link = "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html"

    framework = as_in_own_loop
    in_force = not_possible("the zeros that it writes are in the recording")
    switch = by_calls
    took_effect = said_itself

    def words(self) -> Words:
        calls = [f"optimizer.zero_grad(set_to_none={value})" for value in (not self.value, self.value)]
        return Words(f"Set gradients to {'None instead of zero' if self.value else 'zero'}.", *calls)

    def inject(self, injection: Injection) -> None:
        injection.change_calls("torch.optim.optimizer", "Optimizer", "zero_grad", "zero_grad()")
        injection.change_calls("torch.nn.modules.module", "Module", "zero_grad", "zero_grad()")

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.giving_methods("zero_grad", self.argument, self.value)
