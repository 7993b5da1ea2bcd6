"""What trials have found: the JSON of `diagnose try --json`, and what its text is written from.

Speed-ups are factors: the step without the fix over the step with it. Unknown is None.
"""

from typing import Literal

import msgspec

SCHEMA_VERSION = 1

Losses = Literal["same", "rounding", "differ", "not_deterministic"]
Verdict = Literal["keep", "no_gain", "slower", "changes_numbers", "not_injected", "out_of_memory", "inconclusive"]


class Range(msgspec.Struct, frozen=True):
    """A value and how far it may be off."""

    low: float
    likely: float
    high: float


class Both(msgspec.Struct, frozen=True, rename={"with_": "with"}):
    """A value without and with the fix."""

    without: float
    with_: float


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU once the steps were timed, as NVML knows it: medians over runs."""

    sm_clock_mhz: Both | None
    temperature_c: Both | None
    power_w: Both | None


class Numbers(msgspec.Struct, frozen=True):
    """How far results with a fix are from those without, for the same batch: as shares of the results' spread."""

    largest: float
    typical: float  # Mean absolute difference.
    kind: Literal["same", "rounding", "differ", "not_deterministic"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A fix that was tried, or several together."""

    rule: str  # Ids of several are joined by " + ".
    numbers: tuple[int, ...]  # Of the findings, as `diagnose analyze` numbers them.
    fix: str  # What to do, as a sentence.
    trial: tuple[str, ...]  # What was injected, as in `Fix.trial`.
    injected: str | None  # Where it took effect.
    predicted: Range | None
    measured: Range | None  # Interval of 95 %, right at all looks at once; None: not measured.
    measured_by: Literal["blocks", "runs"] = "runs"
    """Pairs of blocks of steps in one running process, or pairs of runs."""
    added: Range | None = None  # As `measured`, on top of `on_top_of`; None: it was measured alone only.
    on_top_of: tuple[int, ...] = ()  # Findings whose fixes both sides of `added` had.
    outputs: Numbers | None = None  # Of the model, both ways on one batch; None: that was not computed.
    updates: Numbers | None = None  # Of parameters in one step of the optimizer, on copies.
    pairs: int
    steps: int  # Timed in each run, or block.
    losses: Losses | None  # None: no backward pass began at a number.
    losses_compared: int
    peak_bytes: Both | None
    warmup_s: Both | None
    """From the start of the process to the first timed step; of blocks: until steps with the fix became no faster."""
    pays_after_steps: int | None
    """Steps after which a longer warm-up is made up for; None: it is not longer, or never is."""
    confirms: bool = False  # All that is kept, in fresh runs against the unmodified script.
    batch_factor: int = 1  # Times as many samples in a step with the fix: the speed-up is of a sample's time.
    gpu: GpuState | None = None  # None without NVML.
    verdict: Verdict
    why: str  # A sentence.

    @property
    def found(self) -> Range | None:
        """What the verdict is by: measured on top of others, else alone."""
        return self.added or self.measured


class NotTried(msgspec.Struct, frozen=True):
    """A fix that was not tried."""

    rule: str
    number: int
    fix: str
    why: str


class Baseline(msgspec.Struct, frozen=True):
    """The script as it is, over all arms without a fix."""

    step_ns: Range  # Least, median and most.
    noise_share: float  # By which equal arms differ: a standard deviation.
    arms: int  # 0: steps were timed in blocks of one run only.


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All trials of a run."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    baseline: Baseline | None  # None: the script has not been run twice as it is.
    trials: tuple[Trial, ...]
    together: Trial | None
    keep: tuple[str, ...]  # Rules whose fixes pay.
    not_tried: tuple[NotTried, ...]
    notes: tuple[str, ...]  # Sentences on the machine and the run.
    complete: bool  # Whether all trials came to their end.

    def of(self, rule: str, trial: str | None) -> Trial | None:
        """What was found of this fix alone, by the value that was best; None if it was not tried."""
        some = (one for one in self.trials if one.rule == rule and len(one.trial) == 1)
        return next((one for one in some if _setting(one.trial[0]) == _setting(trial or "")), None)


def _setting(name: str) -> str:
    """Without its value: trials may have found a better one."""
    return name.partition("=")[0]
