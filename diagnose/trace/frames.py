"""What the names of Python frames say: where their functions stand, and whether these are the user's own.

What counts is the call that the user's own code makes: of what that calls in turn nothing is told.
"""

import re
import sys
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.trace import enums, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import CalleeKind, callee_kind

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
    """The line that a mark of `capture.agent.lines` names, 0 if it is unknown from then on; NO_MARK of other names."""
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


def _file(name: str, other: str = "") -> str:
    """The file of a frame, with slashes; `other` if it is none."""
    site = frame_site(name)
    return site.file.replace("\\", "/") if site else other


def is_profiler(name: str) -> bool:
    """Whether a frame is of torch's profiler, or of one made like it."""
    return _PROFILER.match(_file(name)) is not None


def is_user_frame(name: str, libraries: Collection[str] = ()) -> bool:
    """Whether a Python frame is the user's own code, rather than Python's, generated, or of an installed library.

    Files are named from where Python finds them, so that nothing in a name may say that its module is installed:
    `libraries` are modules that are known to be.
    """
    file = _file(name, "<")
    module = file.partition("/")[0].removesuffix(".py")
    return not (
        module in sys.stdlib_module_names or module in libraries or _INSTALLED.search(file) or _LIBRARY.match(file)
    )


_PACKAGES = re.compile(r".*(?:(?:site|dist)-packages|lib/python3[.\d]+)/", re.DOTALL)
_FRAMEWORK = ("torch", "triton")  # Their work shows as ops and kernels.

_WRAPPERS = ("wrapper", "wrapped", "inner", "decorator")  # Usual names of what decorators put around.

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
    file = _file(name)
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


OWN, TORCH, RECORDER, COLLECTION = "", "torch", "recorder", "Python GC"
"""Names of what the user's line does itself; of calls of the framework, which show as ops and launches; of what our
recorder does; and of garbage that Python collects by itself, which may come anywhere."""

MOST = 0.5  # A call is named if it fills this share of some time (our choice).

_RECORDER = re.compile(r"(^|/)diagnose/capture/")
_BUILT_IN = re.compile(r"<built-in (?:function|method) (\w+)(?: of (?:\w+\.)*(\w+) object)?")
_MODULES = {"collect": "gc", "sleep": "time", "tensor": "torch", "as_tensor": "torch", "asarray": "torch"}
"""Of C functions that are named without their module, and are known by it."""


def named(frame: str, libraries: Collection[str] = ()) -> str:
    """What to call a frame that the user's code called: OWN, TORCH, RECORDER, or its own name without an address."""
    if _RECORDER.search(frame):
        return RECORDER
    kind = callee_kind(frame)
    if kind is CalleeKind.LANGUAGE or is_user_frame(frame, libraries) or loop_owner(frame):
        return OWN
    return TORCH if kind is CalleeKind.TORCH else re.sub(r" at 0x[0-9a-f]+>?\Z", ">", frame)


def short(frame: str) -> str:
    """The name of a call for people, such as `json.dumps`, `gc.collect` or `BufferedReader.read`."""
    if site := frame_site(frame):
        return ".".join((*public_modules(site.file), site.function))
    found = _BUILT_IN.match(frame)
    if found is None:
        return frame
    owner = found[2] if found[2] not in ("type", "module") else None
    return ".".join(filter(None, (owner or _MODULES.get(found[1]), found[1])))


