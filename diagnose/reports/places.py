"""Where findings lie in the user's checkout. Of all that reports show, this alone is looked up in files."""

from pathlib import Path

from msgspec import Struct

from diagnose.storage import urls
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Manifest

LARGEST_BYTES = 1 << 20  # Of a file that is read for a line of it (our choice).


class Place(Struct, frozen=True):
    """A line of a file in the checkout, or the file as a whole."""

    path: str  # Relative to the top of the checkout, with slashes.
    line: int = 0  # From 1; 0: the file as a whole.
    text: str = ""  # Of the line, without indentation; empty if it cannot be read.


class Checkout:
    """The git checkout that a folder is in, or the folder itself, and what a recording names in it."""

    def __init__(self, manifest: Manifest | None, here: Path | None = None) -> None:
        """`here`: the working folder; None: the current one."""
        self._here = (here or Path.cwd()).resolve()
        self._root = urls.root_of(self._here)
        self._manifest = manifest or Manifest()
        self._lines = dict[Path, list[str]]()

    def place(self, site: Site) -> Place | None:
        """The source line; None if its file is not in the checkout.

        Profilers leave out the folders that Python finds modules in: the run's files are named in full.
        """
        named = [source.file for source in self._manifest.sources if source.file.endswith(f"/{site.file.lstrip('./')}")]
        found = next((path for name in (site.file, *named) if (path := self._inside(name)) is not None), None)
        if found is None:
            return None
        return Place(self._name(found), max(site.line, 0), self._line(found, site.line))

    @property
    def script(self) -> Place | None:
        """The file that ran; None if it is not in the checkout, or not known."""
        told = [source.file for source in self._manifest.sources if source.script]
        names = told or [word for word in self._manifest.command if word.endswith(".py")]
        found = next((path for name in names if (path := self._inside(name)) is not None), None)
        return None if found is None else Place(self._name(found))

    def relative(self, path: str) -> str | None:
        """Any file or folder by its name from the top of the checkout; None if it is not inside."""
        found = (self._here / path).resolve()
        return self._name(found) if found.is_relative_to(self._root) else None

    def _inside(self, recorded: str) -> Path | None:
        return next(
            (candidate for candidate in urls.candidates(recorded, self._here) if candidate.is_relative_to(self._root)),
            None,
        )

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _line(self, path: Path, number: int) -> str:
        if path not in self._lines:
            self._lines[path] = _read(path)
        lines = self._lines[path]
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _read(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError:
        return []
    return [] if len(content) > LARGEST_BYTES else content.decode(errors="replace").splitlines()
