"""Courses of very many ranks, made from those of a few: more steps, other ranks, clocks and process groups."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import fields, replace

from diagnose.trace.job import CollectiveSequence, ProcessGroup

NODE = 8  # Ranks of a group; every second collective is among these, the others are among all.

CLOCK_NS = 7_919_000
Array = npt.NDArray[Any]


def longer(one: CollectiveSequence, times: int) -> CollectiveSequence:
    """A sequence with its steps so many times, one after the other."""
    length, calls, steps = int(one.bounds_ns[-1] - one.bounds_ns[0]), len(one.calls.ids), len(one.numbers)
    repeat = np.arange(times)

    def again(values: Array, by: int = 0) -> Array:
        shifted: Array = (values + by * repeat[:, None]).ravel()
        return shifted

    def position(values: Array, by: int) -> Array:
        return np.where(np.tile(values, times) >= 0, again(values, by), -1)

    lane = one.lane
    reached = int(lane.until_ns[-1])
    rest = int(one.bounds_ns[-1]) - reached
    begin = {"call": -1, "waits": False, "from_ns": one.bounds_ns[-1], "until_ns": one.bounds_ns[-1], "own_ns": rest}
    begin["compute_ns"] = min(max(int(one.compute_ns.sum() - lane.compute_ns.sum()), 0), rest)
    joint = {name: np.append(getattr(lane, name), value) for name, value in begin.items()}
    moved = {name: again(joint[name], length) for name in ("from_ns", "until_ns")}
    tiled = {name: np.tile(joint[name], times) for name in ("waits", "own_ns", "compute_ns")}
    events = {"call": position(joint["call"], calls), **moved, **tiled}
    same = {field.name: np.tile(getattr(one.calls, field.name), times) for field in fields(one.calls)}
    return replace(
        one,
        numbers=tuple(range(steps * times)),
        bounds_ns=np.append(again(one.bounds_ns[:-1], length), one.bounds_ns[0] + length * times),
        compute_ns=np.tile(one.compute_ns, times),
        calls=replace(
            one.calls,
            **{
                **same,
                "ids": np.arange(calls * times),
                "sequence": np.arange(calls * times) // 2,
                "group": np.arange(calls * times) % 2,
                "step": position(one.calls.step, steps),
                "after": position(one.calls.after, calls),
                "begin_ns": again(one.calls.begin_ns, length),
                "end_ns": again(one.calls.end_ns, length),
            },
        ),
        lane=replace(lane, **{name: values[:-1] for name, values in events.items()}),
    )


def of_rank(seeds: Sequence[CollectiveSequence], rank: int, world: ProcessGroup) -> CollectiveSequence:
    """The sequence of a rank of a job: one of the seeds by another clock, among its own groups."""
    one, ahead, first = seeds[rank % len(seeds)], CLOCK_NS * (rank % 100), rank // NODE * NODE
    node = ProcessGroup(f"node{rank // NODE}", "mesh_tp", world.ranks[first : first + NODE])
    calls, lane = one.calls, one.lane
    return replace(
        one,
        rank=rank,
        world_size=len(world.ranks),
        machine=rank + 1,
        bounds_ns=one.bounds_ns + ahead,
        groups=(world, node),
        known_groups=(world, node),
        calls=replace(
            calls,
            members=np.where(calls.group == 0, len(world.ranks), len(node.ranks)),
            begin_ns=calls.begin_ns + ahead,
            end_ns=calls.end_ns + ahead,
        ),
        lane=replace(lane, from_ns=lane.from_ns + ahead, until_ns=lane.until_ns + ahead),
    )
