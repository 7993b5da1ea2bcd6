"""Findings as SARIF 2.1.0, the format of code scanning: results at source lines, with the pages of their rules.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Level, OutcomeKind, RankedFinding, RulePage, ShownRisk
from diagnose.reports.findings import Card, card
from diagnose.rulekit import page
from diagnose.rulekit.page import SECTIONS
from diagnose.storage import urls
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Manifest
from diagnose.trace.units import clipped

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"  # Stands for the top of the checkout, in the paths of results: viewers and GitHub know this name.
FINGERPRINT = "diagnoseFinding/v1"  # The name of our fingerprint, with the version of how it is made.
MOST_TITLE, MOST_TEXT = 200, 4_000
"""Characters of a title, and of what is said below it: names from the trace may be of any length (our choice)."""
LARGEST_BYTES = 1 << 20  # Of a file that is read for a line of it (our choice).

_PLACEHOLDER = re.compile(r"([\\\[\]])")  # What begins or ends a link in the text of a message (SARIF 3.11.6).


class Place(Struct, frozen=True):
    """A line of a file in the checkout, or the file as a whole."""

    path: str  # Relative to the top of the checkout, with slashes.
    line: int = 0  # From 1; 0: the file as a whole.
    text: str = ""  # Of the line, without indentation; empty if it cannot be read.


class Checkout:
    """The git checkout that a folder is in, or the folder itself: finds the files that a recording names in it.
    Lines of source are read from no files but these."""

    def __init__(self, manifest: Manifest | None, here: Path | None = None) -> None:
        """`here`: the working folder; None: the current one."""
        self._here = (here or Path.cwd()).resolve()
        self._root = urls.root_of(self._here)
        self._manifest = manifest or Manifest()
        self._lines = dict[Path, list[str]]()

    def place(self, site: Site) -> Place | None:
        """The source line; None if its file is not in the checkout. Profilers shorten names to what follows a folder of
        sys.path, so files of the manifest that end in such a name are tried as well."""
        named = [source.file for source in self._manifest.sources if source.file.endswith(f"/{site.file.lstrip('./')}")]
        found = next(filter(None, map(self._inside, (site.file, *named))), None)
        return None if found is None else Place(self._name(found), max(site.line, 0), self._line(found, site.line))

    @property
    def script(self) -> Place | None:
        """The file that ran; None if it is not in the checkout, or not known."""
        scripts = [source.file for source in self._manifest.sources if source.script]
        names = scripts or [word for word in self._manifest.command if word.endswith(".py")]
        found = next(filter(None, map(self._inside, names)), None)
        return None if found is None else Place(self._name(found))

    def relative(self, path: str) -> str | None:
        """Any file or folder by its name from the top of the checkout; None if it is not inside."""
        found = (self._here / path).resolve()
        return self._name(found) if found.is_relative_to(self._root) else None

    def _inside(self, recorded: str) -> Path | None:
        return next((one for one in urls.candidates(recorded, self._here) if one.is_relative_to(self._root)), None)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _line(self, path: Path, number: int) -> str:
        """The text of a line, without indentation; empty if there is no such line."""
        if path not in self._lines:
            self._lines[path] = _read(path)
        lines = self._lines[path]
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _read(path: Path) -> list[str]:
    """The file's lines; [] if it cannot be read, or is larger than LARGEST_BYTES."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError:
        return []
    return [] if len(content) > LARGEST_BYTES else content.decode(errors="replace").splitlines()


