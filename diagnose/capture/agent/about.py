"""What the process knows of itself and its machine, by the names of the manifest. Whatever fails is unknown."""

import gc
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any

from . import noticed
from .about_settings import if_known
from .alone import text_of, uses_gpu
from .threads import is_library

FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "pytorch_lightning", "torchvision", "transformers")
LONGEST_VALUE = 200  # characters


def host(root: Path = Path("/")) -> dict[str, object]:
    """The fields of `Host` in the manifest: the machine. `root`: the folder that holds proc and sys."""
    flags = sorted(_of_processor(root, "flags|Features").split())
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _of_processor(root, "model name") or platform.machine() or None,
        "cpus": os.cpu_count(),
        "cpus_allowed": if_known(lambda: _cpus_allowed(root)),
        "memory_bytes": if_known(lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "cpu_flags": [flag for flag in flags if _UNITS.match(flag)] if flags else None,
    }


def machine(root: Path = Path("/")) -> int:
    """A number of 48 bits for this machine, whose processes share a clock: a hash of its boot id, else of its name.

    Containers on a machine have its number; machines of the same name differ, where Linux gives a boot id.
    """
    import hashlib

    started = text_of(root / "proc/sys/kernel/random/boot_id").strip() or platform.node()
    return int.from_bytes(hashlib.blake2b(started.encode(), digest_size=6).digest(), "big")


_UNITS = re.compile(r"(avx|amx|fma|f16c|sse4|sve|sme(?!p)|asimd|fphp|bf16|i8mm|neon)")


