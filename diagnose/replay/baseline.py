"""The replay that savings are measured with: of recorded steps without what other steps do not have."""

from __future__ import annotations

from diagnose.facts.core.base import Facts, optional
from diagnose.facts.run.garbage import garbage_collections
from diagnose.facts.run.recording_cost import recording_cost
from diagnose.replay.edits import Edit, Shorten
from diagnose.replay.job_saving import JobReplay
from diagnose.replay.saving import Replay


def baseline(facts: Facts) -> Replay:
    """The replay of a rank, among the others where these are known.

    Raises Missing if no step can be measured, or if nothing was recorded on the host.
    """
    cost, others = optional(recording_cost, facts), facts.rank.peers
    if others is not None and others.job.join_points:
        return JobReplay(facts, others.job, _uncounted(facts), cost)
    return Replay(facts, _uncounted(facts), cost)


def _uncounted(facts: Facts) -> tuple[Edit, ...]:
    """Garbage that is collected in recorded steps, and for so long in no other."""
    found = optional(garbage_collections, facts)
    return () if found is None or not len(found.once_ids) else (Shorten(found.once_ids, 0.0),)
