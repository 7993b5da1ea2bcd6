"""Which job a command belongs to: of one job several commands may record, one on each machine or for each rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_MPI = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_ID")
_TORCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_PET = ("PET_RDZV_ID", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "MASTER_ADDR", "MASTER_PORT")
"""Variables that name a job, of srun, MPI, torchrun's workers or init_method="env://", and torchrun's own options."""

_SIZES = {
    "SLURM_STEP_NUM_TASKS": _STEP,
    "OMPI_COMM_WORLD_SIZE": _MPI,
    "PMI_SIZE": _MPI,
    "WORLD_SIZE": _TORCH,
    "PET_NNODES": _PET,
}
"""Variables that say how many processes or machines a job has, and those that name it then."""

_NODES = {"nnodes", "num_nodes", "num_machines"}
_MEETING = {"rdzv_id", "rdzv_endpoint", "master_addr", "master_port", "main_process_ip", "main_process_port"}
"""Options of torchrun, accelerate and deepspeed, with - for _ as well: how many machines, and where they meet."""


def of(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What tells the job from others; None if no other command records it, as far as can be seen."""
    for size, names in _SIZES.items():
        if _most(environment.get(size, "")) > 1:
            return "/".join([size, *(environment.get(name, "") for name in names)])
    told = _options(command)
    if not any(_most(told.get(name, "")) > 1 for name in _NODES) or not _MEETING & set(told):
        return None
    return "/".join(f"{name}={told[name]}" for name in sorted(_MEETING & set(told)))


def _options(command: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, is_set, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word.startswith("-") and name in _NODES | _MEETING:
            found.setdefault(name, value if is_set else following)
    return found


def _most(text: str) -> int:
    """A number of processes or machines, or the greater of a range as in 1:4; 0 if there is none."""
    found = re.fullmatch(r"(?:\d+:)?(\d+)", text)
    return int(found[1]) if found else 0