def _of_processor(root: Path, names: str) -> str:
    found = re.search(rf"^(?:{names})\s*:\s*(.+)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else ""


def _cpus_allowed(root: Path) -> int | None:
    """How many CPUs the process may use, by its affinity and the container's quota; None if unknown."""
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    known = [count for count in (affine, *(max(ceil(quota), 1) for quota in quotas(root))) if count]
    return min(known) if known else None


def control_groups(root: Path, kind: str) -> Iterator[tuple[Path, bool]]:
    """Folders of the process's own group and those around it, of both versions; True with those of the first one."""
    for line in text_of(root / "proc/self/cgroup").splitlines() or ["0::/", f"1:{kind}:/"]:
        _, kinds, own = line.split(":", 2)
        if not kinds or kind in kinds.split(","):
            inner, top = Path(own.strip("/")), root / "sys/fs/cgroup" / (kind if kinds else "")
            yield from ((top / part, bool(kinds)) for part in (inner, *inner.parents))


def quotas(root: Path) -> Iterable[float]:
    """CPUs by quotas of control groups, of both versions: of the own group and those around it."""
    for folder, is_first in control_groups(root, "cpu"):
        if is_first:
            quota = f"{text_of(folder / 'cpu.cfs_quota_us')} {text_of(folder / 'cpu.cfs_period_us')}".split()
        else:
            quota = text_of(folder / "cpu.max").split()
        if len(quota) == 2 and all(word.isdigit() for word in quota) and int(quota[1]):
            yield int(quota[0]) / int(quota[1])


def versions(root: Path = Path("/")) -> dict[str, str]:
    """Versions of python, torch, what it uses, the driver, and FRAMEWORKS that were imported; without unknown ones."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = if_known(lambda: str(torch.__version__))
        found["cuda"] = if_known(lambda: torch.version.cuda)
        found["hip"] = if_known(lambda: torch.version.hip)
        if uses_gpu():
            found["cudnn"] = if_known(lambda: _cudnn(torch.backends.cudnn.version()))
            found["nccl"] = if_known(lambda: ".".join(map(str, torch.cuda.nccl.version())))
    driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]*)", text_of(root / "proc/driver/nvidia/version"))
    found["driver"] = driver[1] if driver else text_of(root / "sys/module/amdgpu/version").strip() or None
    found |= {name: _installed_version(name) for name in FRAMEWORKS if name in sys.modules}
    return {name: version for name, version in found.items() if version}


def libraries() -> list[str]:
    """Top modules of imported packages that are installed, but for Python's: their frames are not the user's own."""
    files = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()))
    found = {name.partition(".")[0] for name, file in files if isinstance(file, str) and is_library(file)}
    return sorted(found - sys.stdlib_module_names)


def _cudnn(number: int) -> str:
    """The version that cuDNN's number stands for: 8.9.2 for 8902, 9.1.0 for 90100."""
    unit = 10_000 if number >= 90_000 else 1_000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def _installed_version(name: str) -> str | None:
    from importlib.metadata import version

    return if_known(lambda: version(name.replace("_", "-")))


_VARIABLES = {
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MALLOC_MMAP_THRESHOLD_"),
    *("MALLOC_TRIM_THRESHOLD_", "MKL_NUM_THREADS", "NODE_RANK", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("PYTORCH_NO_HIP_MEMORY_CACHING", "RANK", "TORCHDYNAMO_DISABLE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("TORCH_CUDNN_V8_API_DEBUG", "TORCH_CUDNN_V8_API_DISABLED", "TORCH_CUDNN_V8_API_ENABLED"),
    *("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT", "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS", "TORCH_SHOW_CPP_STACKTRACES"),
    "WORLD_SIZE",
}
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "KINETO_")
_PRIVATE = {  # Words in names with such a prefix, which say that the value may name a host, a person or a secret.
    *("ADDR", "COMM", "CONFIG", "DIR", "FILE", "HOST", "HOSTID", "ID", "KEY", "PASSWORD", "PATH", "SECRET", "TOKEN"),
    *("URL", "USER"),
}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that change speed; none that could name a host or hold a secret."""
    return {name: value[:LONGEST_VALUE] for name, value in sorted(environ.items()) if _harmless(name, value)}


def _harmless(name: str, value: str) -> bool:
    """Whether an environment variable may be recorded: a known one, or one that looks like a setting, not a secret."""
    if name in _VARIABLES:
        return True
    words = set(name.split("_"))
    return name.startswith(_PREFIXES) and not words & _PRIVATE and re.fullmatch(r"[\w,:;^=+.*-]*", value) is not None


def all_optimizers() -> list[Any]:
    """All of torch's optimizers in the process."""
    module = sys.modules.get("torch.optim.optimizer")
    return [] if module is None else [one for one in gc.get_objects() if issubclass(type(one), module.Optimizer)]


_OWN_OF_A_GROUP = ("params", "param_names", "name")


def weights(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, of all its groups in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def optimizers(some: Iterable[Any]) -> list[dict[str, object]]:
    """The fields of `Optimizer` in the manifest for each, without those that only wrap another of them."""
    every = list(some)
    inner = {id(one) for one in every}
    own = [one for one in every if not inner & {id(value) for value in getattr(one, "__dict__", {}).values()}]
    return [_optimizer(one) for one in own]


def _optimizer(one: Any) -> dict[str, object]:
    """The fields of `Optimizer` in the manifest for one optimizer."""
    groups = list(one.param_groups)
    parameters = weights(one)
    dtypes = Counter[str]()
    for parameter in parameters:
        dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return {
        "name": type(one).__name__,
        **{name: _flag(groups, name) for name in ("foreach", "fused", "capturable")},
        **{name: _largest(groups, name) for name in ("momentum", "weight_decay")},
        "groups": len(groups),
        "distinct_groups": len({_settings(group) for group in groups}),
        "parameters": len(parameters),
        "elements": sum(dtypes.values()),
        "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "dtypes": dtypes,
        "devices": sorted({str(parameter.device.type) for parameter in parameters}),
        "made": noticed.where(one),
    }


def _settings(group: dict[str, object]) -> str:
    """A text of a group's options, equal for groups that could be one; tensors show their values in it."""
    return repr(sorted((name, value) for name, value in group.items() if name not in _OWN_OF_A_GROUP))


def _flag(groups: list[dict[str, object]], name: str) -> bool | None:
    """The bool that all groups have for an option; None if they differ, or leave it to torch."""
    values = {value if isinstance(value := group.get(name), bool) else None for group in groups}
    return values.pop() if len(values) == 1 else None


def _largest(groups: list[dict[str, object]], name: str) -> float | None:
    """The largest value of an option in all parameter groups; None if one lacks it or has it in a tensor."""
    values = [group.get(name) for group in groups]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return max(numbers) if numbers and len(numbers) == len(values) else None
