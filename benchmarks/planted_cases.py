"""The planted cases of sample_traces: what they are, where they were tried, and what their fix gained."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "sample_traces"
REMADE = ROOT / "build" / "recordings"  # Where recordings are made that the repository does not keep.

LEVELS = ("weak", "medium", "strong")

WORTH = 1.03  # A case counts if its speed-up is surely more than this.


@dataclass(frozen=True)
class Machine:
    """What ran it, without its name."""

    cpu: str
    cores: int
    load: float  # Processes that wanted to run in the minute before.
    torch: str
    gpu: str | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None  # Of the GPU's multiprocessors, at that moment and at most.
    most_clock_mhz: float | None = None


@dataclass(frozen=True)
class Truth:
    """What a fix gains, measured without a profiler. Times are ns per step, one for each block."""

    bad_ns: tuple[int, ...]
    fixed_ns: tuple[int, ...]
    speedup: float  # Median over pairs of blocks.
    low: float
    high: float  # 95 % interval of that, by bootstrap over pairs.
    machine: Machine

    @property
    def counts(self) -> bool:
        """Whether there surely is something to gain."""
        return self.low > WORTH

    @property
    def noise(self) -> float:
        """From run to run: coefficient of variation of the bad blocks."""
        return stdev(self.bad_ns) / mean(self.bad_ns)


@dataclass(frozen=True)
class Case:
    """A training with a fault and a switch, as its about.toml tells."""

    folder: Path  # Of a control in controls/, of another case in planted/, in the folder of its family.
    id: str
    title: str
    planted: str
    fixed: str
    expected: tuple[str, ...]
    """Rules any of which names the planted fault. Empty: nothing is to be found, or no rule knows this fault."""
    kind: str  # "structural", "kernel", "mixed" or "control".
    needs: tuple[str, ...]  # Where it can be tried: "cpu", "gpu", or in several processes with "gloo" or "nccl".
    faults: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a mixed case: the rules that name each of its faults."""
    recordings: tuple[str, ...] = ("medium",)
    """Those that the repository keeps: of one level, and where it adds something "strong_fixed"."""
    injections: tuple[str, ...] = ()
    """What the switch changes, as `diagnose try` names it, where it can inject just that (on two cores)."""
    recorded_steps: int = 5
    """Fewer where a step has so many ops that its recordings would take megabytes of the repository."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.folder.name

    @property
    def family(self) -> str:
        """That of the rule which names it, "mixed" or "controls"."""
        return self.folder.parent.name

    @property
    def module(self) -> str:
        """Its training, as `python -m` takes it."""
        return ".".join([*self.folder.relative_to(ROOT).parts, "make"])

    @property
    def is_control(self) -> bool:
        """Whether it is healthy."""
        return self.kind == "control"

    @property
    def subsets(self) -> list[tuple[str, ...]]:
        """Faults that can be fixed together, short of all of them."""
        return [some for size in range(1, len(self.faults)) for some in combinations(sorted(self.faults), size)]


@dataclass(frozen=True)
class Trial:
    """A case at one level on one kind of device."""

    case: Case
    on_gpu: bool
    level: str

    @property
    def name(self) -> str:
        """Of its recording and its truth within the case."""
        return f"gpu_{self.level}" if self.on_gpu else self.level

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return 2 if ("nccl" if self.on_gpu else "gloo") in self.case.needs else 1

    def program(self, *words: str) -> list[str]:
        """The module of its case and its arguments, for more steps than anything makes."""
        device = "cuda" if self.on_gpu else "cpu"
        return [self.case.module, "--level", self.level, "--steps", "1000000", "--device", device, *words]

    @property
    def is_kept(self) -> bool:
        """Whether the repository keeps its recording."""
        return self.level in self.case.recordings

    @property
    def fixed_is_kept(self) -> bool:
        """The same of the recording without the fault."""
        return f"{self.level}_fixed" in self.case.recordings

    @property
    def recording(self) -> Path:
        """What `diagnose profile` recorded of the bad variant."""
        return self._folder(self.is_kept) / self.name

    @property
    def fixed_recording(self) -> Path:
        """What it recorded of the fixed one."""
        return self._folder(self.fixed_is_kept) / f"{self.name}_fixed"

    def _folder(self, kept: bool) -> Path:
        return self.case.folder if kept else REMADE / self.case.name

    def truth(self, fixed: tuple[str, ...] = ()) -> Truth | None:
        """What was measured with these faults fixed, or all if none is named; None if nothing was."""
        return truths(self.case).get("+".join([self.name, *fixed]))

    def keep(self, truth: Truth, fixed: tuple[str, ...] = ()) -> None:
        """Write a truth beside the others of its case."""
        known = {name: asdict(one) for name, one in truths(self.case).items()}
        known["+".join([self.name, *fixed])] = asdict(truth)
        text = json.dumps(dict(sorted(known.items())), indent=1)
        (self.case.folder / "truth.json").write_text(text + "\n", encoding="utf-8")


def truths(case: Case) -> dict[str, Truth]:
    """All that was measured of a case, by the trial's name and the faults that were fixed."""
    path = case.folder / "truth.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: truth_from(**found) for name, found in known.items()}


def truth_from(bad_ns: list[int], fixed_ns: list[int], machine: dict[str, object], **interval: float) -> Truth:
    """As it was written."""
    return Truth(tuple(bad_ns), tuple(fixed_ns), machine=Machine(**machine), **interval)  # type: ignore[arg-type]


def cases() -> list[Case]:
    """All of them, by id."""
    import tomllib

    found = []
    for path in (*SAMPLES.glob("planted/*/*/about.toml"), *SAMPLES.glob("controls/*/about.toml")):
        about = tomllib.loads(path.read_text(encoding="utf-8"))
        lists = {name: tuple(about[name]) for name in about.keys() & {"expected", "needs", "recordings", "injections"}}
        faults = {name: tuple(rules) for name, rules in about.get("faults", {}).items()}
        found.append(Case(folder=path.parent, **{**about, **lists, "faults": faults}))
    return sorted(found, key=lambda one: one.id)


def trials(some: list[Case]) -> Iterator[Trial]:
    """Every level on every device that a case can be tried on; the level of all cases first that is kept of most."""
    for level in ("medium", "strong", "weak"):
        for on_gpu in (False, True):
            places = ("gpu", "nccl") if on_gpu else ("cpu", "gloo")
            yield from (Trial(case, on_gpu, level) for case in some if set(places) & set(case.needs))
