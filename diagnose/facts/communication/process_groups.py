"""Which process group does each collective belong to?

NCCL's say so. Of gloo's nothing is recorded, but each group has two worker threads of its own, made one after the
other when the group is made: their numbers are neighbours, and those of other groups are not (torch 2.13, 2 and 4
ranks).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.batches import carried
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.core.base import Facts, once
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import ProcessGroup

WORKERS = 2
"""Threads of a group of gloo's (ProcessGroupGloo, threads of its default options)."""

APART = 4
"""Thread numbers of one group differ by less."""


@dataclass(frozen=True)
class CallGroups:
    """Of each call (`batches`). Arrays of shape (calls,)."""

    group: IntArray
    """Position in `groups`; -1 unknown."""
    sequence: IntArray
    """Number in the group, as recorded; -1 unknown."""
    peer: IntArray
    """As recorded; -1 unknown."""
    groups: tuple[ProcessGroup, ...]


@once
def call_groups(facts: Facts) -> CallGroups:
    """The groups of all calls. Raises Missing like the table of collectives."""
    table, told = collective_table(facts), facts.rank.collectives
    calls = carried(facts)
    row, on_host = calls.told, table.on_host[calls.row]
    known = {one.name: one for one in facts.rank.provenance.groups}
    texts = [_texts(told[name], row) for name in ("group", "group_description", "group_ranks")]
    keys = list(zip(*(text.tolist() for text in texts), strict=True))
    named: dict[tuple[str, str, str], int] = {}
    group = np.array([named.setdefault(key, len(named)) if any(key) else -1 for key in keys], dtype=np.int64)
    groups = [known.get(name) or ProcessGroup(name, use, _ranks(ranks)) for name, use, ranks in named]
    workers = _workers(facts, table.ids[table.on_host])
    group[on_host] = np.where(workers >= 0, workers + len(groups), group[on_host])
    groups += [ProcessGroup("", "", ()) for _ in range(int(workers.max(initial=-1)) + 1)]
    return CallGroups(
        group=group,
        sequence=np.append(told["sequence"].to_numpy(), -1)[row],
        peer=np.append(told["peer"].to_numpy(), -1)[row],
        groups=tuple(groups),
    )


def _texts(column: object, row: IntArray) -> npt.NDArray[np.object_]:
    categories = column.cat.categories  # type: ignore[attr-defined]
    labels = np.array([*categories, ""], dtype=object)
    found: npt.NDArray[np.object_] = labels[np.append(column.cat.codes.to_numpy(), -1)[row]]  # type: ignore[attr-defined]
    return found


def _ranks(text: str) -> tuple[int, ...]:
    """The ranks in a list as recorded; none where it was cut off."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    whole = isinstance(found, list) and all(isinstance(one, int) and 0 <= one < 1 << 31 for one in found)
    return tuple(found) if whole else ()


def _workers(facts: Facts, ids: IntArray) -> IntArray:
    """The number of the group of each collective on the host, by the thread that carries it out; -1 unknown."""
    tracks = facts.rank.tracks
    track = facts.rank.spans["track"].to_numpy()[ids].astype(np.int64)
    names = facts.rank.spans["name"].iloc[ids].astype(str)
    joint = ~names.isin(["gloo:send", "gloo:recv", "gloo:recvAnySource"]).to_numpy(dtype=bool)
    used = np.unique(track[joint])
    numbers = {int(one): str(tracks["thread"].iloc[one]) for one in used.tolist()}
    threads = sorted((int(number), one) for one, number in numbers.items() if number.isdecimal())
    found, last, group, count = dict[int, int](), -1 << 40, -1, 0
    for number, one in threads:
        if number - last > APART or count == WORKERS:
            group, count = group + 1, 0
        found[one], last, count = group, number, count + 1
    return np.where(joint, [found.get(one, -1) for one in track.tolist()], -1).astype(np.int64)
