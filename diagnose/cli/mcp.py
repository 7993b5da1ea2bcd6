"""`diagnose mcp`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(name="mcp")
@click.option("--allow-run", is_flag=True, help="Also run commands: profile, try, and patches that are written.")
def command(allow_run: bool) -> None:
    """Serve analyses, patches and trials to language models, over the Model Context Protocol.

    An agent starts it, and speaks with it over standard input and output. It reads only what is under the folder in
    which it is started. Without --allow-run it runs no script and changes no file.

    Example: diagnose mcp --allow-run
    """
    try:
        from diagnose.agents import serve
    except ImportError as error:  # There is no SDK, or one with another interface.
        raise click.ClickException(
            "The SDK of the Model Context Protocol is not here. Install it: pip install torch-diagnose[mcp]"
        ) from error

    if sys.stdin.isatty():
        click.echo("Serving the Model Context Protocol on standard input, for a program. Ctrl-C ends it.", err=True)
    serve(Path.cwd(), allow_run)
