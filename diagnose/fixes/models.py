"""Settings of the model: compiled, in another memory format, with another attention."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .interfaces import CannotSwitch, Editor, Edits, Given, Injection, Switch
from .setting import (
    WHEN_MADE,
    Argument,
    Loop,
    Run,
    Safety,
    Setting,
    Words,
    flag,
    not_possible,
    nothing,
    said_itself,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..trace.frames import Site

COMPILED_FROM = (7, 0)  # Compute capability that torch.compile needs (Triton asks for it; AMD's are 8 and more).


def _why_nothing_compiled() -> str:
    dynamo = sys.modules.get("torch._dynamo.utils")
    traced = dynamo is not None and dynamo.counters["frames"]["ok"] > 0
    return "" if traced else "torch.compile could trace no part of the model"


def _compiler_fits(self: Setting, capability: tuple[int, int]) -> bool:
    return not any(capability) or capability >= COMPILED_FROM


@dataclass(frozen=True)
class Compile(Setting):
    """Calls of the model run compiled code; `mode`, if given, is torch.compile's."""

    form = "wrap:torch.compile"
    takes = {"": nothing, "mode": word}
    since = (2, 0)
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/torch.compiler.html"

    fits = _compiler_fits
    in_force = not_possible("what compiled code does is in the recording")
    took_effect = said_itself

    @property
    def action(self) -> str:
        return "" if self.value == "max-autotune" else self.form  # That chooses kernels by measuring: another action.

    def words(self) -> Words:
        return Words("Compile the model.", after=f"model = torch.compile(model{self._options(', ', _quoted)})")

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        if loop is Loop.TRANSFORMERS:
            name = "torch_compile_mode" if self.argument else "torch_compile"
            return Argument("transformers.TrainingArguments", name, self.value or True)
        if loop is Loop.ACCELERATE and not self.argument:
            return Argument("accelerate.Accelerator", "dynamo_backend", "inductor")
        return "before trainer.fit(model)" if loop is Loop.LIGHTNING else None

    def inject(self, injection: Injection) -> None:
        """As Module.compile() does: calls of the model run compiled code, and its module tree stays as it is."""

        def change(model: Any, torch: Any) -> str:
            try:
                model._compiled_call_impl = self._compiled(model, torch)
            except CannotSwitch as error:
                injection.refuse(str(error))
                return ""
            injection.check = _why_nothing_compiled
            return f"compiled when it is called{self._options(', ', str)}"

        injection.when_called(change)

    def switch(self, injection: Injection) -> Switch:
        """Off, calls run the eager model; the compiled code is kept."""
        model, torch = injection.trained_model(), sys.modules["torch"]
        compiled = self._compiled(model, torch)

        def turn(on: bool) -> None:
            model._compiled_call_impl = compiled if on else None

        what = f"{type(model).__name__}: compiled when it is called{self._options(', ', str)}"
        return Switch(turn, _why_nothing_compiled, what)

    def _compiled(self, model: Any, torch: Any) -> Any:
        """The compiled call of the model. It begins in this file: torch compiles no frame of its own files, so that
        Module.compile() does nothing for a Sequential (torch 2.13). Raises CannotSwitch if the script compiles."""
        if any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules()):
            raise CannotSwitch("the script compiles the model itself")

        def called(*args: Any, **kwargs: Any) -> Any:
            return model._call_impl(*args, **kwargs)

        return torch.compile(called, **({self.argument: self.value} if self.argument else {}))

    def _options(self, before: str, written: Callable[[object], str]) -> str:
        return f"{before}{self.argument}={written(self.value)}" if self.argument else ""

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        """Compiles in place, so that names in state_dict() stay (torch.nn.Module)."""
        return editor.after_optimizer(f"compile({self._options('', _quoted)})")


