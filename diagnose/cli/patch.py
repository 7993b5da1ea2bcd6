"""`diagnose patch`."""

from __future__ import annotations

from pathlib import Path

import click

from diagnose.cli.files import STDOUT, write


@click.command(name="patch")
@click.argument("run", metavar="RUN")
@click.option("--fix", "fixes", multiple=True, metavar="N|RULE", help="Only this finding's fix (repeatable).")
@click.option("--options", is_flag=True, help="Options as well as faults.")
@click.option("--kept", is_flag=True, help="Only what `diagnose try` has kept, and all of that.")
@click.option("--write", "write_it", is_flag=True, help="Also change the files, unless they have changed since.")
@click.option("--output", metavar="FILE", default=STDOUT, help="Where the diff goes.  [default: standard output]")
@click.option("--quiet", "-q", is_flag=True, help="No notes on standard error.")
def command(
    run: str, fixes: tuple[str, ...], options: bool, kept: bool, write_it: bool, output: str, quiet: bool
) -> None:
    """Write the fixes of a run's findings as a unified diff of your files.

    RUN is a folder that `diagnose profile` made. Standard output has the diff and nothing else; what each fix does,
    and why others are not in the diff, goes to standard error. Fixes that need judgement or save less than 1 % are
    left out, unless --fix names them.

    Example: diagnose patch diagnose-runs/train-20261121-101500 > fixes.diff
    """
    from diagnose.cli.analyze import INCONCLUSIVE
    from diagnose.cli.reading import opened
    from diagnose.patches import making, writing
    from diagnose.patches.errors import CannotPatch
    from diagnose.patches.selection import Which
    from diagnose.reports import patches

    if kept and fixes:
        raise click.ClickException("--kept takes all that trials have kept. Leave out --fix, or --kept.")
    if output.endswith(".py"):
        raise click.ClickException(f"{output} is a file of Python. Name one such as fixes.diff.")
    with opened([run], [output], quiet=quiet) as recordings:
        diagnosis = recordings.diagnosed()
    try:
        manifest = diagnosis.provenance.manifest
        patch = making.make(
            *(diagnosis.findings, manifest, diagnosis.rank, fixes, Path.cwd(), diagnosis.trials),
            None if diagnosis.program is None else diagnosis.program.loop,
            Which.KEPT if kept else Which.WITH_OPTIONS if options else Which.FAULTS,
        )
        if not quiet:
            click.echo(patches.render(patch, diagnosis), nl=False, err=True)
            if patch.files and patch.root != Path.cwd().resolve():
                click.echo("Its names start at the top of the git checkout: apply it there.", err=True)
        if write_it:
            writing.write(patch)
        write(output, making.unified(patch.files))
    except CannotPatch as error:
        raise click.ClickException(str(error)) from error
    if write_it and patch.files and not quiet:
        click.echo(f"Written: {', '.join(file.name for file in patch.files)}.", err=True)
    if not diagnosis.conclusive:
        click.echo(f"There is too little in {run} to say anything: diagnose analyze says why.", err=True)
        raise click.exceptions.Exit(INCONCLUSIVE)
