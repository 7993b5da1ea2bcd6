"""How long a step takes with k DataLoader workers: the one model that every rule on data loading asks.

A step is a pipeline of three stations, of which the slowest sets the pace in the long run (the bottleneck law of
operational analysis: Denning and Buzen, "The Operational Analysis of Queueing Network Models", 1978):

    k = 0     step = t + c + w
    k >= 1    step = max(t + h + beside, (c + w + h_w) / k, sharing * (c + h + h_w + u) / n) + beginnings
              t and u of a training that loads itself: less by WARMTH times the share of its step that loading takes

    the training    its thread computes for t, and takes each batch over in h; workers on n - 1 other cores, of which
                    one may be its sibling, add beside = (sharing - 1) (c + h_w) / (n - 1)
    the workers     each makes a batch in c of CPU time and w of waiting, and sends it in h_w
    the cores       n of them do all CPU work, the training's u included; `sharing` is what two that work at once lose
    beginnings      (k * start + c + w + h_w + h) / (steps of an epoch), where workers start anew with each
"""

from __future__ import annotations

from enum import Enum
from math import inf

from msgspec import Struct
from msgspec.structs import replace

SHARING = (1.0, 1.05, 1.3)
"""Times as long as alone, where all cores work: least, likely, most. Caches and memory are shared, and two logical
cores may be one. The likely one and WARMTH fit benchmarks/loaders.json best; all of it is of two cores."""

WARMTH = 0.2
"""A training that does not wait or load between its steps computes faster: caches stay warm, and cores awake. Of five
trainings of benchmarks/loaders.json 0.15 to 0.25 (mean 0.21)."""

NEAR = 0.05  # Share by which a step may be longer than with any number of workers, for fewer of them (our choice).
PER_CORE = 4  # Workers for each core, at most, where making batches mostly waits (our choice).
MOST = 16  # Workers that are advised at most, where the cores are not known (our choice).
MOST_TRIED = 1_024  # Workers that are looked at, whatever number of cores a damaged recording names (our choice).
SHOWN = (0, 1, 2, 4, 8)  # Numbers of workers in the table.


class Bound(str, Enum):
    """What sets the pace."""

    TRAINING = "the training"
    WORKERS = "the workers"
    CORES = "the cores"


class Throughput(Struct, frozen=True):
    """What a step, its batches and the machine take. Times are in ns per step, for all batches of one step."""

    training_ns: float  # t: of the training's thread, without making batches and without waiting for them.
    training_cpu_ns: float  # u: CPU time of the training, of all its threads.
    computing_ns: float  # c: CPU time of making the batches.
    waiting_ns: float  # w: in which making them waits, for storage, a network, a lock.
    handing_ns: float  # h: of the training's thread, until it has batches that are ready.
    sending_ns: float = 0.0  # h_w: of workers, to send the batches that they have made.
    cores: int | None = None  # n; None if that is not known: they are taken to suffice.
    workers: int = 0  # k: that there are.
    prefetch: int = 2  # p: batches that each worker is asked for ahead.
    epoch_steps: float = inf  # At whose end workers end; infinite where they persist, and where that is not known.
    start_ns: float = 0.0  # To start one worker.
    sharing: float = SHARING[1]  # See above.
    warmth: float = 0.0  # WARMTH where the CPU trains.

    @property
    def making_ns(self) -> float:
        """For a worker with a core of its own to make and send the batches of a step: c + w + h_w."""
        return self.computing_ns + self.waiting_ns + self.sending_ns

    @property
    def cpu_ns(self) -> float:
        """CPU time that a step with workers takes on all cores together: c + h + h_w + u."""
        return self.computing_ns + self.handing_ns + self.sending_ns + self.warmer * self.training_cpu_ns

    @property
    def warmer(self) -> float:
        """Share that is left of the training's own time, once workers load in its place."""
        loads_ns = self.computing_ns + self.waiting_ns
        return 1.0 if self.workers else 1.0 - self.warmth * loads_ns / max(self.training_ns + loads_ns, 1.0)

    def paces_ns(self, workers: int) -> dict[Bound, float]:
        """What a step takes at least by each station, with so many workers, at least one."""
        shared = 0.0 if self.cores is None else (self.sharing - 1) / max(self.cores - 1, 1)
        beside_ns = shared * (self.computing_ns + self.sending_ns)
        return {
            Bound.TRAINING: self.warmer * self.training_ns + self.handing_ns + beside_ns,
            Bound.WORKERS: self.making_ns / workers,
            Bound.CORES: self.sharing * self.cpu_ns / self.cores if self.cores else 0.0,
        }

    def beginning_ns(self, workers: int) -> float:
        """What starting workers adds to a step, over whole epochs."""
        return (workers * self.start_ns + self.making_ns + self.handing_ns) / self.epoch_steps if workers else 0.0

    def step_ns(self, workers: int) -> float:
        """The mean step with so many workers, in the long run."""
        if not workers:
            return self.training_ns + self.computing_ns + self.waiting_ns
        return max(self.paces_ns(workers).values()) + self.beginning_ns(workers)

    def bound(self, workers: int) -> Bound:
        """What sets the pace with so many workers: the training, unless another takes longer by more than NEAR."""
        paces = self.paces_ns(max(workers, 1))
        paces[Bound.TRAINING] *= 1 + NEAR
        return max(paces, key=paces.__getitem__) if workers else Bound.TRAINING

    @property
    def cores_left(self) -> int:
        """Whole cores that the present workers leave to the training, at least one."""
        busy = (self.computing_ns + self.sending_ns) / self.step_ns(self.workers) if self.workers else 0.0
        return max((self.cores or 1) - round(busy), 1)

    @property
    def most(self) -> int:
        """Workers that are advised at most: as many as cores beside the training's, more if they mostly wait."""
        if self.cores is None:
            return MOST
        most = PER_CORE * self.cores if self.waiting_ns > self.computing_ns else self.cores - 1
        return min(max(most, 1), MOST_TRIED)

    @property
    def advised(self) -> int:
        """The fewest workers whose step is within NEAR of the best: what there is now where none gains that."""
        candidates: list[int] = sorted({0, self.workers, *range(1, self.most + 1)})
        best_ns = min(map(self.step_ns, candidates))
        if self.step_ns(self.workers) <= (1 + NEAR) * best_ns:
            return self.workers
        return min(count for count in candidates if self.step_ns(count) <= (1 + NEAR) * best_ns)

    def delivery_ns(self, workers: int) -> float:
        """The least ns from the batches of one step to those of the next that so many workers and the cores allow."""
        paces = self.paces_ns(workers)
        return max(paces[Bound.WORKERS], paces[Bound.CORES])

    def cheaper(self, share: float) -> Throughput:
        """The same with making batches shorter by this share."""
        return replace(self, computing_ns=(1 - share) * self.computing_ns, waiting_ns=(1 - share) * self.waiting_ns)

    def table(self) -> dict[int, float]:
        """ns of the step by numbers of workers."""
        return {count: self.step_ns(count) for count in SHOWN}
