"""The examples of a folder of rules, and whether they hold.

They go through all that a real trace goes through, which stands above the rules: whoever runs them hands it in.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from diagnose.contracts.finding import Outcome, OutcomeKind
from diagnose.rulekit import engine, page
from diagnose.rulekit.check import CannotTell, Fires, Silent
from diagnose.rulekit.engine import LoadedRule
from diagnose.rulekit.vocabulary import RuleError

TOLERANCE = 0.05  # Of a saving that an example states.


class Example(Struct, frozen=True):
    """One example of one rule."""

    rule: LoadedRule
    name: str  # `input_starvation::fires[0]`.
    expected: Fires | Silent | CannotTell


def examples(folder: Path) -> Iterator[Example]:
    """All examples of a folder's rules. Raises RuleError if a file is no sound rule."""
    for path in page.files(folder):
        yield from examples_of(engine.load_file(path))


def examples_of(rule: LoadedRule) -> Iterator[Example]:
    """All examples of a rule. Raises RuleError if something else is among them."""
    seen: dict[str, int] = {}
    for expected in getattr(rule.module, "EXAMPLES", []):
        kind = {Fires: "fires", Silent: "silent", CannotTell: "cannot_tell"}.get(type(expected))  # type: ignore[call-overload]
        if kind is None:
            raise RuleError(f"{rule.page.id}: EXAMPLES holds something that is no example.")
        yield Example(rule, f"{rule.page.id}::{kind}[{seen.setdefault(kind, 0)}]", expected)
        seen[kind] += 1


Said = tuple[Outcome, tuple[float, float] | None]
"""How a rule ends on a drawing, and what its first finding saves in ms, low and high; None without a price."""


def failure(example: Example, ask: Callable[[LoadedRule, str], Said]) -> str | None:
    """Why an example does not hold; None if it does. `ask` has the rule look at a drawing, or raises ValueError."""
    try:
        outcome, saved_ms = ask(example.rule, example.expected.drawing)
    except ValueError as error:
        return f"the drawing cannot be read: {error}"
    ended = f"it ended as {outcome.outcome.value} ({' '.join(filter(None, (outcome.why, outcome.how_to_record_it)))})"
    if isinstance(example.expected, Fires):
        if outcome.outcome is not OutcomeKind.FOUND:
            return f"it should fire, but {ended}"
        return _wrong_saving(example.expected, saved_ms)
    if isinstance(example.expected, Silent):
        quiet = outcome.outcome in (OutcomeKind.CLEAN, OutcomeKind.NOT_APPLICABLE)
        return None if quiet else f"it should be silent, but {ended}"
    told = outcome.outcome is OutcomeKind.CANNOT_TELL
    if told and example.expected.because in f"{outcome.why} {outcome.how_to_record_it}":
        return None
    return f"it should not be able to tell because of {example.expected.because!r}, but {ended}"


def _wrong_saving(example: Fires, found: tuple[float, float] | None) -> str | None:
    """How the saving differs from what the example states; None if it does not."""
    if example.saving_ms is None:
        return None
    try:
        low_ms, high_ms = example.saving_ms
    except (TypeError, ValueError):
        return f"saving_ms is {example.saving_ms!r}; it is a pair of ms, (low, high)"
    if found is None:
        return "it states a saving, but what the rule found has none"
    if all(abs(a - b) <= TOLERANCE * max(b, 0.001) for a, b in zip(found, (low_ms, high_ms), strict=True)):
        return None
    stated = f"from {low_ms:.4g} to {high_ms:.4g} ms"
    real = f"from {found[0]:.4g} to {found[1]:.4g} ms"
    return f"the fix should save {stated} (each within {TOLERANCE:.0%}), but saves {real}"
