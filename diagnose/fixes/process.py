"""Settings of the whole process: of torch and of Python."""

from __future__ import annotations

import functools
import gc
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .interfaces import CannotSwitch, Editor, Edits, Injection, Switch, no_gpu
from .setting import Argument, Loop, Run, Safety, Setting, Words, as_in_own_loop, not_possible, only, said_itself, whole

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import RankManifest


@dataclass(frozen=True)
class CudnnBenchmark(Setting):
    """cuDNN or MIOpen benchmarks its kernels, once per input shape."""

    argument: str = "benchmark"
    value: Any = True

    form = "patch:torch.backends.cudnn"
    takes = {"benchmark": only(True)}
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark"

    framework = as_in_own_loop

    def words(self) -> Words:
        after = "torch.backends.cudnn.benchmark = True  # once, before training; on AMD as well"
        return Words("Let cuDNN or MIOpen benchmark its kernels.", after=after)

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.cudnn_benchmark is self.value

    def inject(self, injection: Injection) -> None:
        def act(module: Any) -> None:
            cudnn = module.backends.cudnn
            cudnn.benchmark = self.value
            injection.note_everywhere("torch.backends.cudnn.benchmark is on from the start")
            injection.check = lambda: no_gpu(module) or ("" if cudnn.is_available() else "PyTorch has no cuDNN here")

        injection.when_imported("torch", act)

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if why := no_gpu(torch):
            raise CannotSwitch(why)
        cudnn = torch.backends.cudnn
        if cudnn.benchmark:
            raise CannotSwitch("the script has benchmark=True already")

        def turn(on: bool) -> None:
            cudnn.benchmark = on

        return Switch(turn, lambda: "" if cudnn.benchmark else "the script switches cudnn.benchmark off", self.name)

    def took_effect(self, rank: RankManifest) -> str:
        return "the script switches cudnn.benchmark off" if rank.flags.cudnn_benchmark is False else ""

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.assigned("torch.backends.cudnn.benchmark", self.value)


@dataclass(frozen=True)
class Threads(Setting):
    """How many threads compute CPU ops in the training process; DataLoader workers keep what torch sets there."""

    argument: str = "threads"

    form = "patch:torch.set_num_threads"
    takes = {"threads": whole(1)}
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/generated/torch.set_num_threads.html"

    framework = as_in_own_loop

    def words(self) -> Words:
        return Words("Use as many threads as there are cores.", after=f"torch.set_num_threads({self.value})")

    def in_force(self, run: Run) -> bool:
        return bool(run.rank.flags.threads == self.value)

    def inject(self, injection: Injection) -> None:
        def act(module: Any) -> None:
            original, wanted, before = module.set_num_threads, self.value, module.get_num_threads()

            @functools.wraps(original)
            def set_num_threads(threads: int) -> None:
                by_script = injection.caller() is not None and module.utils.data.get_worker_info() is None
                if by_script and threads != wanted:
                    injection.note("torch.set_num_threads", f"{threads} -> {wanted}")
                original(wanted if by_script else threads)

            module.set_num_threads = set_num_threads
            if before != wanted:
                original(wanted)
                injection.note_everywhere(f"torch computes with {wanted} threads from the start, not with {before}")
            else:
                injection.refuse(f"torch computes with {wanted} threads already")

        injection.when_imported("torch", act)

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        before = torch.get_num_threads()
        if before == self.value:
            raise CannotSwitch(f"torch computes with {before} threads already")

        def turn(on: bool) -> None:
            torch.set_num_threads(self.value if on else before)

        def why_none() -> str:
            now = torch.get_num_threads()
            return "" if now == self.value else f"torch computes with {now} threads, which the script sets itself"

        return Switch(turn, why_none, f"torch.get_num_threads() {before} -> {self.value}")

    def took_effect(self, rank: RankManifest) -> str:
        now = rank.flags.threads
        return "" if now in (None, self.value) else f"torch computes with {now} threads, which the script sets itself"

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.call_once("set_num_threads", self.argument, self.value)


@dataclass(frozen=True)
class _CheckOff(Setting):
    """A check or guarantee of torch's, which the script switches on by `call`, is off."""

    argument: str = "mode"
    value: Any = False

    takes = {"mode": only(False)}
    call: ClassVar[str]  # Whole name of the function by which scripts switch it.
    do: ClassVar[str]  # As in `Words`.

    def words(self) -> Words:
        return Words(self.do, f"{self.call}(True)", f"{self.call}(False)")

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.giving_calls(self.call.rpartition(".")[2], self.argument, self.value)