def render(
    diagnosis: Diagnosis,
    findings: Sequence[RankedFinding] | None = None,
    over: Collection[RankedFinding] = (),
    here: Path | None = None,
) -> str:
    """One run with `findings`, or if that is None with all findings and risks of the Diagnosis; those in `over` have
    the level error. Source files are looked up in the checkout that `here` is in; None: the working folder."""
    checkout = Checkout(diagnosis.provenance.manifest, here)
    listed = (diagnosis.findings, diagnosis.risks) if findings is None else (findings, ())
    shown: list[RankedFinding | ShownRisk] = [*listed[0], *listed[1]]
    fallback, driver = _fallback(diagnosis, checkout), _driver(diagnosis)
    indexes = {one["name"]: index for index, one in enumerate(driver["rules"])}
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(diagnosis, indexes)],
        "originalUriBaseIds": {ROOT: {"description": {"text": "The top of the checkout."}}},
        "results": _numbered([_result(one, one in over, diagnosis, checkout, indexes, fallback) for one in shown]),
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _driver(diagnosis: Diagnosis) -> dict[str, Any]:
    families = {path.stem: path.parent.name for path in page.files(page.built_in_rules())}
    return {
        "name": "diagnose",
        "version": diagnosis.tool_version,
        "rules": [_rule(rule, families.get(rule.rule, "rules")) for rule in diagnosis.rules],
    }


def _rule(about: RulePage, family: str) -> dict[str, Any]:
    link = next((word for word in about.sections.get("Sources", "").split() if word.startswith("https://")), None)
    return {
        "id": about.code,
        "name": about.rule,
        "shortDescription": {"text": about.title},
        "fullDescription": {"text": about.summary or about.title},
        "help": {"text": _page_text(about), "markdown": _page_markdown(about)},
        **({} if link is None else {"helpUri": link}),
        "properties": {"tags": ["performance", family]},
    }


def _page_markdown(about: RulePage) -> str:
    parts = [f"**{about.title}** (`{about.rule}`, {about.code})", about.summary]
    parts += [f"*{head}*\n\n{text}" for head, text in _sections(about)]
    if about.thresholds:
        rows = [f"| `{threshold.name}` | {threshold.value:g} | {threshold.reason} |" for threshold in about.thresholds]
        parts.append("\n".join(["| threshold | value | of what, and why |", "|---|--:|---|", *rows]))
    return "\n\n".join(filter(None, parts))


def _sections(about: RulePage) -> list[tuple[str, str]]:
    return [(head, about.sections[head]) for head in SECTIONS if about.sections.get(head)]


def _page_text(about: RulePage) -> str:
    parts = [about.summary, *map("\n".join, _sections(about))]
    parts += [f"{threshold.name} = {threshold.value:g}: {threshold.reason}" for threshold in about.thresholds]
    return "\n\n".join(filter(None, parts)) or about.title


def _invocation(diagnosis: Diagnosis, indexes: dict[str, int]) -> dict[str, Any]:
    """The run of diagnose; not successful if a rule failed or nothing could be measured."""
    crashed = any(outcome.outcome is OutcomeKind.CRASHED for outcome in diagnosis.outcomes)
    return {
        "executionSuccessful": diagnosis.conclusive and not crashed,
        "toolExecutionNotifications": [*_of_rules(diagnosis, indexes), *_of_recording(diagnosis)],
    }


