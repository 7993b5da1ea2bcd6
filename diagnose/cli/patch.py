"""`diagnose patch`."""

from pathlib import Path

import click

from diagnose.cli.results import STDOUT, write


@click.command(name="patch")
@click.argument("run", metavar="RUN")
@click.option("--fix", "fixes", multiple=True, metavar="N|RULE", help="Include only this finding's fix. Repeatable.")
@click.option("--options", is_flag=True, help="Include options as well as faults.")
@click.option("--kept", is_flag=True, help="Include all fixes that `diagnose try` kept, and no others.")
@click.option(
    "--write", "write_it", is_flag=True, help="Also change the files, unless they changed since the recording."
)
@click.option("--output", metavar="FILE", default=STDOUT, help="Output file of the diff.  [default: standard output]")
@click.option("--quiet", "-q", is_flag=True, help="Print no notes.")
def command(
    run: str, fixes: tuple[str, ...], options: bool, kept: bool, write_it: bool, output: str, quiet: bool
) -> None:
    """Write fixes as a unified diff of your files.

    RUN is a folder of `diagnose profile`. The diff goes to standard output, and an explanation of each fix to standard
    error. Fixes that need your judgement or save less than 1 % are not included, unless you name them with --fix.

    Example: diagnose patch diagnose-runs/train-20261121-101500 > fixes.diff
    """
    from diagnose.cli.analyze import INCONCLUSIVE
    from diagnose.cli.reading import opened
    from diagnose.patches import files, making
    from diagnose.patches.files import CannotPatch
    from diagnose.patches.making import Which
    from diagnose.reports import patches

    if kept and fixes:
        raise click.ClickException("--kept and --fix exclude each other. Use only one.")
    if output.endswith(".py"):
        raise click.ClickException(f"{output} is a Python file. Name a file such as fixes.diff.")
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
                click.echo("Apply the diff in the top folder of the git checkout.", err=True)
        if write_it:
            files.write(patch)
        write(output, making.unified(patch.files))
    except CannotPatch as error:
        raise click.ClickException(str(error)) from error
    if write_it and patch.files and not quiet:
        click.echo(f"Written: {', '.join(file.name for file in patch.files)}.", err=True)
    if not diagnosis.conclusive:
        click.echo(f"{run} has too little data. Run diagnose analyze {run} to see why.", err=True)
        raise click.exceptions.Exit(INCONCLUSIVE)
