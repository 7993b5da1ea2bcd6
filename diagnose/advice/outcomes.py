"""How each rule ended, and how to record what is missing.

Facts speak of torch.profiler, and of all ways to record what they lack.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from diagnose.advice.ranking import Ranked
from diagnose.contracts.diagnosis import Absent, Sections
from diagnose.contracts.finding import Finding, Fix, Outcome, OutcomeKind, RuleName
from diagnose.facts.core.base import Facts, Failed, Missing, optional
from diagnose.facts.core.run import trains_on_cpu
from diagnose.trace.model import Rank

Hinted = TypeVar("Hinted", Absent, Outcome)

_TORCH = "Nsight Systems does not record this. Record with diagnose profile."

NSIGHT = {
    "device work": "Record with nsys profile --trace=cuda,nvtx.",
    "launches of device work": "Record with nsys profile --trace=cuda.",
    "runtime calls": "Record with nsys profile --trace=cuda.",
    "framework ops": "Record with nsys profile --pytorch=autograd-nvtx.",
    "shapes": "Record with nsys profile --pytorch=autograd-shapes-nvtx.",
    "marked steps": 'Mark them: torch.cuda.nvtx.range_push("step") before each step and range_pop() after it.',
    "backward passes": "Record with nsys profile --pytorch=autograd-nvtx.",
    "the backward pass": "Record with nsys profile --pytorch=autograd-nvtx.",
    "three steps or more": "Record more steps.",
    "DataLoader fetches": "Record with nsys profile --pytorch=autograd-nvtx.",
    "call stacks": "Record with diagnose profile --tracer nsys, or with nsys profile --python-sampling=true.",
    "memory events": "Record with diagnose profile --tracer nsys --memory.",
    "sizes of collectives": "Export with nsys export --include-blobs=true, which keeps NCCL's own data.",
    "garbage collections": _TORCH,
    "checkpoints": _TORCH,
}
"""By what is missing."""

_NOTES = {
    "No framework ops were recorded.": "Kernels have no ops, and all CPU time between calls counts as Python. "
    "Use --pytorch=autograd-nvtx.",
    "No training steps are marked.": "All figures are for the whole recorded window. Mark steps with NVTX ranges.",
    "Synchronisation events were not recorded.": "Which event a stream waits for is inferred.",
    "Input shapes were not recorded.": "FLOPs and bytes of ops are unknown. Use --pytorch=autograd-shapes-nvtx.",
    "Call stacks were not recorded.": "Source lines are unknown. diagnose profile --tracer nsys finds them.",
}
_NOTES_ON_CPU = {"No device work was recorded.": "The training computes on the CPU."}

PROFILED = "profiled"  # What a recording of `diagnose profile` holds beside its trace.

ASKS = {
    "stacks": re.compile(r"with_stack=True|\bstacks\b"),
    "shapes": re.compile(r"record_shapes=True"),
    "memory": re.compile(r"profile_memory=True|diagnose profile[^,.]* --memory"),
    "ops": re.compile(r"ProfilerActivity\.CPU"),
    "device": re.compile(r"ProfilerActivity\.CUDA"),
    PROFILED: re.compile(r"(?<!as )(?<!of )\bdiagnose profile\b(?! --|, num_workers| does)"),
}
"""By what a recording holds, how hints ask for it."""

NOTHING_MORE = "This recording does not show it."
LOOK = Fix("Zoom into this time in the HTML timeline (--html).")


def held(rank: Rank) -> frozenset[str]:
    """Those keys of ASKS that the recording already has: no hint needs to ask for them."""
    known = {option for option in ASKS if rank.provenance.knows(option)}
    return frozenset(known | ({PROFILED} if rank.context is not None else set()))


def asked(text: str, has: frozenset[str]) -> bool:
    """Whether a text asks for something, and only for what the recording has (`has`: keys of ASKS)."""
    wanted = {option for option, words in ASKS.items() if words.search(text)}
    return bool(wanted) and wanted <= has


def without(hint: str, has: frozenset[str]) -> str:
    """A hint without the ways to record that this recording has taken; NOTHING_MORE if no way is left.

    >>> without("Record with diagnose profile, or save inside record_function.", frozenset({"profiled"}))
    'Save inside record_function.'
    """
    left = []
    for sentence in hint.removesuffix(".").split(". "):
        ways = re.split(r", or |, (?=with )", sentence)
        open_ways = [way for way in ways if not asked(way, has)]
        if len(open_ways) < len(ways) and open_ways:
            open_ways[0] = _whole(open_ways[0])
        left += [f"{', or '.join(open_ways)}." if len(open_ways) < len(ways) else f"{sentence}."] if open_ways else []
    return " ".join(left) or NOTHING_MORE if hint else hint


def _whole(way: str) -> str:
    """The rest of a hint as the begin of a sentence: "Record with diagnose profile" of "diagnose profile"."""
    if re.match(r"with |diagnose |\w+=", way):
        return f"Record {'' if way.startswith('with ') else 'with '}{way}"
    return way[:1].upper() + way[1:]


def in_findings(rank: Rank, found: Sequence[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings without fixes that only ask to record what is there; with LOOK where no other fix is left."""
    has = held(rank)

    def is_open(fix: Fix) -> bool:
        return not (fix.do.startswith("Record") and asked(f"{fix.do} {fix.after}", has))

    left = [(page, one, tuple(filter(is_open, one.fixes))) for page, one in found]
    return [(page, replace(one, fixes=fixes or (LOOK,) * bool(one.fixes))) for page, one, fixes in left]


