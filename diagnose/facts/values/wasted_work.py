"""Which work is wasted, by cause: the ledger that the rules of wasted work are entries of."""

from msgspec import Struct

from diagnose.facts.core.base import Facts, fact

# Each of these modules adds the finders of some causes to FINDERS.
from diagnose.facts.values import known_values, unneeded_backward  # noqa: F401
from diagnose.facts.values.known_values import FINDERS, Cause, Wasted

__all__ = ["Cause", "Ledger", "Wasted", "wasted_work"]


class Ledger(Struct, frozen=True):
    """Wasted work, looked for when somebody asks."""

    facts: Facts

    def of(self, cause: Cause) -> tuple[Wasted, ...]:
        """What wastes most first, none if there is none. Raises Missing where that cannot be told."""
        return FINDERS[cause](self.facts)


@fact
def wasted_work(facts: Facts) -> Ledger:
    """By cause. Each raises its own Missing."""
    return Ledger(facts)
