"""The files of a recorded run, and the calls in them that fixes are about."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePath

import libcst as cst

from diagnose.contracts.patches import PatchedFile
from diagnose.fixes.setting import Loop
from diagnose.patches import files
from diagnose.patches.code import Code
from diagnose.patches.files import CannotEdit, SourceText
from diagnose.storage import urls
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Made, Manifest, RankManifest, training_loaders

MOST_FILES = 200  # That are looked through (our choice).

Found = tuple[Code, cst.Call]


class Project:
    """A run's files: which the recording names, which of them are here, and their code."""

    def __init__(
        self, manifest: Manifest | None, rank: int, sites: Sequence[Site], here: Path, loop: Loop | None = None
    ) -> None:
        """`rank`: whose findings they are; `sites`: theirs; `here`: the working folder.
        `loop`: what owns the training's loop; None: as the recorder says."""
        self.manifest = manifest or Manifest()
        self.rank = next((one for one in self.manifest.ranks if one.rank == rank), RankManifest(rank=rank))
        self.here, self.root = here, urls.root_of(here)
        self.loop = loop or Loop(self.rank.loop or Loop.OWN)
        self._sites = sites
        self._sources: dict[Path, SourceText] = {}
        self._code: dict[Path, Code | CannotEdit] = {}

    @cached_property
    def named(self) -> list[str]:
        """Files that the recording names as the user's own, each once: MOST_FILES at most."""
        made = [*(one.made for one in self.rank.loaders), *(one.made for one in self.rank.optimizers), *self.ddp_made]
        places = [one.file for one in made if one is not None]
        sources = [source.file for source in self.manifest.sources] or files.command_files(self.manifest.command)
        return list(dict.fromkeys([*sources, *places, *(site.file for site in self._sites)]))[:MOST_FILES]

    @cached_property
    def paths(self) -> list[Path]:
        """Those of `named` that are found here, in their order."""
        found = dict[Path, None]()
        for name in self.named:
            try:
                found[files.located(name, self.root, self.here)] = None
            except CannotEdit:
                continue
        return list(found)

    @property
    def ddp_made(self) -> tuple[Made, ...]:
        """Where DistributedDataParallel is made."""
        return self.rank.distributed.ddp_made if self.rank.distributed else ()

    @property
    def loaders_made(self) -> list[Made | None]:
        """Where the loaders are made that the training takes its batches from."""
        return [training_loader.made for training_loader in training_loaders(self.rank)]

    def code(self, path: Path) -> Code:
        """A located file as a syntax tree, parsed once. Raises CannotEdit, each time, if that cannot be done."""
        if path not in self._code:
            try:
                self._code[path] = Code(self.source(path))
            except CannotEdit as error:
                self._code[path] = error
        kept = self._code[path]
        if isinstance(kept, CannotEdit):
            raise kept
        return kept

    def source(self, path: Path) -> SourceText:
        """The text of a file that was located, read once. Raises CannotEdit."""
        if path not in self._sources:
            self._sources[path] = files.read(path, self.root)
        return self._sources[path]

    @property
    def script(self) -> Code:
        """The file that was run. Raises CannotEdit."""
        recorded = [source.file for source in self.manifest.sources if source.script]
        names = recorded if self.manifest.sources else files.command_files(self.manifest.command)
        if not names:
            raise CannotEdit("the recording names no script")
        return self.code(files.located(names[0], self.root, self.here))

    def everywhere(self, word: str) -> Iterator[Code]:
        """The code of all files that are here, can be read and parsed, and have this word in their text."""
        for path in self.paths:
            try:
                if word in self.source(path).text:
                    yield self.code(path)
            except CannotEdit:
                continue

    def changed_since(self, file: PatchedFile) -> str:
        """A sentence if a file is not as it was recorded, or that cannot be told; else empty."""
        recorded = {source.file: source.sha256 for source in self.manifest.sources}
        same_file = [name for name in recorded if self._is(name, file.path)]
        if same_file and recorded[same_file[0]] is not None:
            same = recorded[same_file[0]] == hashlib.sha256(file.before).hexdigest()
            return "" if same else f"{file.name} has changed since the recording."
        try:
            began = datetime.fromisoformat(self.manifest.started or "").timestamp()
        except ValueError:
            return f"{file.name} may have changed since the recording."
        changed = file.path.stat().st_mtime > began
        return f"{file.name} is newer than the recording." if changed else ""

    def _is(self, name: str, path: Path) -> bool:
        """Whether the file that a recording names is the one at this path here."""
        try:
            return files.located(name, self.root, self.here) == path
        except CannotEdit:
            return False

    def calls(self, word: str, fits: Callable[[Code, cst.Call], bool]) -> list[Found]:
        """Those calls that fit, in all files that have the word."""
        return [(code, call) for code in self.everywhere(word) for call in code.every(cst.Call) if fits(code, call)]

    def made(self, name: str, places: Sequence[Made | None]) -> list[Found]:
        """The calls of torch's class `name` at these recorded places (None: unknown); without any known place the only
        call there is. Raises CannotEdit if one is not found, or there are several."""
        known = list(dict.fromkeys(place for place in places if place is not None))
        if known:
            return [self._call_at(name, one) for one in known]
        found = self.calls(name, lambda code, call: is_call(code, call, name))
        if not found:
            raise CannotEdit(f"no call of torch's {name}() is in your files")
        if len(found) > 1:
            where = ", ".join(code.place(call) for code, call in found)
            raise CannotEdit(f"{name}() is called at {where}, and the recording does not show which one")
        return found

    def _call_at(self, name: str, made: Made) -> Found:
        """The call of torch's `name` at the recorded line. Raises CannotEdit unless it is exactly one."""
        code = self.code(files.located(made.file, self.root, self.here))
        found = [
            call
            for call in code.every(cst.Call)
            if code.lines(call)[0] <= made.line <= code.lines(call)[1] and is_call(code, call, name)
        ]
        if len(found) == 1:
            return code, found[0]
        where = f"at {code.source.name}:{made.line}"
        if found:
            raise CannotEdit(f"several calls of torch's {name}() stand {where}")
        hint = "a library, an alias or functools.partial creates it"
        raise CannotEdit(f"no call of torch's {name}() stands {where}: {hint}")

    def inside(self, found: Sequence[Found], site: Site | None, what: str) -> list[Found]:
        """Of these calls those in a site's function, only those in loops if there are any; without a site the only one.
        Raises CannotEdit if there are none, or it cannot be told which."""
        if not found:
            raise CannotEdit(f"no call of {what}() is in your files")
        if site is None:
            if len(found) == 1:
                return list(found)
            where = ", ".join(code.place(call) for code, call in found)
            raise CannotEdit(f"{what}() is called at {where}, and the recording does not show which one")
        here = [
            (code, call)
            for code, call in found
            if self._is(site.file, code.source.path) and code.function(call) == site.function.rpartition(".")[2]
        ]
        if not here:
            raise CannotEdit(f"no call of {what}() stands in {site.function}() of {PurePath(site.file).name}")
        return [one for one in here if one[0].loop(one[1]) is not None] or here


def is_call(code: Code, call: cst.Call, name: str) -> bool:
    """Whether a call is of something of torch that has this name, by whatever name it was imported."""
    whole = code.imported(call.func)
    return whole.startswith("torch.") and whole.rpartition(".")[2] == name


def is_method(call: cst.Call, *names: str) -> bool:
    """Whether a call is of a method of one of these names."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in names