def _of_rules(diagnosis: Diagnosis, indexes: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Notifications of rules that could not look, as notes, and of rules that failed, as errors."""
    for outcome in diagnosis.outcomes:
        if outcome.outcome is OutcomeKind.CANNOT_TELL:
            level, text = "note", f"{outcome.rule} could not look: {outcome.why}. {outcome.how_to_record_it}".rstrip()
        elif outcome.outcome is OutcomeKind.CRASHED:
            level, text = "error", f"{outcome.rule} failed: {outcome.why}"
        else:
            continue
        rule = {"id": outcome.code, **({"index": indexes[outcome.rule]} if outcome.rule in indexes else {})}
        yield {"level": level, "message": {"text": _escaped(text)}, "associatedRule": rule}


def _of_recording(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """Notifications on the recording: its integrity notes, and what is absent unless a rule says so itself."""
    for note in diagnosis.integrity:
        yield {"level": note.severity.value, "message": {"text": _escaped(f"{note.what} {note.effect}")}}
    reported = {(outcome.why, outcome.how_to_record_it) for outcome in diagnosis.outcomes}
    for absent in diagnosis.absent:
        if (absent.what, absent.how_to_record_it) not in reported:
            text = f"Not recorded: {absent.what}. {absent.how_to_record_it}"
            yield {"level": "note", "message": {"text": _escaped(text)}}


def _result(
    one: RankedFinding | ShownRisk,
    fails: bool,
    diagnosis: Diagnosis,
    checkout: Checkout,
    indexes: dict[str, int],
    fallback: dict[str, Any],
) -> dict[str, Any]:
    """A finding or risk at its place, else at `fallback`. `fails`: as an error; `indexes`: rules by their position."""
    place = None if one.site is None else checkout.place(one.site)
    location = fallback if place is None else _location(place)
    if one.site is not None:
        location = {**location, "logicalLocations": [{"name": one.site.function, "kind": "function"}]}
    if isinstance(one, ShownRisk):
        ranks, matters, priority, figures = one.ranks, True, {}, {}
    else:
        ranks, matters, figures = one.where.ranks, not one.minor, _figures(one)
        priority = {"rank": round(min(max(100 * one.share_of_step, 0.0), 100.0), 3)}
    matters = matters and one.confidence.level is not Level.LOW
    return {
        "ruleId": one.code,
        **({"ruleIndex": indexes[one.rule]} if one.rule in indexes else {}),
        "level": "error" if fails else "warning" if matters else "note",
        "message": {"text": _escaped(f"{clipped(one.title, MOST_TITLE)}. {_text(card(1, one, diagnosis))}")},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: _fingerprint(one.rule, one.site, place)},
        **priority,
        "properties": {
            "confidence": one.confidence.level.value,
            **figures,
            **({"ranks": list(ranks)} if len(diagnosis.ranks) > 1 else {}),
        },
    }


def _figures(finding: RankedFinding) -> dict[str, Any]:
    low_ns, likely_ns, high_ns = finding.shown_ns
    return {
        "kind": finding.kind.value,
        "saving_ns": {"low": low_ns, "likely": likely_ns, "high": high_ns},
        "share_of_step": finding.share_of_step,
        "basis": finding.saving.basis.value,
    }


def _text(shown: Card) -> str:
    saving = f"Saves {shown.saving}." if shown.saving else ""
    at = f"At {shown.place}." if shown.place else ""
    fixes = [f"Fix: {fix.do}" for fix, _ in shown.fixes[:1]]
    parts = [saving, f"{shown.detail}.", *shown.evidence, at, *fixes, f"Confidence: {shown.confidence}."]
    return clipped(" ".join(filter(None, parts)), MOST_TEXT)


def _fingerprint(rule: str, site: Site | None, place: Place | None) -> str:
    """A hash of the rule, file, function and text of the line: it stays the same when lines are added above it, or when
    the finding saves more or less."""
    file = "" if site is None else site.file if place is None else place.path
    parts = (rule, file, "" if site is None else site.function, "" if place is None else place.text)
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


def _numbered(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results, with `:N` behind each fingerprint: it is the Nth result that has it. Changes them in place."""
    seen = Counter[str]()
    for result in results:
        code = result["partialFingerprints"][FINGERPRINT]
        seen[code] += 1
        result["partialFingerprints"][FINGERPRINT] = f"{code}:{seen[code]}"
    return results


def _location(place: Place) -> dict[str, Any]:
    region = {"region": {"startLine": place.line}} if place.line else {}
    return {"physicalLocation": {"artifactLocation": {"uri": quote(place.path), "uriBaseId": ROOT}, **region}}


def _fallback(diagnosis: Diagnosis, checkout: Checkout) -> dict[str, Any]:
    """The location of what lies in no file of the checkout: the script's, else the trace's."""
    if checkout.script is not None:
        return _location(checkout.script)
    path = next((source.path for source in diagnosis.provenance.sources if source.rank == diagnosis.rank), "")
    if inside := None if "://" in path else checkout.relative(path):
        return _location(Place(inside))
    return {"physicalLocation": {"artifactLocation": {"uri": quote(PurePath(path).name or "recording")}}}


def _escaped(text: str) -> str:
    return _PLACEHOLDER.sub(r"\\\1", text)
