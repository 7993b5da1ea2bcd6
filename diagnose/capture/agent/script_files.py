"""The script's modules and files: acting on its imports, what it imported, wrote and read; and our own modules."""

import hashlib
import importlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from . import noticed
from .alone import tried
from .threads import is_library

Act = Callable[[ModuleType], None]
_waiting: dict[str, list[Act]] = {}


def when_imported(name: str, act: Act) -> None:
    """Call `act(module)` once, after the module has been imported; at once if it has been already.

    What `act` raises is only noted: nothing of ours may break the script's import.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        tried(module.__name__, act, module)
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(act)


class _Finder:
    """A finder for imports: others find the module; what `_waiting` has for it is called once it is imported."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            if (spec := finder.find_spec(fullname, path, target)) is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _call_after_import(spec.loader, fullname)
                return spec
        return None


def _call_after_import(loader: Any, name: str) -> None:
    """Have this loader, which serves one module only, call what waits for that module once it has run it."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        for act in _waiting.pop(name, []):
            tried(module.__name__, act, module)

    loader.exec_module = exec_module


NAME = "diagnose_standalone"


def standalone(name: str) -> Any:
    """A module by its name in `diagnose`. Where that is not installed, it is imported by its path from here."""
    if __package__ and __package__.startswith("diagnose."):
        return importlib.import_module(f"diagnose.{name}")
    if NAME not in sys.modules:
        package = sys.modules[NAME] = ModuleType(NAME)
        package.__path__ = [str(Path(__file__).parents[2])]
    return importlib.import_module(f"{NAME}.{name}")


MOST_FILES = 200  # That are named (chosen).
LARGEST_BYTES = 1 << 20  # Of a file whose content is hashed (chosen).
_BEGAN_S = time.time()


def imported(script: str | None) -> list[dict[str, object]]:
    """The script and what it imported, of the user's own files, by the fields of `SourceFile`; up to MOST_FILES."""
    modules = {name: module for name, module in sys.modules.items() if name != "sitecustomize"}  # That is ours.
    names = [script, *(getattr(module, "__file__", None) for module in modules.values())]
    files = [name for name in names if isinstance(name, str) and name.endswith(".py") and Path(name).is_absolute()]
    own = [name for name in dict.fromkeys(files) if noticed.is_users(name)][:MOST_FILES]
    return [{"file": name, "sha256": _sha256(Path(name)), "script": name == script} for name in own]


def _sha256(path: Path) -> str | None:
    """The hash of a file; None if it is too large, has been changed since the script began, or cannot be read."""
    try:
        there = path.stat()
        if there.st_size > LARGEST_BYTES or there.st_mtime > _BEGAN_S:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


MOST_WRITTEN = 20  # That are named, with folders (chosen).
WRITING = os.O_WRONLY | os.O_RDWR


class Writes:
    """Files that this process opens for writing, and folders that it makes and in which it has written none yet.

    Caches, temporary files, and those of the recording are left out.
    """

    def __init__(self, recording: Path, earlier: Iterable[str] = ()) -> None:
        """`earlier`: files that an earlier run wrote, named as `found` names them."""
        self._here, self._process, self._ours = Path.cwd(), os.getpid(), recording.resolve()
        self._scratch = [Path("/dev"), Path("/proc"), Path(tempfile.gettempdir()).resolve()]
        self._scratch += [Path.home() / name for name in (".cache", ".triton", ".nv")]
        self._names: dict[str, str] = {}  # By pattern: of checkpoints that differ by numbers the first is named.
        self._earlier, self._reread = {_pattern(str(self._here / name)) for name in earlier}, dict[str, str]()

    def note(self, path: Any, folder: bool = False) -> None:
        """A file is opened for writing, or a folder made. Descriptors, and what forked processes open, do not count."""
        if len(self._names) >= MOST_WRITTEN or (file := self._absolute(path)) is None:
            return
        if file.is_relative_to(self._ours) or "__pycache__" in file.parts or is_library(str(file)):
            return
        name = self._shown(file)
        if not name.is_absolute() or not any(file.is_relative_to(one) for one in self._scratch):
            self._add(name, folder)

    def _absolute(self, path: Any) -> Path | None:
        if os.getpid() != self._process or not isinstance(path, str | bytes | Path):
            return None
        return Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 (a link's own name counts)

    def _shown(self, file: Path) -> Path:
        return file.relative_to(self._here) if file.is_relative_to(self._here) else file

    def _add(self, path: Path, folder: bool) -> None:
        """Note a file, or a folder unless it holds a noted one. A folder goes once anything in it is noted."""
        pattern = _pattern(str(path))
        for parent in Path(pattern).parents:
            self._names.pop(f"{parent}/", None)
        if not folder:
            self._names.setdefault(pattern, str(path))
        elif not any(Path(name).is_relative_to(pattern) for name in self._names):
            self._names[f"{pattern}/"] = f"{path}/"

    def note_reading(self, path: Any) -> None:
        """A file is opened for reading, which an earlier run may have written."""
        if not self._earlier or (file := self._absolute(path)) is None:
            return
        name = str(self._shown(file))
        if _pattern(str(file)) in self._earlier and _pattern(name) not in self._names:
            self._reread.setdefault(_pattern(name), name)

    @property
    def reread(self) -> list[str]:
        """Files that an earlier run wrote and this one has read, and had not written before."""
        return list(self._reread.values())

    def found(self) -> list[str]:
        """Their names, relative to the working folder where they are inside; those of folders end in a slash."""
        return list(self._names.values())


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "0", name)


_writes: Writes | None = None


def watch(recording: Path, earlier: Iterable[str] = ()) -> None:
    """Note from now on what this process opens for writing; Python lets nobody end that."""
    global _writes
    _writes = Writes(recording, earlier)
    sys.addaudithook(_heard)


def note(path: Any) -> None:
    """Note a file that code writes without Python's `open`, as C++ does."""
    if _writes is not None:
        _writes.note(path)


def reread() -> list[str]:
    """The field `reread` of `Arm` in the manifest."""
    return [] if _writes is None else _writes.reread


def found() -> list[str] | None:
    """The field `writes` of `RankManifest`; None if `watch` was not called."""
    return None if _writes is None else _writes.found()


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    """Python's audit hook, called for every audited event: notes opened files and made folders. Never raises."""
    if event not in ("open", "os.mkdir") or _writes is None:
        return
    with suppress(Exception):
        path, mode, flags = arguments
        if event == "os.mkdir":
            _writes.note(path, folder=True)
        elif set(mode or "") & set("wax+") or (mode is None and flags & WRITING):
            _writes.note(path)
        else:
            _writes.note_reading(path)
