"""What the names of Python frames say: where their functions stand, and whether these are the user's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection

from msgspec import Struct

# torch cuts sys.path off, so that installed packages show as `torch/...`.
_FRAME = re.compile(r"(.+)\(([0-9]{1,9})\): (.*)\Z", re.DOTALL)
_INSTALLED = re.compile(
    r"(site|dist)-packages/|lib/python3[.\d]+/|/torchinductor_|/pytorch/torch/|^<(?!ipython)"
    r"|(^|/)diagnose/capture/"
)
_LIBRARY = re.compile(
    r"(torch(vision|audio|data|rec|titan|metrics)?|triton|numpy|pandas|scipy|PIL|transformers|accelerate|peft|trl|timm|apex"
    r"|(pytorch_)?lightning|diffusers|deepspeed|megatron|transformer_engine|vllm|tqdm|wandb|typing_extensions)(\.py)?(/|\Z)"
)


class Site(Struct, frozen=True):
    """A place in Python code."""

    file: str
    line: int  # Where the function starts, as profilers record it, or the one that ran; 0: not known.
    function: str

    @property
    def place(self) -> str:
        """file:line, or the file where the line is not known."""
        return f"{self.file}:{self.line}" if self.line else self.file


def frame_site(name: str) -> Site | None:
    """Where the function of a Python frame stands; None for built-ins and modules."""
    frame = _FRAME.match(name)
    return Site(frame[1], int(frame[2]), frame[3]) if frame else None


NO_MARK = -1
_MARK = re.compile(r"diagnose\.line\(([0-9]{1,9})\): ")
_PROFILER = re.compile(r"(.*/)?torch\w*/(autograd/)?profiler\b")


def marked_line(name: str) -> int:
    """The line to which a range of `capture.agent.lines` says that a function comes; NO_MARK if it is no such range.

    0: from then on no line is known.
    """
    mark = _MARK.match(name)
    return int(mark[1]) if mark else NO_MARK


def function(name: str) -> str:
    """The function of a frame, or of what marks its line; empty if it is neither."""
    frame = _FRAME.match(name)
    return frame[3] if frame else ""


def at_line(name: str, line: int) -> str:
    """A frame's name at another of its lines."""
    frame = _FRAME.match(name)
    return f"{frame[1]}({line}): {frame[3]}" if frame else name


def is_profiler(name: str) -> bool:
    """Whether a frame is of torch's profiler, or of one made like it."""
    site = frame_site(name)
    return site is not None and _PROFILER.match(site.file.replace("\\", "/")) is not None


def is_user_frame(name: str, libraries: Collection[str] = ()) -> bool:
    """Whether a Python frame is the user's own code, rather than Python's, generated, or of an installed library.

    Files are named from where Python finds them, so that nothing in a name may say that its module is installed:
    `libraries` are modules that are known to be.
    """
    site = frame_site(name)
    file = site.file.replace("\\", "/") if site else "<"
    module = file.partition("/")[0].removesuffix(".py")
    return not (
        module in sys.stdlib_module_names or module in libraries or _INSTALLED.search(file) or _LIBRARY.match(file)
    )


_PACKAGES = re.compile(r".*(?:(?:site|dist)-packages|lib/python3[.\d]+)/", re.DOTALL)
_FRAMEWORK = ("torch", "triton")  # Their work shows as ops and kernels.

_WRAPPERS = ("wrapper", "wrapped", "inner", "decorator")
"""Usual names of functions that a decorator puts around others."""


_OWNERS = (
    ("transformers", re.compile(r"(.*/)?transformers/trainer(_\w+)?\.py\Z")),
    ("lightning", re.compile(r"(.*/)?(pytorch_lightning|lightning/pytorch)/")),
    ("deepspeed", re.compile(r"(.*/)?deepspeed/runtime/")),
    ("fabric", re.compile(r"(.*/)?(lightning_fabric|lightning/fabric)/")),
    ("accelerate", re.compile(r"(.*/)?accelerate/(accelerator|data_loader|optimizer|scheduler)\.py\Z")),
)
"""Files that run or wrap a training's loop, by `fixes.setting.Loop`. An earlier one may stand on a later one."""


def loop_owner(name: str) -> str | None:
    """The framework whose training loop, or part of it, a Python frame is of; None if it is of none."""
    site = frame_site(name)
    file = site.file.replace("\\", "/") if site else ""
    return next((owner for owner, files in _OWNERS if files.match(file)), None)


def outermost_owner(owners: Collection[str]) -> str | None:
    """Of these frameworks the one that stands on the others."""
    return next((owner for owner, _ in _OWNERS if owner in owners), None)


def library_function(name: str, libraries: Collection[str] = ()) -> str | None:
    """The public function of an installed package that a Python frame is of, as `scipy.ndimage.zoom`, or None.

    A package's private modules are left out of the name, as functions of them are public by another. Python's own
    library is no package, nor is the framework.
    """
    site = frame_site(name)
    if site is None or site.function.startswith(("_", "<")) or site.function in _WRAPPERS:
        return None
    file, found = _PACKAGES.subn("", site.file.replace("\\", "/"))
    top = file.partition("/")[0].removesuffix(".py")
    if not (found or _LIBRARY.match(file) or top in libraries) or top in _FRAMEWORK or top in sys.stdlib_module_names:
        return None
    if any(folder.startswith("_") for folder in file.split("/")[:-1]):
        return None
    return ".".join((*public_modules(file), site.function))


def public_modules(file: str) -> tuple[str, ...]:
    """The package and modules that a library's file is, as `("scipy", "ndimage")`, without private ones."""
    modules = _PACKAGES.sub("", file.replace("\\", "/")).removesuffix(".py").split("/")
    return tuple(module for module in modules if module and not module.startswith("_"))
