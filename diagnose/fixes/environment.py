"""Settings of the environment that torch, or what it stands on, reads when it starts."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .interfaces import CannotSwitch, Editor, Edits, Injection, Switch, no_gpu
from .setting import Argument, Loop, Run, Safety, Setting, Words, as_in_own_loop, flag

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import RankManifest

MALLOC = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}  # And what glibc's mallopt() calls them.
VARIABLES = frozenset(
    {
        *("OMP_NUM_THREADS", "CUDA_LAUNCH_BLOCKING", *MALLOC),
        *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
        *("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"),
    }
)
Pairs = tuple[tuple[str, str], ...]  # Names and values; an empty value takes a variable out.

ALLOW_TF32, FORBID_TF32 = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"), ("NVIDIA_TF32_OVERRIDE", "")


@dataclass(frozen=True)
class Environment(Setting):
    """Environment variables; an empty value unsets one. Raises ValueError for names not in VARIABLES."""

    value: Pairs = ()

    form = "env:"
    takes = {"": lambda value: bool(value) and VARIABLES.issuperset(name for name, _ in value)}  # type: ignore[attr-defined]

    framework = as_in_own_loop

    @property
    def name(self) -> str:
        return self.form + _written(self.value)

    @property
    def variables(self) -> Pairs:
        return self.value

    @property
    def changes(self) -> Safety:
        return Safety.ROUNDING if "OMP_NUM_THREADS" in dict(self.value) else Safety.SAME_NUMBERS

    @property
    def link(self) -> str:
        if self.value[0][0].startswith("MALLOC_"):
            return "https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html"
        return "https://docs.pytorch.org/docs/stable/notes/cuda.html"

    def words(self) -> Words:
        gone = [name for name, value in self.value if not value]
        assigned = _written(tuple(pair for pair in self.value if pair[1]))
        return Words(
            f"Unset {' and '.join(gone)}." if gone else f"Set {assigned}.",
            f"{gone[0]}=1 python train.py" if gone else "python train.py",
            f"{assigned} python train.py".lstrip(),
        )

    def in_force(self, run: Run) -> bool:
        """False if it only unsets variables: one that the recording lacks may have been set and not recorded."""
        as_asked = all(run.environment.get(name, "") == value for name, value in self.value)
        return as_asked and any(value for _, value in self.value)

    def inject(self, injection: Injection) -> None:
        """The parent has started the process with the values set; here variables with an empty value are unset."""
        _take_out(injection, self.value)

    @property
    def why_no_switch(self) -> str:
        known = all(name in MALLOC and value for name, value in self.value)
        return "" if known else "the variable is read when the process starts"

    @property
    def varies_by_process(self) -> bool:
        """True for malloc()'s thresholds: whether glibc can give memory back depends on where blocks happen to lie."""
        return not self.why_no_switch

    def switch(self, injection: Injection) -> Switch:
        return _malloc_switch(self.value)

    def took_effect(self, rank: RankManifest) -> str:
        threads = dict(self.value).get("OMP_NUM_THREADS", "")  # Empty: it is taken out, and torch counts cores.
        if rank.flags.threads is not None and threads not in ("", str(rank.flags.threads)):
            return f"torch computes with {rank.flags.threads} threads, which the script sets itself"
        gpu = [name for name, _ in self.value if "OMP" not in name and "MALLOC_" not in name]
        return f"PyTorch used no GPU, to which {gpu[0]} applies" if gpu and not rank.allocator else ""

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        edits = [edit for name, value in self.value for edit in editor.variable(name, value)]
        if not edits:
            editor.refuse(f"nothing in your files sets {' or '.join(name for name, _ in self.value)}")
        return edits


def _written(variables: Pairs) -> str:
    return " ".join("=".join(pair) for pair in variables)


def _take_out(injection: Injection, variables: Pairs) -> None:
    """Unset variables with an empty value; note all of them. `injection.check` tells if the script changes one then."""
    for name, value in variables:
        if not value:
            os.environ.pop(name, None)
    said = [f"{name}={value}" if value else f"no {name}" for name, value in variables]
    injection.note_everywhere(f"{' '.join(said)} in the environment")

    def changed() -> str:
        other = (name for name, value in variables if os.environ.get(name, "") != value)
        return next((f"the script sets {name} itself" for name in other), "")

    injection.check = changed


