"""Small trainings with one fault each that only the whole run shows: `python trainings.py CASE [--fixed]`.

A case is a class, named as it is with underscores. It changes one part of a plain training of 2,500 steps of some 3 ms,
with an evaluation and a checkpoint after each epoch. `told.json` gets how long the run took, without imports, and what
of it went to the places where the faults are. A case of many ranks runs under torchrun.
"""

import argparse
import gc
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

FEATURES, WIDTH, CLASSES, BATCH = 256, 512, 10, 64
VALIDATION_BATCHES = 100
CHECKPOINT, STARTED, TOLD = Path("checkpoint.pt"), Path("started"), Path("told.json")


class Rows(Dataset):  # type: ignore[misc]
    """Batches that are in memory; `fetch(at)` is called before one is given."""

    def __init__(self, count: int, fetch: Any, size: int = BATCH) -> None:
        self.count, self.fetch = count, fetch
        self.rows = torch.randn(8, size, FEATURES)
        self.labels = torch.randint(CLASSES, (8, size))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.fetch(at)
        return self.rows[at % 8], self.labels[at % 8]


class Training:
    """The plain one. `bad`: with the fault."""

    epochs, steps = 5, 500
    loader: dict[str, Any] = {}

    def __init__(self, bad: bool) -> None:
        torch.manual_seed(0)
        self.bad, self.epoch, self.number = bad, 0, 0
        self.rank, self.ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        layers = [torch.nn.Linear(FEATURES, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
        self.model: torch.nn.Module = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))
        if self.ranks > 1:
            torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.output = self.loss = torch.zeros(())
        self.spent_s = dict[str, float]()

    def run(self) -> None:
        """From the first epoch to the last."""
        batches = self.batches()
        while self.epoch < self.epochs:
            iterator = self.clocked("wait", iter, batches)
            while (batch := self.clocked("wait", next, iterator, None)) is not None:
                self.step(*batch)
                self.number += 1
                self.clocked("after_step", self.after_step)
            del iterator
            self.clocked("after_epoch", self.after_epoch)
            self.epoch += 1

    def clocked(self, name: str, call: Callable[..., Any], *given: object) -> Any:
        """Call it, and add the time to that name's."""
        since = time.perf_counter()
        result = call(*given)
        self.spent_s[name] = self.spent_s.get(name, 0.0) + time.perf_counter() - since
        return result

    def batches(self) -> Any:
        """What each epoch goes over."""
        return DataLoader(Rows(self.steps, self.fetch), batch_size=None, **self.loader)

    def step(self, rows: torch.Tensor, labels: torch.Tensor) -> None:
        self.output = self.model(rows)
        self.optimizer.zero_grad()
        self.clocked("backward", self.backward, labels)
        self.clocked("within", self.within)
        self.optimizer.step()

    def backward(self, labels: torch.Tensor) -> None:
        self.loss = cross_entropy(self.output, labels)
        self.loss.backward()

    def fetch(self, at: int) -> None:
        """Before a batch to train on."""

    def fetch_to_validate(self, at: int) -> None:
        """Before a batch to evaluate on."""

    def within(self) -> None:
        """In a step, before the optimizer's."""

    def after_step(self) -> None:
        """Before the next batch is asked for."""

    def after_epoch(self) -> None:
        self.evaluate()
        if not self.rank:
            self.save()

    def evaluate(self, size: int = BATCH) -> None:
        """On as many rows, whatever the size of a batch."""
        count = VALIDATION_BATCHES * BATCH // size
        self.model.eval()
        with torch.no_grad():
            for rows, labels in DataLoader(Rows(count, self.fetch_to_validate, size), batch_size=None):
                cross_entropy(self.model(rows), labels)
        self.model.train()

    def save(self) -> None:
        torch.save([self.model.state_dict(), self.optimizer.state_dict(), self.epoch + 1, self.number], CHECKPOINT)


class ColdCache(Training):
    def fetch(self, at: int) -> None:
        if self.bad and not self.epoch:
            time.sleep(0.010)


class SlowEvaluation(Training):
    """Row by row."""

    def after_epoch(self) -> None:
        self.evaluate(1 if self.bad else BATCH)


class FrequentEvaluation(Training):
    def after_step(self) -> None:
        if self.bad and self.number % 25 == 0:
            self.evaluate()


class EvaluationWaits(Training):
    """For its loader."""

    def fetch_to_validate(self, at: int) -> None:
        if self.bad:
            time.sleep(0.008)


class BlockingCheckpoints(Training):
    """Of 200 MB, every 250 steps; by another thread where it is fixed."""

    def __init__(self, bad: bool) -> None:
        super().__init__(bad)
        self.moments = [torch.ones(1_000_000) for _ in range(50)]
        self.saving: threading.Thread | None = None

    def after_step(self) -> None:
        if self.number % 250:
            return
        if self.bad:
            torch.save(self.moments, "moments.pt")
            return
        if self.saving is not None:
            self.saving.join()
        copies = [one.clone() for one in self.moments]
        self.saving = threading.Thread(target=torch.save, args=(copies, "moments.pt"))
        self.saving.start()

    def run(self) -> None:
        super().run()
        if self.saving is not None:
            self.saving.join()


class FrequentCheckpoints(Training):
    def after_step(self) -> None:
        if self.bad and self.number % 5 == 0:
            self.save()


class LoaderStutter(Training):
    """A batch of 50."""

    def fetch(self, at: int) -> None:
        if self.bad and at % 50 == 49:
            time.sleep(0.080)


