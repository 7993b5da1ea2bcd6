"""The facts of drawings, written as real files and read by the real reader."""

import tempfile
from pathlib import Path

from msgspec.structs import replace

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.peers import compare
from diagnose.facts.core.base import Facts, optional
from diagnose.source import ranks
from diagnose.synthetic import notation


def facts_of(text: str) -> Facts:
    """The facts of a drawing; of several ranks, those of the one that the others wait for, with what is known of these
    (`peers`), or of the first if they cannot be compared or do not wait. Raises DrawingError."""
    drawn = facts_of_ranks(text)
    others = compare({facts.rank.index: optional(collective_sequence, facts) for facts in drawn})
    if others is None:
        return drawn[0]
    index = others.awaited or 0
    return Facts(replace(drawn[index].rank, peers=others.peers(index)))


def facts_of_ranks(text: str) -> list[Facts]:
    """The facts of each rank of a drawing, as it is known alone. Raises DrawingError."""
    drawn = []
    with tempfile.TemporaryDirectory() as folder:
        for index, one in enumerate(drawings := notation.ranks(text)):
            path = Path(folder) / f"rank{index}.json"
            path.write_bytes(notation.trace(one))
            context = notation.context(one, index, len(drawings))
            drawn.append(Facts(replace(ranks.read(path), index=index, context=context, values=notation.values(one))))
    return drawn
