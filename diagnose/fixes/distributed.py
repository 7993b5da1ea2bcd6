"""Settings of training on several ranks: DistributedDataParallel and fully_shard."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .interfaces import Editor, Edits, Injection
from .setting import (
    DS_CONFIG,
    WHEN_MADE,
    Argument,
    Code,
    Loop,
    Run,
    Safety,
    Setting,
    Words,
    as_in_own_loop,
    flag,
    not_possible,
    nothing,
    only,
    said_itself,
    whole,
)

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import Made, RankManifest

DDP = "DistributedDataParallel"
LINK = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"

CHANGES = {  # What arguments of DistributedDataParallel do to results.
    "batched_grad_copy": Safety.ROUNDING,
    "broadcast_buffers": Safety.NEEDS_JUDGEMENT,
    "bucket_cap_mb": Safety.ROUNDING,
    "find_unused_parameters": Safety.SAME_NUMBERS,
    "gradient_as_bucket_view": Safety.SAME_NUMBERS,
    "static_graph": Safety.SAME_NUMBERS,
}
OF_TRANSFORMERS = ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "static_graph")  # With `ddp_`.
UNKNOWN_TO_ACCELERATE = "batched_grad_copy"  # Its DistributedDataParallelKwargs of 1.15 lacks this.

ALIKE = 2  # Steps with equally many backward passes, after which the next are taken to have as many (our choice).


@dataclass(frozen=True)
class DdpArgument(Setting):
    """An argument of DistributedDataParallel."""

    form = "wrap:DistributedDataParallel"
    takes = {**dict.fromkeys(CHANGES, flag), "bucket_cap_mb": whole(1)}
    link = LINK

    @property
    def changes(self) -> Safety:
        return CHANGES[self.argument]

    def words(self) -> Words:
        return Words(
            f"Set {self.argument}={self.value}.", f"{DDP}(model)", f"{DDP}(model, {self.argument}={self.value})"
        )

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        if loop is Loop.TRANSFORMERS and self.argument in OF_TRANSFORMERS:
            return Argument("transformers.TrainingArguments", f"ddp_{self.argument}", self.value)
        strategies = {
            Loop.LIGHTNING: "lightning.pytorch.strategies.DDPStrategy",
            Loop.FABRIC: "lightning.fabric.strategies.DDPStrategy",
            Loop.ACCELERATE: "accelerate.DistributedDataParallelKwargs",
        }
        unknown = loop is Loop.ACCELERATE and self.argument == UNKNOWN_TO_ACCELERATE
        return Argument(strategies[loop], self.argument, self.value) if loop in strategies and not unknown else None

    def made(self, run: Run) -> tuple[str, tuple[Made | None, ...]]:
        return DDP, run.rank.distributed.ddp_made if run.rank.distributed else ()

    def in_force(self, run: Run) -> bool:
        has = [one.get(self.argument) for one in run.rank.distributed.ddp] if run.rank.distributed else []
        if type(self.value) is int:
            return bool(has) and all(type(one) is int and one >= self.value for one in has)
        return bool(has) and all(one is self.value for one in has)

    def inject(self, injection: Injection) -> None:
        injection.change_calls("torch.nn.parallel.distributed", DDP, "__init__", DDP)

    switch = WHEN_MADE

    def took_effect(self, rank: RankManifest) -> str:
        """Empty if any wrapper has it, or none reports this option: DDP does not report all."""
        ddp = rank.distributed.ddp if rank.distributed else ()
        said = [one[self.argument] for one in ddp if self.argument in one]
        if not said or self.value in said:
            return ""
        return f"{DDP} still has {self.argument}={said[0]}"

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.where_made(DDP, editor.ddp_made, self.argument, self.value)


@dataclass(frozen=True)
class CommunicationHook(Setting):
    """DDP reduces gradients by the hook of torch.distributed.algorithms.ddp_comm_hooks.default_hooks named `value`."""

    argument: str = "comm_hook"
    value: Any = "bf16_compress_hook"

    form = "wrap:DistributedDataParallel"
    takes = {"comm_hook": only("bf16_compress_hook", "fp16_compress_hook")}
    changes = Safety.NEEDS_JUDGEMENT
    link = "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"

    in_force = not_possible("the types that are sent are in the recording")
    switch = not_possible("a hook is registered before the first forward pass, and stays")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        return Words(
            "Send gradients in bf16: their sums are rounded to 8 bits.",
            after="from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
            f"ddp_model.register_comm_hook(None, default_hooks.{self.value})",
        )

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        hook = Code(f"default_hooks.{self.value}")
        strategy = Argument("lightning.pytorch.strategies.DDPStrategy", "ddp_comm_hook", hook)
        return strategy if loop is Loop.LIGHTNING else None

    def inject(self, injection: Injection) -> None:
        """Registers the hook before the first forward pass of each DistributedDataParallel."""
        seen: weakref.WeakSet[Any] = weakref.WeakSet()

        def forward(model: Any, forward: Callable[[], Any]) -> Any:
            if model not in seen:
                seen.add(model)
                if why := _register(model, self.value):
                    injection.refuse(why)
                else:
                    injection.note(DDP, f"gradients are sent by {self.value}")
            return forward()

        injection.refuse(f"nothing is wrapped in {DDP}")
        _wrap_forward(injection, forward)


@dataclass(frozen=True)
class NoSync(Setting):
    """Gradients are reduced only in the last backward pass of a step."""

    argument: str = "no_sync"

    form = "wrap:DistributedDataParallel"
    takes = {"no_sync": nothing}
    changes = Safety.ROUNDING
    link = LINK

    in_force = not_possible("how often gradients are reduced is in the recording")
    switch = not_possible("the backward passes per step are counted in the first steps")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        after = "with contextlib.nullcontext() if last else model.no_sync():\n    model(part).loss.backward()"
        return Words("Reduce gradients only in the last backward pass of a step.", "loss.backward()", after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        return {
            Loop.TRANSFORMERS: Argument("transformers.TrainingArguments", "gradient_accumulation_steps", Code("parts")),
            Loop.LIGHTNING: Argument("lightning.Trainer", "accumulate_grad_batches", Code("parts")),
            Loop.ACCELERATE: Argument("accelerate.Accelerator", "gradient_accumulation_steps", Code("parts")),
            Loop.DEEPSPEED: Argument(DS_CONFIG, "gradient_accumulation_steps", Code("parts")),
        }.get(loop)

    def inject(self, injection: Injection) -> None:
        accumulation = _Accumulation(injection)

        def act(module: Any) -> None:
            module.register_optimizer_step_pre_hook(accumulation.before_optimizer_step)

        injection.refuse(f"nothing is wrapped in {DDP}, or no optimizer stepped")
        injection.when_imported("torch.optim.optimizer", act)
        _wrap_forward(injection, accumulation.forward)


@dataclass(frozen=True)
class FsdpArgument(Setting):
    """An argument of fully_shard."""

    argument: str = "reshard_after_forward"
    value: Any = False

    form = "patch:fully_shard"
    takes = {"reshard_after_forward": only(False)}
    link = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"

    framework = as_in_own_loop
    in_force = not_possible("what is gathered twice is in the recording")
    switch = WHEN_MADE
    took_effect = said_itself

    def words(self) -> Words:
        after = f"fully_shard(block, {self.argument}={self.value})"
        return Words("Keep parameters after the forward pass.", "fully_shard(block)", after)

    def inject(self, injection: Injection) -> None:
        injection.change_calls("torch.distributed.fsdp._fully_shard._fully_shard", "", "fully_shard", "fully_shard")

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.every_call("fully_shard", self.argument, self.value)


def _wrap_forward(injection: Injection, act: Callable[[Any, Callable[[], Any]], Any]) -> None:
    """Have each forward pass of DDP be `act(model, forward)`: `forward()` is the original. Not in compiled code."""

    def patch(module: Any) -> None:
        kind = module.DistributedDataParallel
        original = kind.forward

        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if sys.modules["torch"].compiler.is_compiling():
                return original(self, *args, **kwargs)
            return act(self, lambda: original(self, *args, **kwargs))

        kind.forward = forward

    injection.when_imported("torch.nn.parallel.distributed", patch)


class _Accumulation:
    """Leaves out the reduction in all backward passes of a step but the last.

    How many there are is learnt from the first steps. A step with more passes reduces in each extra one; in a step with
    fewer, gradients are reduced just before the optimizer steps. So the optimizer always sees reduced gradients.
    """

    def __init__(self, injection: Injection) -> None:
        self._injection = injection
        # Backward passes of this step, and of the step before; how many steps in a row had as many as that.
        self._passes = self._before = self._alike = 0
        self._listens = False
        self._unreduced: weakref.WeakSet[Any] = weakref.WeakSet()

    def forward(self, model: Any, forward: Callable[[], Any]) -> Any:
        """Run a forward pass; without synchronising gradients if the backward pass after it is not the step's last."""
        if not self._listens:
            self._listens = True
            self._injection.when_backward_ends(self._backward_ended)
        learnt = self._alike >= ALIKE and self._before > 1
        torch = sys.modules["torch"]
        if not (learnt and torch.is_grad_enabled() and model.require_backward_grad_sync):
            return forward()
        if self._passes >= self._before - 1:
            self._unreduced.discard(model)
            return forward()
        self._unreduced.add(model)
        self._injection.note(DDP, f"gradients are reduced in the last of {self._before} backward passes")
        with model.no_sync():
            return forward()

    def _backward_ended(self) -> None:
        self._passes += 1

    def before_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Reduce gradients that are not reduced yet, and learn how many backward passes this step had."""
        for model in list(self._unreduced):
            _reduce(model)
        self._unreduced.clear()
        if not self._passes:
            return  # Another optimizer has just stepped in the same step.
        self._alike = self._alike + 1 if self._passes == self._before else 1
        self._before, self._passes = self._passes, 0
        if self._before == 1:
            self._injection.refuse("a step has one backward pass")
        elif self._alike < ALIKE:
            self._injection.refuse("steps differ in how many backward passes they have")


def _reduce(model: Any) -> None:
    """Average the model's gradients over all ranks, as DDP does."""
    torch = sys.modules["torch"]
    ranks = torch.distributed.get_world_size(model.process_group)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad.div_(ranks), group=model.process_group)


def _register(model: Any, name: str) -> str:
    """Register a hook of `default_hooks`; a clause on why that cannot be done, or empty."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if model._comm_hooks:
        return "the script registers a communication hook itself"
    try:
        model.register_comm_hook(None, getattr(default_hooks, name))
    except (TypeError, ValueError, RuntimeError) as error:  # As by a backend that cannot sum up this type.
        return f"the backend cannot do {name}: {str(error)[:200]}"
    return ""
