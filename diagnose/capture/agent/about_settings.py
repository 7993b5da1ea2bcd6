"""Settings of PyTorch in this process: those that can be read, and those that are noted when the script makes them; and
why compiled code did not fit.
"""

import os
import re
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from . import noticed
from .alone import process_group, tried, uses_gpu
from .script_files import when_imported

MOST_WRAPPED = 256  # Wrapped modules whose options are noted (chosen).
T = TypeVar("T")
Option = bool | int | str | None
Options = dict[str, Option]


class Settings:
    """Notes what changes how this process computes."""

    def __init__(self) -> None:
        self._autocast: dict[str, str] = {}
        self._anomalies = False
        self._scaler: bool | None = None
        self._backend: str | None = None
        self._wrapped: dict[str, list[Options]] = {"ddp": [], "fsdp": []}
        self._known: weakref.WeakKeyDictionary[Any, Options] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Note settings from now on, once the script imports their modules. Of several objects only the last notes."""
        global _settings
        if _settings is None:
            for module in _NOTES:
                when_imported(module, _hook)
        _settings = self

    def flags(self) -> dict[str, object]:
        """The fields of `Flags` in the manifest; none before torch is imported."""
        torch = sys.modules.get("torch")
        if torch is None:
            return {}
        cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
        return {
            "float32_matmul_precision": if_known(torch.get_float32_matmul_precision),
            "cuda_matmul_allow_tf32": if_known(lambda: torch.backends.cuda.matmul.allow_tf32),
            "cudnn_allow_tf32": if_known(lambda: cudnn.allow_tf32),
            "cudnn_benchmark": if_known(lambda: cudnn.benchmark),
            "cudnn_deterministic": if_known(lambda: cudnn.deterministic),
            "deterministic_algorithms": if_known(torch.are_deterministic_algorithms_enabled),
            "onednn": if_known(lambda: mkldnn.enabled if mkldnn.is_available() else None),
            "fill_uninitialized_memory": if_known(lambda: torch.utils.deterministic.fill_uninitialized_memory),
            "anomaly_mode": self._anomalies or if_known(torch.is_anomaly_enabled),
            "threads": if_known(torch.get_num_threads),
            "autocast": dict(self._autocast),
            "grad_scaler": self._scaler,
            "compiled": if_known(_compiled),
        }

    def distributed(self) -> dict[str, object] | None:
        """The fields of `Distributed` in the manifest; None if no process group is known."""
        backend = if_known(_backend) or self._backend
        if backend is None:
            return None
        calls = [found for one in [*self._known] if type(one).__name__ == _DDP_CLASS and (found := noticed.where(one))]
        # Different options, and how many modules have each: there is one for each layer.
        alike = Counter(tuple(options.items()) for options in self._wrapped["fsdp"])
        fsdp = [{**dict(options), "modules": count} for options, count in alike.items()]
        return {"backend": backend, "ddp": self._wrapped["ddp"], "fsdp": fsdp, "ddp_made": calls}

    def allocator(self) -> dict[str, int]:
        """Of CUDA's caching allocator: bytes allocated and reserved, now and most; retries, OOMs and segments."""
        if not uses_gpu():
            return {}
        known = sys.modules["torch"].cuda.memory_stats()
        names = {
            "allocated_bytes": "allocated_bytes.all.current",
            "most_allocated_bytes": "allocated_bytes.all.peak",
            "reserved_bytes": "reserved_bytes.all.current",
            "most_reserved_bytes": "reserved_bytes.all.peak",
            "retries": "num_alloc_retries",
            "ooms": "num_ooms",
            "segments": "segment.all.current",
        }
        return {ours: int(known[theirs]) for ours, theirs in names.items() if theirs in known}

    def _autocast_begins(self, mode: Any, value: object) -> None:
        if mode._enabled:  # It keeps what was before, as its last setting of its own.
            self._autocast[str(mode.device)] = _name(mode.fast_dtype) or ""

    def _anomalies_detected(self, mode: Any, value: object) -> None:
        self._anomalies = True  # For a part of the step, so that its end does not see it.

    def _scaler_made(self, scaler: Any, value: object) -> None:
        self._scaler = bool(self._scaler)  # Whether it does anything is not known yet.

    def _scaler_scales(self, scaler: Any, value: object) -> None:
        self._scaler = True  # Only one that is enabled has a scale.

    def _made(self, one: Any, value: object) -> None:
        noticed.note(one)

    def wrapped(self, kind: str, option: str, read: Callable[[Any], Option], module: Any, value: object) -> None:
        """An option of a module of DDP or FSDP (`kind`) was set: note what `read` makes of its value."""
        options = self._known.get(module)
        if options is None:
            self._backend = if_known(_backend) or self._backend
            options = self._known[module] = {}
            if len(self._wrapped[kind]) < MOST_WRAPPED:
                self._wrapped[kind].append(options)
        options[option] = read(value)


