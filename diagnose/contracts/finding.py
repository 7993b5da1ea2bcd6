"""What a rule says: findings with evidence, edits and fixes; and what becomes of them once they are priced."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec
from msgspec import Struct

from diagnose.contracts.timeline import Spot
from diagnose.fixes.catalogue import parsed
from diagnose.fixes.setting import Safety, Setting
from diagnose.replay.edits import Edit
from diagnose.replay.saving import Basis
from diagnose.replay.shown import Change
from diagnose.trace.frames import Site


class Level(str, Enum):
    """How sure a finding is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    def lowered(self) -> Level:
        """One level less sure; low stays low."""
        return Level.MEDIUM if self is Level.HIGH else Level.LOW


class RuleName(Protocol):
    """The rule that found something, as people know it."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def code(self) -> str: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102


class Evidence(msgspec.Struct, frozen=True):
    """One sentence with the number that it is about."""

    text: str
    value: float | None = None  # None: it has no number.
    unit: str = ""  # Of `value`, as "ns" or "share".
    primary: bool = False

    def __post_init__(self) -> None:
        as_python = getattr(self.value, "item", None)  # Of a number of numpy, which JSON does not take.
        if as_python is not None:
            msgspec.structs.force_setattr(self, "value", as_python())


class Confidence(msgspec.Struct, frozen=True):
    """How sure, and why."""

    level: Level
    why: str


class Fix(msgspec.Struct, frozen=True):
    """A change to make."""

    do: str  # One imperative sentence.
    before: str = ""  # Code as it is, and
    after: str = ""  # as it should be; empty: none is shown.
    safety: Safety = Safety.SAME_NUMBERS
    effort: int = 1  # 1: a line or a flag, 2: some lines, 3: a change of design.
    link: str = ""
    trial: str | None = None
    """Name of the setting that it changes (`diagnose.fixes`): `env:NAME=VALUE ...`, `patch:...` or `wrap:...`. None: it
    is advice, which can neither be tried nor patched."""

    @staticmethod
    def of(setting: Setting, do: str = "", before: str | None = None, after: str | None = None) -> Fix:
        """The fix that sets this setting; its words are the setting's own where they are not given."""
        words = setting.words()
        return Fix(
            do=do or words.do,
            before=words.before if before is None else before,
            after=words.after if after is None else after,
            safety=setting.changes,
            effort=setting.effort,
            link=setting.link,
            trial=setting.name,
        )

    @property
    def setting(self) -> Setting | None:
        """What it changes; None of advice, and of names of another version of diagnose."""
        return None if self.trial is None else parsed(self.trial)


class Kind(str, Enum):
    """What a finding is, as its rule says."""

    FAULT = "fault"  # Time that goes without a change of results, by a change at one place or by a setting.
    OPTION = "option"  # Another trade: numbers beyond rounding, the model, the training, or how all of it runs.
    WHERE_TO_LOOK = "where_to_look"  # Where time goes, without a change that is known to save it.


class Finding(Struct, frozen=True):
    """Something that costs time, as a rule found it: what the fix would change is in `edits`, what it saves is not."""

    evidence: tuple[Evidence, ...]  # The first is the primary one.
    edits: tuple[Edit, ...]
    fixes: tuple[Fix, ...]
    confidence: Confidence
    site: Site | None = None
    title: str = ""  # One line; empty: the rule's own title.
    kind: Kind = Kind.FAULT
    basis: Basis = Basis.REPLAYED
    host_bound: bool = False  # Whether it is about host time, which profilers lengthen.
    phase: str = ""
    """The phase (of `Timed.phases_ns`) that it is about. Timed steps of kinds that were not recorded take longer in
    some phases: its fix also ends what they take longer in this one."""
    per_sample: bool = False  # It does more in a longer step: it saves nothing of the step, nor together with others.
    unless_above: bool = False  # It says where time goes, not why: left out if other findings explain most of it.
    after: frozenset[str] = frozenset()  # Codes of rules whose fixes have to come first, or its own does not work.
    also: frozenset[str] = frozenset()  # Ids of other rules whose findings it tells, as they have the same fix.

    @property
    def names_no_fix(self) -> bool:
        """Whether it only says what would be saved if something took no time."""
        return self.basis is Basis.AT_MOST


class Risk(Struct, frozen=True):
    """Something that costs no time now, and may end the run: it has no price."""

    evidence: tuple[Evidence, ...]  # The first is the primary one.
    fixes: tuple[Fix, ...]
    confidence: Confidence
    site: Site | None = None
    title: str = ""  # One line; empty: the rule's own title.


class Caution(Struct, frozen=True):
    """Something about the measurement that makes findings less sure."""

    what: str
    effect: str
    lowers_host: bool = False  # Findings about host time become less sure.
    lowers_all: bool = False
    noise_share: float = 0.0  # Of the step, by which its time may be off: a smaller saving is of low confidence.


class Clean(Struct, frozen=True):
    """Looked and fine, with what was measured."""

    why: str


class NotApplicable(Struct, frozen=True):
    """There is nothing here that the rule is about."""

    why: str


