"""Rules: where they are, which of them run, and what each of them says. Each runs alone, and fails alone."""

import ast
import difflib
import hashlib
import importlib.util
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from msgspec import Struct, field

from diagnose import failures
from diagnose.contracts import finding
from diagnose.contracts.watched_run import RunFinding
from diagnose.facts.autograd.backward import NO_PASSES
from diagnose.facts.core.base import Facts, Failed, Known, Missing, optional
from diagnose.facts.core.run import is_of_no_use
from diagnose.facts.run.program import OF_TRAINING, program
from diagnose.rulekit import page
from diagnose.rulekit.check import WHOLE, Check, RuleError
from diagnose.rulekit.page import Page
from diagnose.trace.model import IntegrityNote, Severity

_ROOT = "diagnose_rules"


def module_of(path: Path, thresholds: Mapping[str, float]) -> ModuleType:
    """A new module of the file, with these values for its constants. Raises whatever its code raises.
    Its folder is its package, so that `from ._name import Something` finds the module `_name.py` there. That is no
    rule, and is kept once it is loaded, as the facts that it registers are."""
    spec = importlib.util.spec_from_file_location(f"{_package(path.parent)}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if not thresholds:
        spec.loader.exec_module(module)
    else:
        exec(compile(_with(path, thresholds), str(path), "exec"), vars(module))
    return module


def _package(folder: Path) -> str:
    """The name of the package in sys.modules that stands for a folder of rules; it is made if it is not there yet."""
    name = f"{_ROOT}_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return name


def _with(path: Path, values: Mapping[str, float]) -> ast.Module:
    """The rule file's syntax tree with these constants in place of its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in values:
            node.value = ast.copy_location(ast.Constant(values[node.targets[0].id]), node.value)
    return tree


QUALITY = "MQ"  # Beginning of the codes of rules on the recording itself.


def known_folders() -> tuple[Path, ...]:
    """Folders of the built-in rules, and of those that installed packages offer. Raises RuleError if one is missing."""
    try:
        return (page.built_in_rules(), *page.installed_rules().values())
    except ValueError as error:
        raise RuleError(str(error)) from error


class RuleSet(Struct, frozen=True):
    """Which rules to run, with what thresholds. Small and hashable: other processes get it, and load it once."""

    folders: tuple[Path, ...] = field(default_factory=lambda: known_folders())
    select: tuple[str, ...] = ()
    """Ids, folders of rules, codes or beginnings of codes (`DL`); empty: all. Rules on the recording itself (MQ) always
    run, as they say how far to trust the others."""
    ignore: tuple[str, ...] = ()
    thresholds: tuple[tuple[str, float], ...] = ()  # Of `rule.NAME` and value.


class LoadedRule(Struct, frozen=True):
    """A rule that is ready to run."""

    page: Page
    check: Check
    module: ModuleType


def load(rules: RuleSet, of_run: bool = False) -> tuple[LoadedRule, ...]:
    """The selected rules on recorded steps (`of_run`: those on whole runs), in order of their codes.
    Raises RuleError if a file is no sound rule, two rules share a name or code, or a name or threshold is not known."""
    found: dict[str, LoadedRule] = {}
    for folder in rules.folders:
        if not folder.is_dir():
            raise RuleError(f"{folder} is not a folder of rules.")
        for path in page.files(folder):
            if path.stem in found:
                raise RuleError(f"Two rules are called {path.stem}. Rename one of the files.")
            own = {key.partition(".")[2]: value for key, value in rules.thresholds if key.startswith(f"{path.stem}.")}
            found[path.stem] = load_file(path, own)
    _refuse_clashes(found.values())
    for key, _ in rules.thresholds:
        _refuse_unknown_threshold(key, found)
    for name in (*rules.select, *rules.ignore):
        _refuse_unknown(name, found.values())
    chosen = [
        one
        for one in found.values()
        if one.check.of_run is of_run
        and (not rules.select or any(_matches(one, name) for name in (*rules.select, QUALITY)))
        and not any(_matches(one, name) for name in rules.ignore)
    ]
    return tuple(sorted(chosen, key=lambda one: (one.page.code, one.page.id)))


def load_file(path: Path, thresholds: Mapping[str, float] = MappingProxyType({})) -> LoadedRule:
    """The rule in one file, with thresholds by their name. Raises RuleError with the file's name if it is not sound.
    A file that has not changed since is not loaded again."""
    try:
        there = path.stat()
        return _loaded(path.absolute(), there.st_mtime_ns, there.st_size, tuple(thresholds.items()))
    except RuleError as error:
        raise RuleError(str(error) if path.name in str(error) else f"{path.name}: {error}") from error
    except Exception as error:
        raise RuleError(f"{path.name} cannot be loaded: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1_024)
def _loaded(path: Path, _changed_ns: int, size: int, thresholds: tuple[tuple[str, float], ...]) -> LoadedRule:
    """The rule in a file, cached; its time of change and size are only part of the key. Raises RuleError."""
    about = page.read(path)
    if lacking := page.problems(about):
        raise RuleError(f"{path.name}: {'; '.join(lacking)}.")
    module = module_of(path, dict(thresholds))
    checks = [value for value in vars(module).values() if isinstance(value, Check)]
    if len(checks) != 1:
        raise RuleError(f"{path.name} has {len(checks)} rules; a file holds one.")
    return LoadedRule(about, checks[0], module)


def shown(one: LoadedRule) -> finding.RulePage:
    """What a rule says about itself, with its thresholds as they are set."""
    about = one.page
    thresholds = (finding.RuleThreshold(at.name, getattr(one.module, at.name), at.reason) for at in about.thresholds)
    return finding.RulePage(
        rule=about.id,
        code=about.code,
        title=about.title,
        summary=about.summary,
        sections=about.sections,
        thresholds=tuple(thresholds),
        looks_at=(*about.needs, *about.wishes),
    )


def _matches(one: LoadedRule, name: str) -> bool:
    return name in (one.page.id, one.page.family) or one.page.code.startswith(name.upper())


def _refuse_unknown(name: str, found: Collection[LoadedRule]) -> None:
    if name and any(_matches(one, name) for one in found):
        return
    near = difflib.get_close_matches(name, [one.page.id for one in found], n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "`diagnose rules list` shows all."
    raise RuleError(f"There is no rule {name!r}. {hint}")


def _refuse_clashes(found: Collection[LoadedRule]) -> None:
    by_code: dict[str, str] = {}
    for one in found:
        other = by_code.setdefault(one.page.code, one.page.id)
        if other != one.page.id:
            raise RuleError(f"{one.page.id} has the code {one.page.code}, which is {other}'s. Choose another.")


def _refuse_unknown_threshold(key: str, found: Mapping[str, LoadedRule]) -> None:
    rule, _, name = key.partition(".")
    if rule not in found:
        raise RuleError(f"There is no threshold {key}, as no rule is called {rule!r}.")
    known = [threshold.name for threshold in found[rule].page.thresholds]
    if name not in known:
        raise RuleError(f"There is no threshold {key}. {rule} has {', '.join(known) or 'none'}.")


INFERENCE = "this is inference: there is no backward pass and no optimizer"


class Examined(Struct, frozen=True):
    """What the rules say of one rank."""

    outcomes: tuple[finding.Outcome, ...]
    findings: tuple[tuple[Page, finding.Finding], ...]
    cautions: tuple[finding.Caution, ...]
    risks: tuple[tuple[Page, finding.Risk], ...]


NOTHING = Examined((), (), (), ())


def examine(facts: Facts, rules: Iterable[LoadedRule]) -> Examined:
    """Run every rule. Nothing that a rule does keeps the others from running."""
    outcomes, findings, cautions, risks = [], [], [], []
    for rule in rules:
        outcome, said = ask(facts, rule)
        outcomes.append(outcome)
        if outcome.outcome is not finding.OutcomeKind.FOUND:
            continue
        findings += [(rule.page, verdict) for verdict in said if isinstance(verdict, finding.Finding)]
        cautions += [verdict for verdict in said if isinstance(verdict, finding.Caution)]
        risks += [(rule.page, verdict) for verdict in said if isinstance(verdict, finding.Risk)]
    return Examined(tuple(outcomes), tuple(findings), tuple(cautions), tuple(risks))


def ask(facts: Known, one: LoadedRule) -> tuple[finding.Outcome, list[Any]]:
    """How a rule ends, and its verdicts: if it cannot tell, those before a fact was missing; none if it crashed."""

    def outcome(kind: finding.OutcomeKind, why: str, how: str = "") -> finding.Outcome:
        return finding.Outcome(one.page.id, one.page.code, kind, why, how)

    said: list[Any] = []
    try:
        if why := _why_inapplicable(facts, one.check):
            return outcome(finding.OutcomeKind.NOT_APPLICABLE, why), []
        for verdict in one.check.run(**_arguments(facts, one.check)):
            said.append(verdict)
    except Failed as failed:
        return outcome(finding.OutcomeKind.CRASHED, failed.what, failed.how_to_record_it), []
    except Missing as missing:
        if why := _of_no_use(facts, missing):
            return outcome(finding.OutcomeKind.NOT_APPLICABLE, why), []
        return outcome(finding.OutcomeKind.CANNOT_TELL, missing.what, missing.how_to_record_it), said
    except Exception as error:
        if failures.raised():
            raise
        return outcome(finding.OutcomeKind.CRASHED, failures.told(error), failures.REPORT), []
    return outcome(*_outcome_of(said)), said


def _outcome_of(verdicts: list[Any]) -> tuple[finding.OutcomeKind, str]:
    """What a rule's verdicts come to: found, not applicable or clean, and why."""
    if found := sum(isinstance(one, finding.Finding | finding.Risk | finding.Caution | RunFinding) for one in verdicts):
        return finding.OutcomeKind.FOUND, f"{found} found"
    if why := next((verdict.why for verdict in verdicts if isinstance(verdict, finding.NotApplicable)), ""):
        return finding.OutcomeKind.NOT_APPLICABLE, why
    clean = [verdict.why for verdict in verdicts if isinstance(verdict, finding.Clean)]
    return finding.OutcomeKind.CLEAN, "; ".join(clean) or "nothing found"


def _why_inapplicable(facts: Known, check: Check) -> str:
    of_training = isinstance(facts, Facts) and OF_TRAINING.intersection(check.needs)
    return INFERENCE if isinstance(facts, Facts) and of_training and program(facts).infers else ""


def _of_no_use(facts: Known, missing: Missing) -> str:
    """Why the program has nothing of what is missing, so that no recording of it would hold it; empty if one may."""
    if not isinstance(facts, Facts):
        return ""
    if is_of_no_use(missing, facts):
        return "the training computes on the CPU"
    ran = optional(program, facts)
    return INFERENCE if missing == NO_PASSES and ran is not None and ran.infers else ""


def _arguments(facts: Known, check: Check) -> dict[str, object]:
    """The facts a rule asks for, by name. Raises Missing if one that it needs is not there."""
    found = {name: facts if name == WHOLE else check.known[name](facts) for name in check.needs}
    for name in check.wishes:
        try:
            found[name] = check.known[name](facts)
        except Missing:
            found[name] = None
    return found


def note(caution: finding.Caution) -> IntegrityNote:
    """A caution among what is said about the recording."""
    return IntegrityNote(caution.what[:1].upper() + caution.what[1:] + ".", caution.effect, Severity.WARNING)