_settings: Settings | None = None


class _NotedWhenSet(noticed.Noticed):
    """An attribute of objects: `note(settings, object, value)` is called whenever it is set."""

    def __init__(self, name: str, note: Callable[[Settings, Any, object], None]) -> None:
        super().__init__(name)
        self._note = note

    def __set__(self, instance: Any, value: object) -> None:
        super().__set__(instance, value)
        if _settings is not None:
            tried(f"{type(instance).__name__}.{self._name}", self._note, _settings, instance, value)


def _name(value: object) -> str | None:
    return None if value is None else str(value).rpartition(".")[2]


def _of(attribute: str, read: Callable[[Any], Option]) -> Callable[[Any], Option]:
    return lambda value: read(getattr(value, attribute))


def _wrapping(kind: str, **read: tuple[str, Callable[[Any], Option]]) -> dict[str, Callable[..., None]]:
    """By attribute, what notes an option of DDP or FSDP (`kind`) when it is set; `read`: (option, conversion)."""

    def note(option: str, convert: Callable[[Any], Option]) -> Callable[..., None]:
        return lambda settings, module, value: settings.wrapped(kind, option, convert, module, value)

    return {attribute: note(*how) for attribute, how in read.items()}


_DDP_CLASS = "DistributedDataParallel"
_SCALER = {"GradScaler": {"_enabled": Settings._scaler_made, "_init_scale": Settings._scaler_scales}}
_DDP = _wrapping(
    "ddp",
    bucket_bytes_cap=("bucket_cap_mb", lambda size: int(size) // (1024 * 1024)),
    find_unused_parameters=("find_unused_parameters", bool),
    static_graph=("static_graph", bool),
    gradient_as_bucket_view=("gradient_as_bucket_view", bool),
    broadcast_buffers=("broadcast_buffers", bool),
    forward_sync_buffers=("broadcast_buffers", bool),  # Its name since torch 2.13.
)
_FSDP = _wrapping(
    "fsdp",
    sharding_strategy=("sharding_strategy", _name),
    mixed_precision=("param_dtype", _of("param_dtype", _name)),
    cpu_offload=("cpu_offload", _of("offload_params", bool)),
    backward_prefetch=("backward_prefetch", _name),
    forward_prefetch=("forward_prefetch", bool),
    limit_all_gathers=("limit_all_gathers", bool),
    _use_orig_params=("use_orig_params", bool),
)
_FULLY_SHARD = _wrapping(
    "fsdp",
    post_forward_mesh_info=("reshard_after_forward", lambda mesh: mesh is not None),
    mp_policy=("param_dtype", _of("param_dtype", _name)),
    offload_policy=("cpu_offload", lambda policy: type(policy).__name__.startswith("CPU")),
)
# What is noted when an attribute is set, by module, class and attribute.
_NOTES: dict[str, Mapping[str, Mapping[str, Callable[..., None]]]] = {
    "torch.amp.autocast_mode": {"autocast": {"prev_fastdtype": Settings._autocast_begins}},
    "torch.autograd.anomaly_mode": {"detect_anomaly": {"check_nan": Settings._anomalies_detected}},
    "torch.amp.grad_scaler": _SCALER,
    "torch.cuda.amp.grad_scaler": _SCALER,  # Before torch 2.3.
    "torch.nn.parallel.distributed": {_DDP_CLASS: {**_DDP, "device_ids": Settings._made}},
    "torch.utils.data.dataloader": {"DataLoader": {"dataset": Settings._made}},
    "torch.optim.optimizer": {"Optimizer": {"defaults": Settings._made}},
    "torch.distributed.fsdp.fully_sharded_data_parallel": {"FullyShardedDataParallel": _FSDP},
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": {"FSDPParamGroup": _FULLY_SHARD},
    "torch.distributed._composable.fsdp._fsdp_param_group": {"FSDPParamGroup": _FULLY_SHARD},  # Before torch 2.6.
}


def _hook(module: ModuleType) -> None:
    """Note attributes of objects as they are set, for the classes of this module that _NOTES names."""
    for kind, notes in _NOTES.get(module.__name__, {}).items():
        for attribute, note in notes.items():
            owner = getattr(module, kind, None)
            if owner is not None and not hasattr(owner, attribute):  # Else it is more than an attribute of objects.
                setattr(owner, attribute, _NotedWhenSet(attribute, note))


def _backend() -> str | None:
    """The backend of the process group, as "nccl"; None if there is none."""
    group = process_group()
    return None if group is None else str(group.get_backend())


def _compiled() -> bool:
    """Whether torch.compile was called; that its modules are imported does not say so."""
    frames, evaluation = sys.modules.get("torch._dynamo.utils"), sys.modules.get("torch._dynamo.eval_frame")
    counted = frames is not None and bool(frames.counters.get("frames"))
    return counted or (evaluation is not None and any(map(callable, evaluation.cached_backends.values())))


def if_known(ask: Callable[[], T]) -> T | None:
    """What `ask()` returns; None if it raises. No warnings: torch warns of settings that have newer names."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ask()
    except Exception:
        return None


MOST_GUARDS = 8  # That are kept: those by which most compiled forms failed (chosen).
LONGEST_GUARD = 200  # characters
_REASON = re.compile(r"(?P<form>\d+/\d+): (?P<said>[^\n]*)(?P<rest>.*)", re.DOTALL)
_COMMENT = re.compile(r"\s{2,}#.*|\s*\(HINT:.*")
_TENSOR = re.compile(r"tensor '(?P<source>.+?)' ")
_LINE = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\S+)')
_SIZE = re.compile(r"(size|stride) mismatch|\.(size|stride)\(\)")


def failed_guards() -> list[dict[str, object]]:
    """The fields of `FailedGuard` in the manifest, for each; none where torch.compile was not used, or keeps none."""
    utils = sys.modules.get("torch._dynamo.utils")
    failures = getattr(utils, "guard_failures", {})
    found = [one for code, reasons in list(failures.items()) for one in of_function(code, map(str, list(reasons)))]
    return sorted(found, key=lambda one: -int(str(one["forms"])))[:MOST_GUARDS]


def of_function(code: Any, reasons: Iterable[str]) -> list[dict[str, object]]:
    """The guards of one function, each with how many of its compiled forms failed by it, as torch 2.13 says it.

    `0/3: self.calls == 3   # self.calls += 1  # train.py:5 in forward`, then the user's stack; of a tensor
    `0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3`.
    """
    forms: dict[tuple[str, bool], dict[str, re.Match[str]]] = {}
    for reason in reasons:
        if parts := _REASON.match(reason):
            said = _COMMENT.sub("", parts["said"])
            tensor = _TENSOR.match(said)
            source = tensor["source"] if tensor else said.partition(" == ")[0]
            forms.setdefault((source, bool(_SIZE.search(said))), {})[parts["form"]] = parts
    return [_guard(code, source, is_size, parts) for (source, is_size), parts in forms.items()]


def _guard(code: Any, source: str, is_size: bool, parts: dict[str, re.Match[str]]) -> dict[str, object]:
    """A failed guard as in the manifest: its text, in how many forms it failed, and the user's line that it guards."""
    last_form = list(parts.values())[-1]
    lines = _LINE.findall(last_form["rest"])
    file, line, function = lines[-1] if lines else (code.co_filename, code.co_firstlineno, code.co_name)
    return {
        "source": source[:LONGEST_GUARD],
        "said": _COMMENT.sub("", last_form["said"])[:LONGEST_GUARD],
        "is_size": is_size,
        "forms": len(parts),
        "file": _short(file),
        "line": int(line),
        "function": function,
    }


def _short(file: str) -> str:
    folders = sorted((f"{one.rstrip(os.sep)}{os.sep}" for one in sys.path if one), key=len, reverse=True)
    return file.removeprefix(next((folder for folder in folders if file.startswith(folder)), ""))
