"""Which rank this process is, and who else trains on this machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_NODE = ("GROUP_RANK", "SLURM_NODEID", "NODE_RANK")
"""By torchrun, Open MPI, MPICH and Slurm. A batch script of Slurm has SLURM_NTASKS and SLURM_PROCID, too, but what it
starts without srun is no task; only srun sets the variables of a step."""


@dataclass(frozen=True)
class Place:
    """Of a training process among those of the run."""

    rank: int
    world_size: int
    peers: int  # Ranks on this machine, this one included.
    first: int = 0  # The lowest of them.
    node: int | None = None
    """Number of this machine as the launcher counts them; of a pod that is one of several on a machine, the pod's."""


def find(environment: Mapping[str, str] = os.environ) -> Place:
    """As torch.distributed says, else as the launcher has told by environment variables, else alone."""
    rank, world = _number(environment, _RANK), _number(environment, _WORLD)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    world = max(world or 1, 1)
    rank = rank if rank is not None and world > 1 else 0
    peers = min(_number(environment, _LOCAL_WORLD) or _tasks_of_this_node(environment) or world, world)
    local = _number(environment, _LOCAL_RANK)
    first = rank - local if local is not None and peers < world else 0
    return Place(rank, world, peers, max(first, 0), _number(environment, _NODE))


def _tasks_of_this_node(environment: Mapping[str, str]) -> int | None:
    """Of a step of Slurm, from a text as 4(x2),3: four on each of two nodes, three on the third."""
    node = _number(environment, ("SLURM_NODEID",))
    told = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    for tasks, nodes in told:
        if node is not None and node < int(nodes or 1):
            return int(tasks)
        node = None if node is None else node - int(nodes or 1)
    return None


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = environment.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return None