@dataclass(frozen=True)
class CompileArgument(Setting):
    """An argument of the script's own calls of torch.compile."""

    form = "patch:torch.compile"
    takes = {"dynamic": flag, "mode": word}
    since = (2, 0)
    changes = Safety.ROUNDING

    fits = _compiler_fits
    in_force = not_possible("what compiled code does is in the recording")
    switch = WHEN_MADE
    took_effect = said_itself

    @property
    def link(self) -> str:
        page = "torch.compiler_recompilation" if self.argument == "dynamic" else "torch.compiler_cudagraph_trees"
        return f"https://docs.pytorch.org/docs/stable/{page}.html"

    def words(self) -> Words:
        after = f"model = torch.compile(model, {self.argument}={_quoted(self.value)})"
        return Words(f"Compile with {self.argument}={self.value}.", "model = torch.compile(model)", after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        if loop is Loop.TRANSFORMERS and self.argument == "mode":
            return Argument("transformers.TrainingArguments", "torch_compile_mode", self.value)
        return None

    def inject(self, injection: Injection) -> None:
        def prevented(given: Given) -> str:
            both = self.argument == "mode" and given.get("options") is not None
            return "torch.compile takes either a mode or options" if both else ""

        def act(module: Any) -> None:
            injection.change_argument(module, "compile", "torch.compile", prevented)

        injection.when_imported("torch", act)

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.every_call("torch.compile", self.argument, self.value)


@dataclass(frozen=True)
class GraphCapture(Setting):
    """The model is replayed as a CUDA graph."""

    form = "wrap:torch.cuda.make_graphed_callables"
    takes = {"": nothing}
    since = (1, 10)
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/notes/cuda.html#partial-network-capture"
    effort = 2

    in_force = not_possible("graphs are in the recording")
    switch = inject = not_possible("a CUDA graph needs static shapes and inputs, which only the script can arrange")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        return Words(
            "Capture the model as a CUDA graph (needs static shapes and no host syncs).",
            after="model = torch.cuda.make_graphed_callables(model, (x,))",
        )

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        """For transformers another option: its models take no inputs by position, as make_graphed_callables needs."""
        if loop is Loop.TRANSFORMERS:
            return Argument("transformers.TrainingArguments", "torch_compile_mode", "reduce-overhead")
        return "before trainer.fit(model)" if loop is Loop.LIGHTNING else None


@dataclass(frozen=True)
class ChannelsLast(Setting):
    """The model's 4-D weights and inputs are in channels_last; so convolutions return channels_last as well."""

    form = "wrap:channels_last"
    takes = {"": nothing}
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html"

    in_force = not_possible("the formats of weights are in the recording")
    took_effect = said_itself

    def words(self) -> Words:
        last = "memory_format=torch.channels_last"
        after = f"model = model.to({last})\nx = x.to(device, {last})"
        return Words("Keep the model and its inputs in channels_last.", after=after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        where = {Loop.TRANSFORMERS: "before the Trainer is made", Loop.LIGHTNING: "before trainer.fit(model)"}
        return where.get(loop)

    def inject(self, injection: Injection) -> None:
        def change(model: Any, torch: Any) -> str:
            try:
                weights = _not_channels_last(model, torch)
            except CannotSwitch as error:
                injection.refuse(str(error))
                return ""
            for weight in weights:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
            model.register_forward_pre_hook(_given_channels_last, with_kwargs=True)
            return f"{len(weights)} weights and the input to channels_last"

        injection.when_complete(change)

    def switch(self, injection: Injection) -> Switch:
        """Reorders weights, their gradients and the optimizers' states in memory; no value changes."""
        model, torch = injection.trained_model(), sys.modules["torch"]
        last, optimizers, hooks = torch.channels_last, injection.optimizers(), list[Any]()
        weights = _not_channels_last(model, torch)

        def turn(on: bool) -> None:
            order = last if on else torch.contiguous_format
            while hooks:
                hooks.pop().remove()
            if on:
                hooks.append(model.register_forward_pre_hook(_given_channels_last, with_kwargs=True))
            for weight in weights:
                _set_memory_format(weight, optimizers, order)

        def why_none() -> str:
            kept = all(weight.is_contiguous(memory_format=last) for weight in weights)
            return "" if kept else "the script changes the memory format of weights itself"

        what = f"{type(model).__name__}: {len(weights)} weights and the input to channels_last"
        return Switch(turn, why_none, what)

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.after_optimizer("to(memory_format={torch}.channels_last)")


@dataclass(frozen=True)
class Attention(Setting):
    """Which implementation computes attention in models of transformers."""

    argument: str = "attn_implementation"
    value: Any = "sdpa"

    form = "patch:transformers"
    takes = {"attn_implementation": word}
    since = (2, 0)
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"
    effort = 2

    in_force = not_possible("the ops of attention are in the recording")
    took_effect = said_itself

    def words(self) -> Words:
        given = "q, k, v, attn_mask=mask, scale=scale, dropout_p=p if self.training else 0.0"
        return Words("Use scaled_dot_product_attention.", after=f"y = F.scaled_dot_product_attention(\n    {given}\n)")

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        """Whatever owns the loop, models of transformers are loaded by from_pretrained()."""
        return Argument("from_pretrained", self.argument, self.value) if loop is Loop.TRANSFORMERS else None

    def inject(self, injection: Injection) -> None:
        def change(model: Any, torch: Any) -> str:
            try:
                switch = self._switch(model)
                switch.turn(True)
                why = switch.why_none()
            except CannotSwitch as error:
                why = str(error)
            except (ValueError, ImportError) as error:
                why = f"transformers refuses attn_implementation={self.value}: {str(error)[:200]}"
            else:
                if not why:
                    return switch.what.partition(": ")[2]
            injection.refuse(why)
            return ""

        injection.when_complete(change)

    def switch(self, injection: Injection) -> Switch:
        return self._switch(injection.trained_model())

    def _switch(self, model: Any) -> Switch:
        """A switch of the first module that has another attention. Raises CannotSwitch if there is none."""
        wanted = self.value
        settable = [module for module in model.modules() if hasattr(module, "set_attn_implementation")]
        others = [one for one in settable if one.config._attn_implementation != wanted]
        if not settable:
            raise CannotSwitch("the model has no attn_implementation, which models of transformers have")
        if not others:
            raise CannotSwitch(f"the script has attn_implementation={wanted} already")
        first, before = others[0], others[0].config._attn_implementation

        def turn(on: bool) -> None:
            first.set_attn_implementation(wanted if on else before)

        def why_none() -> str:
            kept = first.config._attn_implementation == wanted
            return "" if kept else f"{type(first).__name__} cannot change its attn_implementation"

        return Switch(turn, why_none, f"{type(first).__name__}: attn_implementation {before} -> {wanted}")

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.loaded_by_transformers(self.argument, self.value)


def _not_channels_last(model: Any, torch: Any) -> list[Any]:
    """The model's four-dimensional weights that are not channels_last. Raises CannotSwitch without any."""
    last = torch.channels_last
    weights = [one for one in model.parameters() if one.dim() == 4 and not one.is_contiguous(memory_format=last)]
    if not weights:
        raise CannotSwitch("the model has no weights of four dimensions that are not channels_last already")
    return weights


def _set_memory_format(weight: Any, optimizers: Sequence[Any], order: Any) -> None:
    torch = sys.modules["torch"]
    weight.data = weight.data.contiguous(memory_format=order)
    if weight.grad is not None and not torch.distributed.is_initialized():  # DDP's are parts of others.
        weight.grad = weight.grad.contiguous(memory_format=order)
    for state in [one.state[weight] for one in optimizers if weight in one.state]:
        for name, value in state.items():
            if torch.is_tensor(value) and value.shape == weight.shape:
                state[name] = value.contiguous(memory_format=order)


def _given_channels_last(_model: Any, args: Any, kwargs: Any) -> Any:
    """A forward pre-hook that orders all four-dimensional inputs as channels_last."""
    torch = sys.modules["torch"]

    def ordered(one: Any) -> Any:
        has_channels = torch.is_tensor(one) and one.dim() == 4
        return one.contiguous(memory_format=torch.channels_last) if has_channels else one

    return torch.utils._pytree.tree_map(ordered, (args, kwargs))


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