class StepStutter(Training):
    """Every 50 steps the quantiles of all weights."""

    def within(self) -> None:
        if self.bad and self.number % 50 == 49:
            torch.cat([one.detach().flatten() for one in self.model.parameters()] * 3).sort()


class LoggingStutter(Training):
    """Every 50 steps, between two of them."""

    def after_step(self) -> None:
        if self.bad and self.number % 50 == 0:
            time.sleep(0.080)


class MemoryLeak(Training):
    """The gradients of every fourth step are kept."""

    def __init__(self, bad: bool) -> None:
        super().__init__(bad)
        self.gradients: list[list[torch.Tensor | None]] = []

    def within(self) -> None:
        if self.bad and self.number % 4 == 0:
            self.gradients.append([one.grad for one in self.model.parameters()])


class GrowingMetric(Training):
    """The accuracy over all predictions so far, in each step."""

    def __init__(self, bad: bool) -> None:
        super().__init__(bad)
        self.outputs: list[torch.Tensor] = []

    def within(self) -> None:
        if not self.bad:
            self.outputs.clear()
        self.outputs.append(self.output.detach())
        torch.cat(self.outputs).argmax(1)


class UncutGraph(Training):
    """Of a moving average of a parameter, every fourth step."""

    def __init__(self, bad: bool) -> None:
        super().__init__(bad)
        self.offset = torch.nn.Parameter(torch.zeros(CLASSES))
        self.optimizer.add_param_group({"params": [self.offset]})
        self.average = torch.zeros(CLASSES)

    def backward(self, labels: torch.Tensor) -> None:
        if not self.bad:
            self.average = self.average.detach()
        if self.number % 4 == 0:
            self.average = 0.99 * self.average + 0.01 * self.offset
        self.loss = cross_entropy(self.output + self.average, labels)
        self.loss.backward(retain_graph=True)


class SearchedList(Training):
    """For samples that were seen; a set where it is fixed."""

    def __init__(self, bad: bool) -> None:
        super().__init__(bad)
        self.seen: list[int] = []
        self.known = set[int]()

    def within(self) -> None:
        for sample in range(10 * self.number, 10 * self.number + 10):
            if sample not in (self.seen if self.bad else self.known):
                self.seen.append(sample)
                self.known.add(sample)


class SuddenlySlower(Training):
    """From half of the run on."""

    def within(self) -> None:
        if self.bad and 2 * self.number >= self.epochs * self.steps:
            time.sleep(0.003)


def open_files(_worker: int) -> None:
    """What a worker does first."""
    time.sleep(0.1)


class WorkersRestarted(Training):
    """In each of 25 epochs."""

    epochs, steps = 25, 100

    def __init__(self, bad: bool) -> None:
        super().__init__(bad)
        self.loader = {"num_workers": 2, "worker_init_fn": open_files, "persistent_workers": not bad}


class Collections(Training):
    """Rows that refer to each other, and so a collection every 100 steps."""

    def within(self) -> None:
        if self.bad:
            for _ in range(100):
                row: list[Any] = []
                row.append(row)
            if self.number % 100 == 99:
                gc.collect()


class IdleEpochEnds(Training):
    def after_epoch(self) -> None:
        super().after_epoch()
        if self.bad:
            time.sleep(0.8)


class LongPause(Training):
    """Once."""

    def within(self) -> None:
        if self.bad and self.number == 1_200:
            time.sleep(5.0)


class Restarts(Training):
    """Killed twice, four fifths into an epoch; it goes on from the last checkpoint."""

    def __init__(self, bad: bool) -> None:
        super().__init__(bad)
        if CHECKPOINT.exists():
            model, optimizer, self.epoch, self.number = torch.load(CHECKPOINT)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)

    def after_step(self) -> None:
        if self.bad and self.number in (900, 1_900):
            died = Path(f"died{self.number}")
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class StragglerComes(Training):
    """Of two ranks, from half of the run on."""

    def within(self) -> None:
        if self.bad and self.rank == 1 and 2 * self.number >= self.epochs * self.steps:
            time.sleep(0.004)


class StragglerStays(Training):
    """Of four ranks, by its loader."""

    steps = 250

    def fetch(self, at: int) -> None:
        if self.bad and self.rank == 2:
            time.sleep(0.008)


class Healthy(Training):
    """With evaluations and checkpoints."""


class HealthyPlain(Training):
    """Steps alone, without a DataLoader."""

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rows = Rows(self.steps, self.fetch)
        return [rows[at] for at in range(self.steps)]

    def after_epoch(self) -> None:
        pass


class HealthyWorkers(Training):
    """A loader with two workers that stay."""

    loader = {"num_workers": 2, "persistent_workers": True}


class HealthyRanks(Training):
    """Two of them."""


def cases() -> Iterator[tuple[str, type[Training]]]:
    """By the names that are asked for."""
    for one in Training.__subclasses__():
        yield re.sub(r"(?<!^)(?=[A-Z])", "_", one.__name__).lower(), one


def main() -> None:
    """Train, and say how long it took."""
    known = dict(cases())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=known)
    parser.add_argument("--fixed", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not STARTED.exists():
        STARTED.write_text(str(time.time()))
    training = known[given.case](not given.fixed)
    training.run()
    if not training.rank:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        told = {"s": time.time() - float(STARTED.read_text()), "spent_s": training.spent_s, "resident_bytes": resident}
        TOLD.write_text(json.dumps(told))
    if training.ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