def in_sections(one: Sections, facts: Facts) -> Sections:
    """The sections of a rank, with hints on recording and effects of notes that suit its recorder."""
    has, nsight = held(facts.rank), facts.rank.provenance.format == "nsight"
    effects = _NOTES if nsight else _NOTES_ON_CPU if optional(trains_on_cpu, facts) else {}
    absent = tuple(_hinted(each, each.what, nsight, has) for each in one.absent)
    notes = tuple(replace(note, effect=effects.get(note.what, note.effect)) for note in one.integrity)
    return replace(one, absent=absent, integrity=notes)


def _hinted(one: Hinted, what: str, nsight: bool, has: frozenset[str]) -> Hinted:
    hint = NSIGHT[what] if nsight and what in NSIGHT else without(one.how_to_record_it, has)
    return replace(one, how_to_record_it=hint)


def in_outcomes(rank: Rank, outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes with hints for the recorder of a rank."""
    has, nsight = held(rank), rank.provenance.format == "nsight"
    return tuple(_hinted(one, one.why, nsight, has) for one in outcomes)


def unpriced(
    outcomes: Iterable[Outcome], before: Sequence[tuple[RuleName, Finding]], missing: Missing
) -> tuple[Outcome, ...]:
    """The outcomes where nothing can be replayed: rules that found something cannot tell, or crashed if that failed."""
    priceless = {page.id for page, _ in before}
    kind = OutcomeKind.CRASHED if isinstance(missing, Failed) else OutcomeKind.CANNOT_TELL
    return tuple(
        Outcome(outcome.rule, outcome.code, kind, missing.what, missing.how_to_record_it)
        if outcome.outcome is OutcomeKind.FOUND and outcome.rule in priceless
        else outcome
        for outcome in outcomes
    )


def priced(
    outcomes: Iterable[Outcome],
    before: Sequence[tuple[RuleName, Finding]],
    after: Sequence[tuple[RuleName, Finding]],
    order: Ranked,
) -> tuple[Outcome, ...]:
    """The outcomes after findings were dropped, as all their fixes are in force, and the others were priced."""
    had, has = ({id_ for page, one in some for id_ in (page.id, *one.also)} for some in (before, after))
    return tuple(_with_price(outcome, order, outcome.rule in had - has) for outcome in outcomes)


def _with_price(outcome: Outcome, order: Ranked, in_force: bool) -> Outcome:
    """The outcome of a rule after pricing: CLEAN if its fixes are all in force, or its findings are explained by others
    or save nothing; CRASHED if their savings could not be found; else as it was."""
    named = outcome.rule, outcome.code
    if in_force:
        return Outcome(*named, OutcomeKind.CLEAN, "all that could be set for it is set already")
    if any(outcome.rule in finding.rules for finding in order.findings):
        return outcome
    if outcome.rule in order.unpriced:
        return Outcome(*named, OutcomeKind.CRASHED, "what its findings would save is not known")
    if outcome.rule in order.explained:
        return Outcome(*named, OutcomeKind.CLEAN, "the other findings explain what it found")
    costless = [saving for rule, saving in order.costless if rule == outcome.rule]
    if not costless:
        return outcome
    likely, most_ns = any(saving.likely_ns for saving in costless), max(saving.high_ns for saving in costless)
    most = f" at most {most_ns / 1e6:.3g} ms a step" if most_ns else " nothing"
    why = f"it is there, but fixing it would {'' if likely or not most_ns else 'likely save nothing, and '}save{most}"
    return Outcome(*named, OutcomeKind.CLEAN, why)
