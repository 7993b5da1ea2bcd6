"""Settings of DataLoaders."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .interfaces import Editor, Edits, Given, Injection, no_gpu
from .setting import WHEN_MADE, Argument, Code, Loop, Multiple, Run, Safety, Setting, Words, flag, times, whole

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import Made, RankManifest

OF_WORKERS = ("persistent_workers", "prefetch_factor")  # A DataLoader without workers refuses them.

SHARES = "the dataset is iterable: each worker would yield all items, unless the dataset splits them"
OF_ITERABLE = "_InfiniteConstantSampler"  # The sampler by which a DataLoader of PyTorch 2 takes an iterable dataset.

OF_TRANSFORMERS = {
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "pin_memory": "dataloader_pin_memory",
    "persistent_workers": "dataloader_persistent_workers",
}

LINKS = {
    "pin_memory": "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    "batch_size": "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
}

WORDS = {
    "num_workers": "Load batches in worker processes.",
    "prefetch_factor": "Prefetch more batches.",
    "pin_memory": "Pin batches in the DataLoader, and copy with non_blocking=True.",
    "persistent_workers": "Keep workers alive between epochs.",
}


@dataclass(frozen=True)
class LoaderArgument(Setting):
    """An argument of all DataLoaders; `batch_size` as a multiple of the script's own."""

    form = "patch:DataLoader"
    takes = {
        "num_workers": whole(1),
        "prefetch_factor": whole(1),
        "pin_memory": flag,
        "persistent_workers": flag,
        "batch_size": times,
    }

    @property
    def link(self) -> str:
        return LINKS.get(self.argument, "https://docs.pytorch.org/docs/stable/data.html")

    @property
    def changes(self) -> Safety:
        """A batch size changes the training."""
        return Safety.NEEDS_JUDGEMENT if self.argument == "batch_size" else Safety.SAME_NUMBERS

    @property
    def batch_factor(self) -> int:
        """The factor of a larger batch size; 1 for all other arguments."""
        return self.value.factor if isinstance(self.value, Multiple) else 1

    def words(self) -> Words:
        if isinstance(self.value, Multiple):
            larger = f"DataLoader(dataset, batch_size={self.value.factor} * batch_size)"
            return Words(f"Raise the batch size {self.value.factor}x.", after=larger)
        after = f"DataLoader(dataset, batch_size, {self.argument}={self.value!r})"
        return Words(WORDS[self.argument], "DataLoader(dataset, batch_size)", after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        if loop is Loop.TRANSFORMERS and self.batch_factor > 1:
            name = "per_device_train_batch_size"
            return Argument("transformers.TrainingArguments", name, Code(f"{self.batch_factor} * {name}"))
        if loop is Loop.TRANSFORMERS and self.argument in OF_TRANSFORMERS:
            return Argument("transformers.TrainingArguments", OF_TRANSFORMERS[self.argument], self.value)
        return "where the DataLoader is made, as in train_dataloader()" if loop is Loop.LIGHTNING else None

    def caution(self, run: Run) -> str:
        if self.argument == "num_workers" and any(loader.sampler == OF_ITERABLE for loader in run.loaders):
            return "First split the iterable dataset among workers with get_worker_info()."
        return ""

    def made(self, run: Run) -> tuple[str, tuple[Made | None, ...]] | None:
        """None for a batch size: a multiple is no value that can be written into a call."""
        return None if self.batch_factor > 1 else ("DataLoader", tuple(loader.made for loader in run.loaders))

    def in_force(self, run: Run) -> bool:
        """Whether all training loaders have the value, or a larger number; False for a multiple of the batch size."""
        has = [getattr(loader, self.argument, None) for loader in run.loaders]
        if isinstance(self.value, Multiple) or not has:
            return False
        if type(self.value) is int:
            return all(value is not None and value >= self.value for value in has)
        return all(value == self.value for value in has)

    def inject(self, injection: Injection) -> None:
        def prevented(given: Given) -> str:
            torch = sys.modules["torch"]
            if torch.utils.data.get_worker_info() is not None:
                return "the DataLoader is made in a worker"
            if self.argument == "num_workers" and isinstance(given.get("dataset"), torch.utils.data.IterableDataset):
                return SHARES
            if self.argument in OF_WORKERS and not given.get("num_workers", 0):
                return "the DataLoader has no workers"
            if self.argument == "pin_memory" and self.value:
                return _cannot_pin(torch)
            if self.batch_factor > 1 and (given.get("batch_sampler") is not None or not given.get("batch_size", 1)):
                return "the script builds its batches itself"
            return ""

        def act(module: Any) -> None:
            wanted = (lambda before: before * self.batch_factor) if self.batch_factor > 1 else None
            injection.change_argument(module.DataLoader, "__init__", "DataLoader", prevented, wanted)

        injection.when_imported("torch.utils.data.dataloader", act)

    switch = WHEN_MADE

    def took_effect(self, rank: RankManifest) -> str:
        """Empty if any loader that gave batches has the value; a batch size is not checked."""
        if self.batch_factor > 1 or any(
            getattr(loader, self.argument) == self.value for loader in rank.loaders if loader.asked
        ):
            return ""
        return f"no DataLoader that gave batches has {self.argument}={self.value}"

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        if self.batch_factor > 1:
            editor.refuse("it needs an edit by hand")
        iterable = any(loader.sampler == OF_ITERABLE for loader in editor.rank.loaders)
        if self.argument == "num_workers" and iterable:
            editor.refuse(SHARES)
        if self.argument in OF_WORKERS:
            return editor.of_workers(self.argument, self.value)
        return editor.where_made("DataLoader", editor.loaders_made, self.argument, self.value)


def _cannot_pin(torch: Any) -> str:
    accelerator = getattr(torch, "accelerator", None)  # Since torch 2.6.
    return "" if accelerator is not None and accelerator.is_available() else no_gpu(torch)
