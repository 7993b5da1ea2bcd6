"""`diagnose measure`, and what `diagnose profile` measures once it has recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose import failures
from diagnose.cli.reading import notes, opened, shown
from diagnose.cli.results import rendered, sentences

if TYPE_CHECKING:
    from diagnose.source.recording import Recordings

DEFAULT = "20s"


class Duration(click.ParamType[float]):
    """A time such as 90s, 10m or 1h, in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time in seconds; fails on anything that is no time."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is not a time. Write, for example, 90s, 10m or 1h.", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@click.command(name="measure")
@click.argument("run", metavar="RUN")
@click.option(
    "--seconds",
    type=Duration(),
    default=DEFAULT,
    show_default=True,
    metavar="DURATION",
    help="Time limit for the benchmarks.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print no notes.")
def command(run: str, seconds: float, quiet: bool) -> None:
    """Benchmark the ops that fixes change, on this machine.

    Later analyses of RUN use these timings. RUN is a folder of `diagnose profile`, recorded on the same kind of
    machine. `profile` runs these benchmarks itself; use this command to run them later or for longer. It runs no
    code of the training.

    Example: diagnose measure diagnose-runs/train-20261121-101500 --seconds 60s
    """
    from diagnose.capture.measuring import CannotMeasure
    from diagnose.facts.core.base import Missing

    say = notes(quiet)
    if not Path(run).is_dir():
        raise click.ClickException(f"{run} is not a folder. Name a folder of diagnose profile.")
    with opened([run], quiet=quiet) as recordings, sentences(CannotMeasure):
        try:
            measured = measure(recordings.given, seconds, quiet, say)
        except Missing as missing:
            raise click.ClickException(f"{run} has no {missing.what}. {missing.how_to_record_it}") from None
    if not measured:
        say("nothing to benchmark: no fix changes an unmeasured op of at least 1 % of a step")
    with opened([run], quiet=quiet) as recordings:
        click.echo(rendered(recordings.diagnosed(), "terminal") or "", nl=False)


def measure(given: Recordings, seconds: float, quiet: bool, say: Callable[[str], None]) -> bool:
    """Benchmark ops of the first rank that fixes change, and write the times beside its trace; False if there are none.
    Raises Missing, CannotMeasure and click.ClickException."""
    from diagnose.capture import measuring
    from diagnose.facts.core.run import trains_on_cpu
    from diagnose.pipeline import to_measure
    from diagnose.source.recording import costs_beside

    trace = given.ranks[0].trace.path
    name = costs_beside(trace)
    if name is None or not isinstance(trace, Path):
        raise measuring.CannotMeasure(f"{trace} is not a local recording of diagnose profile.")
    facts, asked = to_measure(given.ranks[0])
    if not asked:
        return False
    devices, context = facts.rank.provenance.devices, facts.rank.context
    device = "" if trains_on_cpu(facts) or not devices else devices[0].name
    setting = measuring.Setting(device)
    if context is not None:
        setting = measuring.Setting(device, context.rank.flags, context.host.cpu or "")
    ops = [(one.spec, one.changes) for one in asked]
    with shown("Benchmarking ops", quiet) as progress:
        found = measuring.measure(ops, setting, seconds, progress)
    if facts.rank.measured is not None:
        found = measuring.together(facts.rank.measured, found)
    try:
        measuring.write(trace.with_name(name), found)
    except OSError as error:
        raise click.ClickException(f"Cannot write {trace.with_name(name)}: {error.strerror}.") from error
    say(f"benchmarked {found.count} changed ops in {found.seconds:.0f} s")
    return True


def by_profile(folder: Path, seconds: float, quiet: bool, say: Callable[[str], None]) -> None:
    """Benchmark ops after a recording was made. What goes wrong in that is reported, and nothing is raised for it."""
    from diagnose.capture.measuring import CannotMeasure
    from diagnose.facts.core.base import Missing

    def measured() -> None:
        try:
            with opened([str(folder)], quiet=True) as recordings:
                measure(recordings.given, seconds, quiet, say)
        except (CannotMeasure, click.ClickException) as error:
            say(str(error))
        except Missing:
            pass

    with failures.collected() as lost:
        failures.attempt("measuring", None, measured)
    for one in lost:
        say(str(one))
