"""`diagnose mcp`."""

import sys
from pathlib import Path

import click


@click.command(name="mcp")
@click.option("--allow-run", is_flag=True, help="Allow it to run profile and try, and to change files with patches.")
def command(allow_run: bool) -> None:
    """Serve analyses, patches and trials to AI agents (Model Context Protocol).

    An agent starts this server and talks to it over standard input and output. The server reads only files under its
    start folder. Without --allow-run, it runs no script and changes no file.

    Example: diagnose mcp --allow-run
    """
    try:
        from diagnose.agents import serve
    except ImportError as error:  # There is no SDK, or one with another interface.
        raise click.ClickException(
            "The Model Context Protocol SDK is missing. Run: pip install torch-diagnose[mcp]"
        ) from error

    if sys.stdin.isatty():
        click.echo("Waiting for an agent on standard input (Model Context Protocol). Stop with Ctrl-C.", err=True)
    serve(Path.cwd(), allow_run)
