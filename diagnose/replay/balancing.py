"""The edits by which all ranks would compute alike."""

from __future__ import annotations

from diagnose.facts.communication.balance import Balance, Part
from diagnose.replay.edits import Between, Edit, Estimate, Shorten, Times, at


def balanced(balance: Balance, parts: tuple[Part, ...], evened: Between) -> tuple[Edit, ...]:
    """What happens in each step if this share of what each rank computes more than it should is gone.

    A rank that computes longer computes less; one that waits for those that do waits less.
    """
    edits: list[Edit] = []
    for part in parts:
        if part.compute_left < 1.0:
            edits.append(Shorten(part.compute_ids, _left(evened, part.compute_left)))
        if part.meetings_left < 1.0:
            left = _left(evened, part.meetings_left)
            edits += [Shorten(part.meeting_ids, left), Shorten(Times(balance.main_track, part.host_pieces), left)]
    return tuple(edits)


def _left(share: Between, left: float) -> Between:
    """What is left if this share of a change happens that would leave `left`."""
    return Between(*(1.0 - at(share, level) * (1.0 - left) for level in Estimate))
