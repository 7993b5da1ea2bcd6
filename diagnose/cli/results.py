"""What becomes of results: text of some form, a page in the browser, files that are there whole or not at all."""

from __future__ import annotations

import html
import os
import stat
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diagnose import failures
from diagnose.storage import files, writing
from diagnose.storage.remote import Place, Remote
from diagnose.storage.urls import StorageError, is_url, shown

if TYPE_CHECKING:
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.contracts.finding import RankedFinding


STDOUT = "-"


@contextmanager
def sentences(*kinds: type[Exception]) -> Iterator[None]:
    """Within it, errors of these kinds become a ClickException with their message."""
    try:
        yield
    except kinds as error:
        raise click.ClickException(str(error)) from error


def output(name: str) -> str:
    """The name of an output as it was given; `-` if it leads to standard output, as /dev/stdout does."""
    try:
        there = Path(name).stat()
        harmless = stat.S_ISCHR(there.st_mode) and not os.isatty(1)  # To write twice: devices such as /dev/null.
        return STDOUT if not harmless and os.path.samestat(there, os.fstat(1)) else name
    except OSError:
        return name


def refuse_unwritable(outputs: Sequence[str], inputs: Sequence[Place]) -> None:
    """Raise a ClickException if an output cannot be written, or is one of the inputs: before any work is done."""
    if outputs.count(STDOUT) > 1:
        raise click.ClickException("Only one result can go to standard output (-). Name files for the others.")
    _refuse_urls([name for name in outputs if is_url(name)], inputs)
    read = {os.path.realpath(path) for path in inputs if isinstance(path, Path)}
    files = [name for name in outputs if name != STDOUT and not is_url(name) and not _is_stream(name)]
    targets = [os.path.realpath(name) for name in files]
    for name, target in zip(files, targets, strict=True):
        folder = Path(target).parent
        if target in read:
            raise click.ClickException(f"{name} is an input, and writing there would destroy it. Choose another file.")
        if targets.count(target) > 1:
            raise click.ClickException(f"Two results would go to {name}. Name a different file for each.")
        if Path(target).is_dir():
            raise click.ClickException(f"{name} is a folder. Name a file.")
        if Path(target).is_symlink():  # That is where realpath gives up.
            raise click.ClickException(f"{name} is a link to itself. Name a file.")
        if not folder.is_dir():
            raise click.ClickException(f"The folder {folder} does not exist. Create it first.")
        if not os.access(folder, os.W_OK):
            raise click.ClickException(f"The folder {folder} is not writable. Choose another folder.")


def _refuse_urls(outputs: Sequence[str], inputs: Sequence[Place]) -> None:
    """Refuse URLs that cannot be written, that are an input, a folder, or twice among the outputs."""
    targets = [_target(url) for url in outputs]
    read = {writing.address(path.url) for path in inputs if outputs and isinstance(path, Remote)}
    for name, target in zip(map(shown, outputs), targets, strict=True):
        if target in read:
            raise click.ClickException(f"{name} is an input, and writing there would destroy it. Choose another file.")
        if targets.count(target) > 1:
            raise click.ClickException(f"Two results would go to {name}. Name a different file for each.")
        if name.endswith("/"):
            raise click.ClickException(f"{name} is a folder. Name a file.")


def _target(url: str) -> tuple[str, str]:
    """Where a URL writes to, the same for all spellings of it; refuses a URL that cannot be written."""
    try:
        writing.refuse(url)
        return writing.address(url)
    except StorageError as error:
        raise click.ClickException(f"Cannot write {shown(url)}: {error.strerror}.") from error


def write(name: str, text: str | bytes) -> None:
    """Write a result to standard output (`-`), a file, a URL, or whatever else can be written to.
    A file gets all of the text or none, an older one stays until then, and links to it stay links. Devices and pipes
    are written to as they are. Raises a ClickException if that fails."""
    content = text.encode() if isinstance(text, str) else text
    try:
        if name == STDOUT:
            click.echo(text, nl=False)
            sys.stdout.flush()
        elif is_url(name):
            writing.write(name, content)
        elif _is_stream(name):
            with Path(name).open("wb") as stream:
                stream.write(content)
        else:
            files.replace(Path(os.path.realpath(name)), content)
    except BrokenPipeError as error:
        if name == STDOUT:  # Python flushes it once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = "standard output" if name == STDOUT else name
        raise click.ClickException(f"{what} closed before the result was complete. Write to a file instead.") from error
    except OSError as error:
        raise click.ClickException(f"Cannot write {shown(name)}: {error.strerror or error}.") from error