@dataclass(frozen=True)
class AnomalyMode(_CheckOff):
    """Autograd's anomaly detection is off."""

    form = "patch:set_detect_anomaly"
    link = "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection"
    call, do = "torch.autograd.set_detect_anomaly", "Disable anomaly detection."

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        return Argument("lightning.Trainer", "detect_anomaly", False) if loop is Loop.LIGHTNING else None

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.anomaly_mode is self.value

    def inject(self, injection: Injection) -> None:
        injection.change_calls("torch.autograd.anomaly_mode", "set_detect_anomaly", "__init__")

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if not torch.is_anomaly_enabled():
            raise CannotSwitch("anomaly detection is off between steps")
        looks_for_nan = torch.is_anomaly_check_nan_enabled()

        def turn(on: bool) -> None:
            torch.autograd.set_detect_anomaly(not on, looks_for_nan)

        def why_none() -> str:
            return "the script switches anomaly detection on itself" if torch.is_anomaly_enabled() else ""

        return Switch(turn, why_none, "torch.is_anomaly_enabled() True -> False")

    def took_effect(self, rank: RankManifest) -> str:
        return "anomaly detection is still on" if rank.flags.anomaly_mode else ""


@dataclass(frozen=True)
class Determinism(_CheckOff):
    """Nondeterministic algorithms are allowed: they may add in another order in every run."""

    form = "patch:torch.use_deterministic_algorithms"
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/notes/randomness.html"
    call, do = "torch.use_deterministic_algorithms", "Allow nondeterministic algorithms."

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        return {
            Loop.TRANSFORMERS: Argument("transformers.TrainingArguments", "full_determinism", False),
            Loop.LIGHTNING: Argument("lightning.Trainer", "deterministic", False),
        }.get(loop)

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.deterministic_algorithms is self.value

    def inject(self, injection: Injection) -> None:
        injection.change_calls("torch", "", "use_deterministic_algorithms", self.call)

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if not torch.are_deterministic_algorithms_enabled():
            raise CannotSwitch("the script already allows nondeterministic algorithms")
        warns = torch.is_deterministic_algorithms_warn_only_enabled()

        def turn(on: bool) -> None:
            torch.use_deterministic_algorithms(not on, warn_only=warns)

        def why_none() -> str:
            on = torch.are_deterministic_algorithms_enabled()
            return "the script switches deterministic algorithms on itself" if on else ""

        return Switch(turn, why_none, "torch.are_deterministic_algorithms_enabled() True -> False")

    def took_effect(self, rank: RankManifest) -> str:
        return "deterministic algorithms are still on" if rank.flags.deterministic_algorithms else ""


@dataclass(frozen=True)
class CollectByHand(Setting):
    """Garbage is collected in one of `every` steps only; objects that live after the first step are never looked at."""

    argument: str = "every"
    value: Any = 500

    form = "patch:gc.freeze"
    takes = {"every": whole(1)}
    link = "https://docs.python.org/3/library/gc.html"

    is_of_collections = True
    in_force = not_possible("collections are in the recording")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        after = "gc.collect(); gc.freeze(); gc.disable()  # before the loop\n"
        after += f"if step % {self.value} == 0:\n    gc.collect(1)"
        return Words("Collect garbage manually, rarely, and on all ranks in the same step.", after=after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        where = {
            Loop.TRANSFORMERS: "in on_train_begin() of a TrainerCallback, and on_step_end(), by state.global_step",
            Loop.LIGHTNING: "in on_train_start() of a Callback, and on_train_batch_end(), by batch_idx",
        }
        return where.get(loop)

    def inject(self, injection: Injection) -> None:
        """From the first optimizer step on. The steps that are counted are those of all optimizers together."""
        steps = 0

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            nonlocal steps
            if steps == 0:
                _freeze()
                every = f"gc.collect(1) every {self.value} steps"
                injection.note_everywhere(f"gc.freeze() after the first step, then {every}")
                injection.check = lambda: "the script switches automatic collection on" if gc.isenabled() else ""
            elif steps % self.value == 0:
                gc.collect(1)
            steps += 1

        def act(module: Any) -> None:
            module.register_optimizer_step_post_hook(stepped)

        injection.refuse("no optimizer of torch.optim stepped")
        injection.when_imported("torch.optim.optimizer", act)

    def switch(self, injection: Injection) -> Switch:
        """On, nothing is collected: the blocks of steps that trials compare are too short for a rare gc.collect(1)."""
        if not gc.isenabled():
            raise CannotSwitch("the script has switched automatic collection off")

        def turn(on: bool) -> None:
            if on:
                _freeze()
            else:
                gc.unfreeze()
                gc.enable()

        def why_none() -> str:
            return "the script switches automatic collection on" if gc.isenabled() else ""

        return Switch(turn, why_none, "gc.freeze(), and no automatic collection", collects=True)


def _freeze() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()