@dataclass(frozen=True)
class Tf32(Setting):
    """fp32 matmuls use TF32. `value`: whether NVIDIA_TF32_OVERRIDE, which forbids that, has to be unset, too."""

    value: Any = False

    form = "env:"
    takes = {"": flag}
    changes = Safety.PRECISION
    link = "https://docs.pytorch.org/docs/stable/notes/cuda.html"

    @property
    def name(self) -> str:
        return self.form + _written(self.variables)

    @property
    def variables(self) -> Pairs:
        return (ALLOW_TF32, FORBID_TF32) if self.value else (ALLOW_TF32,)

    def words(self) -> Words:
        if self.value:
            return Words("Unset NVIDIA_TF32_OVERRIDE: the value 0 forbids TF32.", "NVIDIA_TF32_OVERRIDE=0")
        return Words("Allow TF32.", after='torch.set_float32_matmul_precision("high")')

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        if self.value:
            return None
        if loop is Loop.TRANSFORMERS:
            return Argument("transformers.TrainingArguments", "tf32", True)
        return "before trainer.fit(model)" if loop is Loop.LIGHTNING else None

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.cuda_matmul_allow_tf32 is True and run.environment.get(FORBID_TF32[0]) != "0"

    def inject(self, injection: Injection) -> None:
        _take_out(injection, self.variables)

    @property
    def why_no_switch(self) -> str:
        return f"{FORBID_TF32[0]} is read when the process starts" if self.value else ""

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if why := no_gpu(torch):
            raise CannotSwitch(f"{why}, to which TF32 applies")
        before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        if torch.backends.cuda.matmul.allow_tf32:
            raise CannotSwitch("the script allows TF32 already")

        def turn(on: bool) -> None:
            torch.set_float32_matmul_precision("high" if on else before)
            torch.backends.cudnn.allow_tf32 = on or cudnn

        def why_none() -> str:
            return "" if torch.backends.cuda.matmul.allow_tf32 else "the script forbids TF32 itself"

        return Switch(turn, why_none, f"torch.get_float32_matmul_precision() {before} -> high")

    def took_effect(self, rank: RankManifest) -> str:
        if rank.flags.cuda_matmul_allow_tf32 is False:
            return "torch still does not allow TF32"
        return "" if rank.allocator else f"PyTorch used no GPU, to which {ALLOW_TF32[0]} applies"

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        edits = editor.call_once("set_float32_matmul_precision", "precision", "high")
        return edits + editor.variable(*FORBID_TF32) if self.value else edits


LEAST, MOST = 128 << 10, 32 << 20
"""Bytes between which glibc moves its mmap threshold by itself: to the largest mapped block that was freed."""

PAGE = 4096
HEADER = ctypes.sizeof(ctypes.c_size_t)  # Bytes before a block: its size, and in bit 1 whether it has its own mmap().
MAPPED = 2


class _Used(ctypes.Structure):
    """`struct mallinfo2` of malloc.h: `hblks` is how many blocks have their own mmap(), `hblkhd` their bytes."""

    _fields_ = [
        (name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", *map(str, range(5)))
    ]


def _malloc_switch(variables: Pairs) -> Switch:
    """A switch of malloc()'s thresholds: on as these variables set them, off as glibc has moved them by now.
    From the first call on glibc moves them no more, off as well. Raises CannotSwitch.
    https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html"""
    library = _library()
    if given := [name for name in (*MALLOC, "GLIBC_TUNABLES") if os.environ.get(name)]:
        raise CannotSwitch(f"{given[0]} is in the environment already")
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(_mapped_from(library)))
    thread.start()  # A thread's heap is small, so that it shows from where on blocks are mapped.
    thread.join()
    moved = {"MALLOC_MMAP_THRESHOLD_": found[0], "MALLOC_TRIM_THRESHOLD_": found[0] * (2 if found[0] > LEAST else 1)}
    refused = list[str]()

    def turn(on: bool) -> None:
        for name, value in variables:
            if not library.mallopt(MALLOC[name], int(value) if on else moved[name]):
                refused.append(name)
        if not on:
            library.malloc_trim(0)  # What was kept meanwhile is given back, as it would have been.

    turn(False)
    what = f"mallopt(): {_written(variables)}"
    return Switch(turn, lambda: f"glibc refuses this {refused[0]}" if refused else "", what)


def _library() -> Any:
    """glibc by ctypes, ready to call. Raises CannotSwitch if it is too old, or malloc() is another allocator's."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallinfo2"):
        raise CannotSwitch("the thresholds of malloc() need glibc 2.33")
    library.mallinfo2.restype = _Used
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    before = library.mallinfo2().hblkhd
    block = library.malloc(2 * MOST)
    mapped = library.mallinfo2().hblkhd - before
    if mapped < 2 * MOST:  # It is not freed: that could move the threshold. Nothing has touched it.
        raise CannotSwitch("malloc() is not glibc's")
    assert block
    return library


def _mapped_from(library: Any) -> int:
    """The mmap threshold in bytes, to a page. Mapped blocks are not freed here: that would move the threshold."""
    low, high = LEAST // PAGE - 1, MOST // PAGE
    while high - low > 1:
        middle = (low + high) // 2
        block = library.malloc(middle * PAGE - HEADER)
        if ctypes.c_size_t.from_address(block - HEADER).value & MAPPED:
            high = middle
        else:
            library.free(block)
            low = middle
    return high * PAGE
