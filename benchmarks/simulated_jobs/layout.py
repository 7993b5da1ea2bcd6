"""Hosts with their GPUs, the links between them, and the process groups of a job."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

NVLINK_GB_S = 235.0  # Bus bandwidth of large collectives over NVLink 3, measured on A100.
NIC_GB_S = 22.5  # 90 % of 200 Gb/s, one a GPU.
HOST_LATENCY_NS, NETWORK_LATENCY_NS = 15_000, 40_000  # From the last rank's kernel to the end of a small collective.


@dataclass(frozen=True)
class Group:
    """A process group as torch.distributed names it."""

    name: str
    use: str
    ranks: tuple[int, ...]

    def told(self) -> dict[str, Any]:
        """As in `distributedInfo`."""
        found = {"pg_name": self.name, "pg_desc": self.use, "backend_config": "cuda:nccl"}
        return {**found, "pg_size": len(self.ranks), "ranks": list(self.ranks)}


@dataclass(frozen=True)
class Layout:
    """Ranks in a mesh, the last dimension the innermost, on hosts of equal size."""

    mesh: Mapping[str, int]  # Name and size of each dimension, as of init_device_mesh.
    gpus: int = 8  # Of a host.
    nic_gb_s: float = NIC_GB_S
    slow: Mapping[int, float] = field(default_factory=dict)  # What is left of the network's bandwidth of a host.

    @property
    def world(self) -> int:
        """Ranks."""
        return math.prod(self.mesh.values())

    def place(self, rank: int) -> dict[str, int]:
        """Coordinates in the mesh."""
        found = dict[str, int]()
        for name, size in reversed(tuple(self.mesh.items())):
            found[name], rank = rank % size, rank // size
        return found

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All, as init_device_mesh makes them: a dimension as large as the job is the default group."""
        found = [Group("0", "default_pg", tuple(range(self.world)))]
        for name, size in self.mesh.items():
            if size in (1, self.world):
                continue
            others = [range(count) for other, count in self.mesh.items() if other != name]
            for fixed in product(*others):
                ranks = tuple(rank for rank in range(self.world) if self._but(rank, name) == fixed)
                found.append(Group(str(len(found)), f"mesh_{name}", ranks))
        return tuple(found)

    def _but(self, rank: int, name: str) -> tuple[int, ...]:
        return tuple(at for other, at in self.place(rank).items() if other != name)[::-1]

    def group(self, rank: int, name: str) -> Group:
        """Of a rank along a dimension; of the whole job by the name of none."""
        if name not in self.mesh or self.mesh[name] == self.world:
            return self.groups[0]
        return self._along[name, rank]

    @cached_property
    def _along(self) -> dict[tuple[str, int], Group]:
        return {(group.use.removeprefix("mesh_"), rank): group for group in self.groups[1:] for rank in group.ranks}

    def host(self, rank: int) -> int:
        """Its number."""
        return rank // self.gpus

    def collective_ns(self, kind: str, ranks: Sequence[int], size: float) -> int:
        """From when the last rank has come. `size`: bytes as nccl-tests count; of all-to-all the most of a rank."""
        members = len(ranks)
        hosts = [self.host(rank) for rank in ranks]
        rate, latency_ns = NVLINK_GB_S, HOST_LATENCY_NS
        if len(set(hosts)) > 1:
            # Each rank brings a network card of its own.
            each = min(hosts.count(host) * self.slow.get(host, 1.0) for host in set(hosts))
            rate, latency_ns = min(rate, each * self.nic_gb_s), NETWORK_LATENCY_NS
            if kind == "all_to_all":
                rate = min(rate, self.nic_gb_s * min(self.slow.get(host, 1.0) for host in hosts))
        factor = (2.0 if kind == "allreduce" else 1.0) * (members - 1) / members
        return latency_ns + round(size * factor / rate)

    def transfer_ns(self, source: int, target: int, size: float) -> int:
        """From one rank to another."""
        ends = (self.host(source), self.host(target))
        if ends[0] == ends[1]:
            return HOST_LATENCY_NS + round(size / NVLINK_GB_S)
        return NETWORK_LATENCY_NS + round(size / (self.nic_gb_s * min(self.slow.get(host, 1.0) for host in ends)))