class OutcomeKind(str, Enum):
    """How a rule ended. Always exactly one."""

    FOUND = "found"
    CLEAN = "clean"
    CANNOT_TELL = "cannot_tell"
    NOT_APPLICABLE = "not_applicable"
    CRASHED = "crashed"


class Outcome(msgspec.Struct, frozen=True):
    """How one rule ended on one rank."""

    rule: str
    code: str
    outcome: OutcomeKind
    why: str  # found: how many; clean: what was measured; cannot_tell: what is missing and how to record it.
    how_to_record_it: str = ""


class PricedSaving(msgspec.Struct, frozen=True):
    """ns per step: low, likely and high alone, and what a report shows: on top of those above."""

    low_ns: int
    likely_ns: int
    high_ns: int
    basis: Basis
    after_above_ns: int | None  # What it adds once all findings ranked above it are fixed.
    replayed_ns: tuple[int, int, int] | None  # With the fix: low, likely, high. The range also has the replay's doubt.
    after_above_range_ns: tuple[int, int] | None = None  # Low and high of that.
    others_ns: int = 0  # Of the likely saving alone: what other ops are assumed to get faster, where the CPU trains.


class Where(msgspec.Struct, frozen=True):
    """Which ranks, and which steps were looked at."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]


class RankedFinding(msgspec.Struct, frozen=True):
    """A finding with its price and its place in the order; what reports and other programs see."""

    rule: str
    code: str
    title: str
    kind: Kind
    rank_order: int
    where: Where
    evidence: tuple[Evidence, ...]
    saving: PricedSaving
    share_of_step: float  # The likely saving that is shown, over the step.
    confidence: Confidence
    fixes: tuple[Fix, ...]
    site: Site | None
    minor: bool  # Below 1 % of the step: listed apart.
    hidden: tuple[int, int, int] | None  # ns per step (low, likely, high), once cards are fixed, if much more.
    changes: tuple[Change, ...]  # What the fix was replayed as.
    spots: tuple[Spot, ...]  # Where on the timeline that lies: the longest places.
    spot_count: int  # How many places there are.
    per_sample: bool = False
    """The saving is per sample: the step itself gets longer, and what all would save together leaves it out."""
    also: tuple[str, ...] = ()  # Other rules that found a part of it: the same change is their fix.

    @property
    def rules(self) -> tuple[str, ...]:
        """Ids of all rules that found it, first the one that found the largest part."""
        return self.rule, *self.also

    @property
    def shown_ns(self) -> tuple[int, int, int]:
        """The saving that a report shows, low, likely and high: on top of those above, where that was asked."""
        saving = self.saving
        if saving.after_above_ns is None or saving.after_above_range_ns is None:
            return saving.low_ns, saving.likely_ns, saving.high_ns
        low_ns, high_ns = saving.after_above_range_ns
        return low_ns, saving.after_above_ns, high_ns

    @property
    def shortens(self) -> bool:
        """Whether it is not minor, and names a fix that shortens the step."""
        return not (self.minor or self.per_sample or self.kind is Kind.WHERE_TO_LOOK)

    @property
    def sure(self) -> bool:
        """Whether its confidence is high or medium: then it counts in what all would save together."""
        return self.confidence.level is not Level.LOW


def names(asked: str, finding: RankedFinding) -> bool:
    """Whether a command line asks for this finding: by its number, its rule or the rule's code."""
    return asked in (str(finding.rank_order), finding.rule) or asked.upper() == finding.code


def why_unknown(asked: Sequence[str], findings: Sequence[RankedFinding]) -> str:
    """A sentence on the first that names no finding, and which there are; empty if each names one."""
    unknown = [one for one in asked if not any(names(one, finding) for finding in findings)]
    there = ", ".join(f"{one.rank_order} {one.rule}" for one in findings) or "none"
    return f"--fix {unknown[0]} names no finding of this run. There are: {there}." if unknown else ""


class ShownRisk(msgspec.Struct, frozen=True):
    """A risk with its rule; what reports and other programs see. It saves nothing, and has no place in the order."""

    rule: str
    code: str
    title: str
    ranks: tuple[int, ...]  # On which it was found; the rest is of the first.
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    fixes: tuple[Fix, ...]
    site: Site | None


class RuleThreshold(msgspec.Struct, frozen=True):
    """A number that decides what a rule finds."""

    name: str
    value: float
    reason: str


class RulePage(msgspec.Struct, frozen=True):
    """What a rule that ran says about itself."""

    rule: str
    code: str
    title: str
    summary: str
    sections: dict[str, str]  # Text by heading: why it costs, how to fix, ignore when, sources.
    thresholds: tuple[RuleThreshold, ...]  # As they were set in this analysis.
    looks_at: tuple[str, ...]  # Facts it asks for.


class Together(msgspec.Struct, frozen=True):
    """What several findings would save together, per step."""

    low_ns: int
    likely_ns: int
    high_ns: int


class ReplayQuality(msgspec.Struct, frozen=True):
    """How well the replay that priced the findings explains the recording."""

    step_time_ns: int
    error_share: float
    unexplained_share: float
    together: Together | None = None  # What the faults that are sure would save together; None without any.
    faults_together: Together | None = None  # The same with faults of low confidence; None without any.
    all_together: Together | None = None  # The same with all options, and with what pays only after them; None without.