def _is_stream(name: str) -> bool:
    """Whether the name is of a device, a pipe or a socket: something that exists, and is no regular file or folder."""
    try:
        mode = Path(name).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


_INSTEAD = {"html": "terminal", "terminal": "markdown", "markdown": "terminal"}
"""Form for people -> another that is shown in its place where it cannot be made."""


def rendered(
    diagnosis: Diagnosis, form: str, over: Collection[RankedFinding] = (), details: bool = False, minor: bool = False
) -> str | None:
    """The diagnosis as text, ending in a newline: html, json, markdown, perfetto, sarif or terminal.
    Where diagnose itself fails, standard error says so: another form for people, or None. `over`: findings that the
    command fails for. `details`: all evidence and tables. `minor`: findings under 1 % of the step as well."""
    with failures.collected() as lost:
        made = partial(_rendered, diagnosis, over=over, details=details, minor=minor)
        text = failures.attempt(f"the report as {form}", None, made, form)
        if text is not None:
            return text
        click.echo(f"diagnose: {lost[0]}", err=True)
        other = _INSTEAD.get(form)
        text = other and failures.attempt("a text in its place", None, made, other)
    if not text or form != "html":
        return text
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>diagnose</title>'
    return f"{head}<p>{html.escape(str(lost[0]))}</p><pre>{html.escape(text)}</pre></html>\n"


def _rendered(diagnosis: Diagnosis, form: str, over: Collection[RankedFinding], details: bool, minor: bool) -> str:
    """The diagnosis as text in this form. `over`: findings that fail the command, which SARIF marks as errors."""
    if form == "json":
        return diagnosis.to_json() + "\n"
    if form == "terminal":
        from diagnose.reports import terminal

        return terminal.render(diagnosis, *width_and_color(), details, minor)
    module = import_module(f"diagnose.reports.{'html.page' if form == 'html' else form}")
    how: dict[str, Any] = {"over": over} if form == "sarif" else {}
    how |= {"details": details, "minor": minor} if form == "markdown" else {}
    text: str = module.render(diagnosis, **how)
    return text if text.endswith("\n") else text + "\n"


def put(diagnosis: Diagnosis, form: str, name: str, over: Collection[RankedFinding] = ()) -> bool:
    """Write the diagnosis in a form to a file. False if `rendered` gives None: then nothing is written."""
    text = rendered(diagnosis, form, over)
    if text is not None:
        write(name, text)
    return text is not None


def width_and_color() -> tuple[int, bool]:
    """How wide standard output is, and whether it shows colours: a pipe has 80 columns and none."""
    from rich.console import Console

    console = Console()
    color = console.is_terminal and not console.no_color and sys.stdout.isatty()
    return console.width if sys.stdout.isatty() else 80, color


def open_page(page: Callable[[], str], written: str | None) -> None:
    """Open a page in a browser: the file it was written to, else one in the folder for temporary files."""
    if written is None:
        try:
            written = str(Path(tempfile.mkdtemp(prefix="diagnose-")) / "report.html")
        except OSError as error:
            raise click.ClickException(
                f"Cannot create a file for the page: {error.strerror}. Use --html FILE."
            ) from error
        write(written, page())
    if not webbrowser.open(Path(written).resolve().as_uri()):
        click.echo(f"No browser could be started. Open {written} yourself.", err=True)


class OutFolder(click.ParamType[Path | str]):
    """A folder, or a URL of one."""

    name = "DIR"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """A Path, or the URL as it was given."""
        return str(value) if is_url(str(value)) else Path(value)


def checked(out: Path | str | None) -> str | None:
    """The URL to write to; None of a folder here. Raises a ClickException if that URL is taken or cannot be written."""
    if not isinstance(out, str):
        return None
    try:
        writing.refuse(out)
        taken = writing.is_taken(out)
    except StorageError as error:
        raise click.ClickException(f"Cannot write {shown(out)}: {error.strerror}.") from error
    if taken:
        raise click.ClickException(f"{shown(out)} is not empty. Choose a new URL.")
    return out


@contextmanager
def put_at_the_end(folder: Path, url: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Upload a folder to a URL, if any, on leaving, even by an error. Raises a ClickException that names the folder."""
    try:
        yield
    finally:
        if url is not None:
            try:
                writing.upload(folder, url, "manifest.json")  # The last one: who sees it there sees all.
            except StorageError as error:
                why = f"Cannot write {shown(url)}: {error.strerror}. The recording is still in {folder}."
                raise click.ClickException(why) from error
            say(f"the recording is also in {shown(url)}")
