"""Do the ranks of a process group share a machine, so that its own links join their devices?"""

from __future__ import annotations

import re

import numpy as np

from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.trace.intervals import IntArray

_RANK = re.compile(r"\d+")


def share_a_machine(facts: Facts, group_ranks: str, group_size: int) -> bool | None:
    """Whether all ranks of a group do; None if that is not known.

    Told by the other ranks' recordings, else by how many ranks (diagnose profile) or devices (Kineto) a machine has:
    ranks are numbered machine by machine, as torchrun does. `group_ranks` as recorded, "" unknown.
    """
    ranks = _ranks(facts, group_ranks, group_size)
    told = _recorded(facts, ranks)
    if told is not None:
        return told
    each, known = _ranks_of_a_machine(facts)
    if each < 2 and not known:
        return None  # One device is seen where each process is shown its own, and on machines that have no other.
    if ranks is not None:
        return len({rank // each for rank in ranks}) == 1
    return False if group_size > each else True if 0 < _world(facts) <= each else None


def ranks_together(facts: Facts, told: IntArray) -> int:
    """The fewest ranks of some collectives' groups, by the sizes that were recorded (-1 unknown): experts have fewer.

    Else of the only groups there are, else of the job. Raises Missing if that is not known.
    """
    if len(told) and (told > 0).all():
        return int(told.min())
    groups = {len(group.ranks) for group in facts.rank.provenance.groups if len(group.ranks) > 1}
    if len(groups) == 1:
        return groups.pop()
    if groups or not _world(facts):
        raise Missing("how many ranks communicate together", "Record with PyTorch 2.2 or newer and NCCL.")
    return _world(facts)


def _ranks(facts: Facts, group_ranks: str, group_size: int) -> list[int] | None:
    """None unknown: also of lists that were cut."""
    found = [int(one) for one in _RANK.findall(group_ranks)]
    if len(found) == group_size:
        return found
    return list(range(group_size)) if group_size == _world(facts) else None


def _world(facts: Facts) -> int:
    context = facts.rank.context
    return (context.rank.world_size if context else 0) or facts.rank.provenance.world_size or 0


def _recorded(facts: Facts, ranks: list[int] | None) -> bool | None:
    """What the recordings of these ranks tell: the names of machines, else devices that several would compute on."""
    others = optional(peers, facts)
    if others is None or ranks is None or not set(ranks) <= set(others.ranks):
        return None
    at = np.searchsorted(others.ranks, ranks)
    machines, devices = others.machines[at], others.devices[at]
    if (machines >= 0).all():
        return len(set(machines.tolist())) == 1
    shared = len(set(devices.tolist())) < len(ranks) and (devices >= 0).all()
    return False if shared and facts.rank.provenance.machine_devices > 1 else None


def _ranks_of_a_machine(facts: Facts) -> tuple[int, bool]:
    """How many, and whether that was noted: else as many as there are devices."""
    context = facts.rank.context
    noted = context.rank.peers if context else None
    return (noted, True) if noted else (facts.rank.provenance.machine_devices, False)
