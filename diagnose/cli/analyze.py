"""`diagnose analyze`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from diagnose.cli import INTERNAL_ERROR
from diagnose.cli.reading import jobs_option, opened
from diagnose.cli.results import STDOUT, open_page, output, put, refuse_unwritable, rendered, write
from diagnose.cli.watched import refuse_other_forms, stands_alone, watched, with_recordings
from diagnose.cli.watched import rendered as of_log
from diagnose.trace.units import share_of

if TYPE_CHECKING:
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.contracts.finding import RankedFinding
    from diagnose.contracts.watched_run import WatchedRun

TOO_SLOW = 1
INCONCLUSIVE = 3


class StepRange(click.ParamType[tuple[int, int]]):
    """`A-B`, or a single number."""

    name = "A-B"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """(first, last) step number."""
        if isinstance(value, tuple):
            return value
        first, _, last = value.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or value.endswith("-"):
            self.fail(f"{value!r} is not a range of steps. Write, for example, 3-7.", param, ctx)
        return int(first), int(last or first)


class Share(click.ParamType[float]):
    """`0.05` or `5%`."""

    name = "SHARE"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A share between 0 and 1."""
        try:
            return share_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(name="analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--html", "html_file", metavar="FILE", help="Write an interactive page that works offline.")
@click.option("--json", "json_file", metavar="FILE", help="Write the diagnosis as JSON; - is standard output.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the report as Markdown; - is standard output.")
@click.option(
    "--perfetto", "perfetto_file", metavar="FILE", help="Write the timeline with the findings, for ui.perfetto.dev."
)
@click.option("--sarif", "sarif_file", metavar="FILE", help="Write the findings as SARIF 2.1.0, for code scanning.")
@click.option(
    "--format",
    "shape",
    type=click.Choice(["terminal", "json", "markdown"]),
    default="terminal",
    show_default=True,
    help="Format of standard output.",
)
@click.option("--details", is_flag=True, help="Print all evidence, tables and notes behind the brief report.")
@click.option("--all", "minor", is_flag=True, help="Print findings under 1 % of the step as well.")
@click.option("--rules", "folders", multiple=True, metavar="DIR", help="Also use the rules in DIR. Repeatable.")
@click.option(
    "--select",
    multiple=True,
    metavar="RULE",
    help="Use only these rules: names, codes or folders (DL02, DL, data_loading). Repeatable.",
)
@click.option("--ignore", multiple=True, metavar="RULE", help="Skip these rules. Repeatable.")
@click.option("--fail-over", type=Share(), help="Exit 1 if a fault costs more than SHARE of the step.")
@click.option("--steps", type=StepRange(), help="Analyse only these recorded steps.")
@jobs_option
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Read ranks on a Dask cluster (tcp://...); `local` starts one with --jobs workers.",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
def command(
    paths: tuple[str, ...],
    shape: str,
    details: bool,
    minor: bool,
    folders: tuple[str, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_over: float | None,
    steps: tuple[int, int] | None,
    jobs: int | None,
    cluster: str | None,
    open_it: bool,
    quiet: bool,
    **asked: str | None,
) -> None:
    """Report what to fix in recorded training steps, and what each fix would save.

    PATH is a torch.profiler trace (plain or .gz), an SQLite export of Nsight Systems, a folder with one file per rank,
    the folder of a watched run, or a glob pattern. PATH and FILE may be URLs (s3://, gs://, az://, hdfs://, https://).

    Example: diagnose analyze runs/rank0.trace.json.gz --steps 3-7
    """
    files = {form.removesuffix("_file"): output(name) for form, name in asked.items() if name}
    log = watched(paths, folders=folders, select=select, ignore=ignore)
    how: dict[str, Any] = {"folders": folders, "select": select, "ignore": ignore, "jobs": jobs, "quiet": quiet}
    if log is not None and stands_alone(paths[0]):
        log = with_recordings(log, paths[0], **how)
        return _show_log(log, paths[0], files, shape, open_it, details)
    with opened(paths, list(files.values()), steps=steps, cluster=cluster, **how) as recordings:
        diagnosis = recordings.diagnosed()
    if log is not None:
        from diagnose.watched.findings import with_recorded

        diagnosis = msgspec.structs.replace(diagnosis, watched=with_recorded(log, {"the recorded steps": diagnosis}))
    over = [] if fail_over is None else _faults_over(diagnosis, fail_over)
    made = [put(diagnosis, form, name, over) for form, name in files.items()]
    if STDOUT not in files.values():
        text = rendered(diagnosis, shape, details=details, minor=minor)
        click.echo(text or "", nl=False)
        made.append(text is not None)
    if open_it:
        page = files.get("html")
        open_page(lambda: rendered(diagnosis, "html") or "", page if page and Path(page).is_file() else None)
    if not all(made):
        raise click.exceptions.Exit(INTERNAL_ERROR)
    _end(diagnosis, over, quiet)


def _show_log(log: WatchedRun, folder: str, files: Mapping[str, str], shape: str, open_it: bool, details: bool) -> None:
    """Print the report of a watched run's log, write it to `files`, and open it in a browser if asked for."""
    from diagnose.source.run_log import logs_in

    refuse_other_forms(files)
    refuse_unwritable(list(files.values()), logs_in(Path(folder)))
    for form, name in files.items():
        write(name, of_log(log, form, details))
    if STDOUT not in files.values():
        click.echo(of_log(log, shape, details), nl=False)
    if open_it:
        page = files.get("html")
        open_page(lambda: of_log(log, "html"), page if page and Path(page).is_file() else None)


def _faults_over(diagnosis: Diagnosis, share: float) -> list[RankedFinding]:
    """The faults, not options, whose likely saving is more than this share of the step."""
    from diagnose.contracts.finding import Kind

    return [one for one in diagnosis.findings if one.kind is Kind.FAULT and one.share_of_step > share]


def _end(diagnosis: Diagnosis, over: Collection[RankedFinding], quiet: bool) -> None:
    """Exit with INCONCLUSIVE if nothing could be measured, with TOO_SLOW if there are faults in `over`; else return."""
    if not diagnosis.conclusive:
        raise click.exceptions.Exit(INCONCLUSIVE)
    if over and not quiet:
        failed = ", ".join(f"{one.rule} ({one.share_of_step:.1%})" for one in over)
        click.echo(f"Failed --fail-over: {failed}.", err=True)
    if over:
        raise click.exceptions.Exit(TOO_SLOW)