class Callees(Struct, frozen=True):
    """Stretches of host threads, of which the innermost counts. Arrays of shape (stretches,)."""

    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    name: IntArray  # Position in `names`: of `OWN`, `TORCH`, or a frame.
    calls: IntArray  # That begin in it.
    names: tuple[str, ...]

    def cut(self, times: Intervals) -> tuple[Intervals, IntArray]:
        """Times, none of them empty, in pieces of one name each, and for each piece the position of its time."""
        return intervals.cut(times, np.concatenate((self.start_ns, self.end_ns)))

    def at(self, moments_ns: IntArray, tracks: IntArray) -> IntArray:
        """The name at each moment; that of `OWN` where nothing is known. Shape (moments,)."""
        found = intervals.innermost_at(moments_ns, tracks, self.track, self.start_ns, self.end_ns)
        return np.append(self.name, self.names.index(OWN))[found]

    def begun(self, times: Intervals, tracks: IntArray, names: IntArray) -> IntArray:
        """How many calls of that name begin in each time. Shape (times,)."""
        span = int(max(self.end_ns.max(initial=0), times.ends.max(initial=0))) + 1
        key = (self.track * len(self.names) + self.name) * span + self.start_ns
        order = np.argsort(key)
        before = np.concatenate(([0], np.cumsum(self.calls[order])))
        of = (tracks * len(self.names) + names) * span
        first, past = (np.searchsorted(key[order], of + moments) for moments in (times.starts, times.ends))
        found: IntArray = before[past] - before[first]
        return found

    def longest(self, times: Intervals, tracks: IntArray) -> tuple[IntArray, IntArray]:
        """The name that fills MOST of each time, else `OWN`; and the middle of its longest piece. Shapes (times,)."""
        name, moment = np.full(times.size, self.names.index(OWN)), (times.starts + times.ends) // 2
        some = np.flatnonzero(times.ends > times.starts)
        if not len(some):
            return name, moment
        pieces, owner = self.cut(times.where(some))
        middle, lasted = (pieces.starts + pieces.ends) // 2, pieces.ends - pieces.starts
        at = self.at(middle, tracks[some[owner]])
        pairs, pair = np.unique(owner * len(self.names) + at, return_inverse=True)
        spent = np.bincount(pair.reshape(-1), lasted)
        most = _largest(pairs // len(self.names), spent)
        filled = spent[most] >= MOST * (times.ends - times.starts)[some]
        name[some[filled]] = (pairs % len(self.names))[most[filled]]
        here = np.flatnonzero(at == name[some[owner]])
        longest = here[_largest(owner[here], lasted[here])]
        moment[some[owner[longest]]] = middle[longest]
        return name, moment


def _largest(group: IntArray, size: npt.NDArray[np.float64] | IntArray) -> IntArray:
    """The position of the largest `size` in each group, in order of group."""
    order = np.lexsort((size, group))
    last: IntArray = order[np.append(group[order][1:] != group[order][:-1], True)[: len(order)]]
    return last


def of_frames(spans: pd.DataFrame, libraries: Collection[str]) -> Callees:
    """The calls that frames show: the user's own frames, what these call directly, our recorder's, collections."""
    labels, codes = spans["name"].cat.categories, spans["name"].cat.codes.to_numpy().astype(np.int64)
    ids = np.flatnonzero(spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON))
    names = {name: k for k, name in enumerate((OWN, TORCH, RECORDER, COLLECTION))}
    number, calls_on = np.zeros(len(labels), dtype=np.int64), np.zeros(len(labels), dtype=bool)
    for code in np.unique(codes[ids]).tolist():
        frame = str(labels[code])
        calls_on[code] = is_user_frame(frame, libraries) or loop_owner(frame) is not None
        number[code] = names.setdefault(named(frame, libraries), len(names))
    start = spans["start_ns"].to_numpy()[ids]
    end, track = start + spans["dur_ns"].to_numpy()[ids], spans["track"].to_numpy()[ids].astype(np.int64)
    up = intervals.parents(track, start, end)
    caller, name = calls_on[codes[ids]], number[codes[ids]]
    collects = np.array([callee_kind(label) is CalleeKind.GARBAGE_COLLECTION for label in names], dtype=bool)
    asked = (name == names[COLLECTION]) & (up >= 0) & collects[name[up]]
    name = np.where(asked, name[up], name)
    kept = caller | ((up >= 0) & caller[up]) | np.isin(name, (names[RECORDER], names[COLLECTION]))
    calls = ((name > names[COLLECTION]) & ~asked).astype(np.int64)
    return Callees(start[kept], end[kept], track[kept], name[kept], calls[kept], tuple(names))
