"""Rewrites: a catalogue of ops that another way to the same numbers is cheaper than, as of a peephole optimiser.

An entry says which ops follow each other on what shapes, what share of their time the other way leaves, and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from diagnose.contracts.finding import Clean, Confidence, Evidence, Finding, Fix, Level
from diagnose.facts.core.base import Facts
from diagnose.facts.core.op_table import op_table
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.steps import steps
from diagnose.replay.edits import Edit, Shorten
from diagnose.replay.saving import Basis
from diagnose.rulekit.check import WHOLE, Check
from diagnose.rulekit.patterns import Match, Part, Pattern, Share, matches
from diagnose.rulekit.rewritten import Found
from diagnose.trace.units import duration, percent

WORTH_SHARE = 0.01
"""Of the step that the ops take, on the host or the device, from which on a rewrite is worth saying (our choice)."""


@dataclass(frozen=True)
class Rewrite:
    """An entry of the catalogue."""

    code: str
    what: str
    """What the ops do, as in `sorting for the first few`."""
    patterns: tuple[Pattern, ...]
    """Any of these."""
    where: Callable[[Match], bool]
    """What has to hold of the sizes."""
    says: str | Callable[[Found], str]
    """A sentence without its end, as a format with names of sizes."""
    left: Share
    """Share of the time left in the other way, of parts that do not say their own; and of their backward pass."""
    back: Share | None
    """The latter, if it differs."""
    fixes: tuple[Fix, ...] | Callable[[Found], tuple[Fix, ...]]
    confidence: Confidence
    any_size: bool
    """What is done on one line is one finding, whatever its sizes; sentences name the largest."""

    def found(self, facts: Facts) -> list[Found]:
        """By line, and by sizes unless any will do; what takes longest first. Raises Missing like `op_table`."""
        table = op_table(facts)
        found = [one for pattern in self.patterns for one in matches(facts, table, pattern, self.where)]
        sites = sites_of(facts, np.array([one.table.spans.ids[one.ops[0][0]] for one in found], dtype=np.int64))
        groups: dict[tuple[object, ...], list[Match]] = {}
        for match, site in zip(found, sites, strict=True):
            sizes = () if self.any_size else sorted(match.bound.items())
            groups.setdefault((site, id(match.pattern), *sizes), []).append(match)
        made = [
            Found(facts, tuple(sorted(some, key=lambda one: -one.elements)), key[0])  # type: ignore[arg-type]
            for key, some in groups.items()
        ]
        return sorted(made, key=lambda one: -one.work.longest_ns)

    def run(self, facts: Facts) -> Iterator[Finding | Clean]:
        """A finding for each group of `found` that is worth it. Raises Missing like `op_table`."""
        found, step_ns = self.found(facts), max(steps(facts).mean_ns, 1)
        worth_ns = WORTH_SHARE * step_ns
        large = [one for one in found if one.work.longest_ns >= worth_ns]
        if not large:
            most = max((one.work.longest_ns for one in found[:1]), default=0)
            yield Clean(f"{self.what} takes {percent(most / step_ns)} of the step at most")
        for one in large:
            says = self.says(one) if callable(self.says) else self.says.format_map(_Shown(one))
            back = " with the backward pass" * any(len(part.ids) for part in one.backs)
            longest = one.work.longest_ns
            yield Finding(
                evidence=(Evidence(f"{says}: {duration(longest)} a step{back}.", longest, "ns"),),
                edits=tuple(self._edits(one)),
                fixes=self.fixes(one) if callable(self.fixes) else self.fixes,
                confidence=self.confidence,
                basis=Basis.RULE_OF_THUMB,
                site=one.site,
            )

    def _edits(self, found: Found) -> Iterator[Edit]:
        for part, work, back in zip(found.first.pattern, found.parts, found.backs, strict=True):
            for own, left in ((work, part.left), (back, part.back)):
                if left == 1 or not len(own.ids):
                    continue
                keep = left(found) if callable(left) else left
                assert keep is not None
                yield Shorten(own.data_ids, keep)
                if len(own.work_ids):  # The calls that launch it go in the same measure.
                    yield Shorten(own.ids, keep)


class _Shown(dict[str, object]):
    """Sizes as sentences show them: `256 x 64`, and what `Found` knows besides."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found

    def __missing__(self, name: str) -> object:
        value = self.found.first.bound.get(name)
        return self.found.sizes(name) if isinstance(value, tuple) else getattr(self.found, name)


def rewrite(
    code: str,
    what: str,
    *patterns: Pattern,
    says: str | Callable[[Found], str],
    left: Share,
    fixes: tuple[Fix, ...] | Callable[[Found], tuple[Fix, ...]],
    why: str,
    where: Callable[[Match], bool] = lambda match: True,
    back: Share | None = None,
    level: Level = Level.MEDIUM,
    any_size: bool = False,
) -> Check:
    """A rule of an entry; the fields of `Rewrite` say what it is made of, `why` and `level` how sure it is."""
    sure = Confidence(level, why)
    after = left if back is None else back
    patterns = tuple(tuple(_priced(part, left, after) for part in pattern) for pattern in patterns)
    entry = Rewrite(code, what, patterns, where, says, left, back, fixes, sure, any_size)
    return Check(code=code, run=entry.run, needs=(WHOLE,), wishes=())


def _priced(part: Part, left: Share, back: Share) -> Part:
    """With the entry's shares where it has none of its own."""
    return replace(part, left=left if part.left is None else part.left, back=back if part.back is None else part.back)
