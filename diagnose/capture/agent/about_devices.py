"""The CUDA devices of the process and what connects them, as torch and NVIDIA's management library (NVML) know them."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from itertools import combinations
from typing import Any

from .alone import alone, uses_gpu

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"

_SM_CLOCK, _ON_GPU, _P2P_NVLINK, _P2P_OK = 1, 0, 2, 0  # Numbers of nvml.h.
_HELD_BACK_BY = (  # nvmlClocksThrottleReasons, from the lowest bit on.
    *("GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "HwSlowdown", "SyncBoost"),
    *("SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "DisplayClockSetting"),
)

_SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # Those that are heat and power.


def devices() -> list[dict[str, object]]:
    """The fields of `DeviceState` for each device that this process can use; none unless CUDA is in use."""
    if not uses_gpu():
        return []
    torch = sys.modules["torch"]
    with Nvml() as nvml:
        return [_device(torch, nvml, index) for index in range(torch.cuda.device_count())]


def links() -> list[dict[str, object]]:
    """The fields of `Links` for each pair of `devices`; without pairs that NVML does not know."""
    if not uses_gpu():
        return []
    torch = sys.modules["torch"]
    with Nvml() as nvml:
        handles = [nvml.handle(torch, index) for index in range(torch.cuda.device_count())]
        return [
            {"devices": (one, other), "kind": "nvlink" if status == _P2P_OK else "pcie"}
            for one, other in combinations(range(len(handles)), 2)
            if (status := nvml.ask("nvmlDeviceGetP2PStatus", handles[one], handles[other], _P2P_NVLINK)) is not None
        ]


def _properties(torch: Any, index: int) -> dict[str, object]:
    found = torch.cuda.get_device_properties(index)
    return {
        "name": str(found.name),
        "memory_bytes": int(found.total_memory),
        "compute_capability": (int(found.major), int(found.minor)),
        "multiprocessors": int(found.multi_processor_count),
    }


def _device(torch: Any, nvml: Nvml, index: int) -> dict[str, object]:
    """A device as in the manifest: its properties, and its clock, temperature, power and limits now."""
    properties = {"index": index, **alone("the properties of devices", _properties, torch, index, default={})}
    handle = nvml.handle(torch, index)
    now, limit = nvml.now(handle), nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    return properties | {
        **{name: now[name] for name in ("sm_clock_mhz", "temperature_c", "power_w")},
        "most_sm_clock_mhz": nvml.ask("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        "power_limit_w": None if limit is None else limit / 1000,
        "throttled_by": nvml.held_back_by(handle),
    }


class Nvml:
    """NVML, open within `with`. What it does not know, or where there is no NVML, is None."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._name = library
        self._library: ctypes.CDLL | None = None

    def __enter__(self) -> Nvml:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(self._name)
            if library.nvmlInit_v2() == 0:
                self._library = library
        return self

    def __exit__(self, *error: object) -> None:
        if self._library is not None:
            with suppress(AttributeError):
                self._library.nvmlShutdown()

    def handle(self, torch: Any, index: int) -> ctypes.c_void_p | None:
        """NVML's handle of a device by its number in torch, which counts only CUDA_VISIBLE_DEVICES; None if unknown."""
        with suppress(Exception):
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            name = ctypes.c_char_p((uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode())
            found = self._answer(ctypes.c_void_p(), "nvmlDeviceGetHandleByUUID", name)
            if found is not None:
                return ctypes.c_void_p(found)
        with suppress(Exception):
            number = ctypes.c_uint(torch.cuda._get_nvml_device_index(index))
            found = self._answer(ctypes.c_void_p(), "nvmlDeviceGetHandleByIndex_v2", number)
            if found is not None:
                return ctypes.c_void_p(found)
        return None

    def ask(self, function: str, *of: ctypes.c_void_p | int | None) -> int | None:
        """What a function of NVML that gives an unsigned int says of these devices and numbers; None if one is None."""
        return None if None in of else self._answer(ctypes.c_uint(), function, *of)

    def held_back_by(self, handle: ctypes.c_void_p | None) -> tuple[str, ...] | None:
        """NVML's names of what lowers the device's clock now; empty: nothing; None: unknown."""
        bits = self._reasons(handle)
        return None if bits is None else tuple(name for at, name in enumerate(_HELD_BACK_BY) if bits >> at & 1)

    def _reasons(self, handle: ctypes.c_void_p | None) -> int | None:
        """Bits on why clocks are lowered now; None if unknown. Newer drivers have the function under another name."""
        names = ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons")
        for function in names if handle is not None else ():
            if (bits := self._answer(ctypes.c_ulonglong(), function, handle)) is not None:
                return bits
        return None

    def now(self, handle: ctypes.c_void_p | None) -> dict[str, float | None]:
        """A device's state now, None where unknown; `slowed` is 1.0 where heat or power lower its clock, else 0.0."""
        power, bits = self.ask("nvmlDeviceGetPowerUsage", handle), self._reasons(handle)
        return {
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
            "temperature_c": self.ask("nvmlDeviceGetTemperature", handle, _ON_GPU),
            "power_w": None if power is None else power / 1000,  # It says mW.
            "slowed": None if bits is None else float(bool(bits & _SLOWED)),
        }

    def _answer(self, value: Any, function: str, *arguments: Any) -> int | None:
        """What a function of NVML writes to `value`, its last argument; None without NVML, the function, or success."""
        if self._library is None:
            return None
        try:
            status = getattr(self._library, function)(*arguments, ctypes.byref(value))
        except AttributeError:  # Older or newer than the function.
            return None
        return value.value if status == 0 else None
