"""Settings of PyTorch in this process: those that can be read, and those that are noted when the script makes them."""

import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from . import noticed
from .alone import failed, uses_gpu
from .imports import when_imported

MOST_WRAPPED = 256  # Wrapped modules whose options are noted (our choice).

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
        """Begin to note, as the script imports what there is to note. Of several settings the last ones note."""
        global _settings
        if _settings is None:
            for module in _NOTES:
                when_imported(module, _hook)
        _settings = self

    def flags(self) -> dict[str, object]:
        """As `Flags`."""
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
        """As `Distributed`; None if the process works alone."""
        backend = if_known(_backend) or self._backend
        if backend is None:
            return None
        calls = [
            found for one in list(self._known) if type(one).__name__ == _DDP_CLASS and (found := noticed.where(one))
        ]
        return {
            "backend": backend,
            "ddp": self._wrapped["ddp"],
            "fsdp": _alike(self._wrapped["fsdp"]),
            "ddp_made": calls,
        }

    def allocator(self) -> dict[str, int]:
        """Of CUDA's caching allocator: bytes in use and reserved, now and most; counts of what goes wrong."""
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

    def autocast_begins(self, mode: Any, value: object) -> None:
        """It keeps what was before, as its last setting of its own."""
        if mode._enabled:
            self._autocast[str(mode.device)] = _name(mode.fast_dtype) or ""

    def anomalies_detected(self, mode: Any, value: object) -> None:
        """For a part of the step, so that its end does not see it."""
        self._anomalies = True

    def scaler_made(self, scaler: Any, value: object) -> None:
        """Whether it does anything is not known yet."""
        self._scaler = bool(self._scaler)

    def scaler_scales(self, scaler: Any, value: object) -> None:
        """Only one that is enabled has a scale."""
        self._scaler = True

    def made(self, one: Any, value: object) -> None:
        """A loader, an optimizer or a wrapped model is being made."""
        noticed.note(one)

    def wrapped(self, kind: str, option: str, read: Callable[[Any], Option], module: Any, value: object) -> None:
        """An option of a module that runs on several ranks was set."""
        options = self._known.get(module)
        if options is None:
            self._backend = if_known(_backend) or self._backend
            options = self._known[module] = {}
            if len(self._wrapped[kind]) < MOST_WRAPPED:
                self._wrapped[kind].append(options)
        options[option] = read(value)


_settings: Settings | None = None


class _NotedWhenSet:
    """An attribute of objects that is noted when it is set.

    Unlike a wrapper of the function that sets it, it adds no frame, at which torch's warnings would point.
    """

    def __init__(self, name: str, note: Callable[[Settings, Any, object], None]) -> None:
        self._name, self._note = name, note

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """What lacks it has to say so: wrappers of optimizers have what they lack from what they wrap."""
        if instance is None:
            return self
        try:
            return instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__[self._name] = value
        try:
            if _settings is not None:
                self._note(_settings, instance, value)
        except Exception as error:
            failed(f"{type(instance).__name__}.{self._name}", error)

    def __delete__(self, instance: Any) -> None:
        try:
            del instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None


def _name(value: object) -> str | None:
    return None if value is None else str(value).rpartition(".")[2]


def _of(attribute: str, read: Callable[[Any], Option]) -> Callable[[Any], Option]:
    return lambda value: read(getattr(value, attribute))


def _wrapping(kind: str, **read: tuple[str, Callable[[Any], Option]]) -> dict[str, Callable[..., None]]:
    def note(option: str, convert: Callable[[Any], Option]) -> Callable[..., None]:
        return lambda settings, module, value: settings.wrapped(kind, option, convert, module, value)

    return {attribute: note(*how) for attribute, how in read.items()}


_DDP_CLASS = "DistributedDataParallel"
_SCALER = {"GradScaler": {"_enabled": Settings.scaler_made, "_init_scale": Settings.scaler_scales}}
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
_NOTES: dict[str, Mapping[str, Mapping[str, Callable[..., None]]]] = {
    "torch.amp.autocast_mode": {"autocast": {"prev_fastdtype": Settings.autocast_begins}},
    "torch.autograd.anomaly_mode": {"detect_anomaly": {"check_nan": Settings.anomalies_detected}},
    "torch.amp.grad_scaler": _SCALER,
    "torch.cuda.amp.grad_scaler": _SCALER,  # Before torch 2.3.
    "torch.nn.parallel.distributed": {_DDP_CLASS: {**_DDP, "device_ids": Settings.made}},
    "torch.utils.data.dataloader": {"DataLoader": {"dataset": Settings.made}},
    "torch.optim.optimizer": {"Optimizer": {"defaults": Settings.made}},
    "torch.distributed.fsdp.fully_sharded_data_parallel": {"FullyShardedDataParallel": _FSDP},
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": {"FSDPParamGroup": _FULLY_SHARD},
    "torch.distributed._composable.fsdp._fsdp_param_group": {"FSDPParamGroup": _FULLY_SHARD},  # Before torch 2.6.
}
"""What is noted when an attribute is set, by module, class and attribute."""


def _hook(module: ModuleType) -> None:
    for kind, notes in _NOTES.get(module.__name__, {}).items():
        for attribute, note in notes.items():
            owner = getattr(module, kind, None)
            if owner is not None and not hasattr(owner, attribute):  # Else it is more than an attribute of objects.
                setattr(owner, attribute, _NotedWhenSet(attribute, note))


def _alike(some: list[Options]) -> list[Options]:
    """Different options, and how many modules have each: there is one for each layer."""
    found: list[Options] = []
    for options in some:
        known = next((one for one in found if {**one, "modules": None} == {**options, "modules": None}), None)
        if known is None:
            found.append({**options, "modules": 1})
        else:
            known["modules"] = int(known["modules"] or 0) + 1
    return found


def _backend() -> str | None:
    """Of the process group; None if there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return str(distributed.get_backend())


def _compiled() -> bool:
    """Whether torch.compile was called; torch imports what compiles for other reasons, too."""
    frames, evaluation = sys.modules.get("torch._dynamo.utils"), sys.modules.get("torch._dynamo.eval_frame")
    counted = frames is not None and bool(frames.counters.get("frames"))
    return counted or (evaluation is not None and any(map(callable, evaluation.cached_backends.values())))


def if_known(ask: Callable[[], T]) -> T | None:
    """None if it fails; torch warns of reading settings that have newer names."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ask()
    except Exception:
        return None
