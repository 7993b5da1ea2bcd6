"""The command line: words into calls, a result into an exit code. Commands and their modules load when called."""

import os
import sys
from importlib import import_module

import click

from diagnose import failures
from diagnose.version import __version__

COMMANDS = {  # And their lines in the help.
    "profile": "Record a few steps of a training and report what to fix.",
    "watch": "Run a training to its end and report where the time went.",
    "record": "Record the next steps of a run under `diagnose watch`.",
    "analyze": "Report what to fix in recorded training steps, and what each fix would save.",
    "measure": "Benchmark the ops that fixes change, on this machine.",
    "try": "Try fixes in your unmodified script, measure them, and report which to keep.",
    "patch": "Write fixes as a unified diff of your files.",
    "compare": "Compare two recordings: is the training slower, by how much, and why?",
    "baseline": "Write a small JSON of a recording, for later comparisons.",
    "export": "Write a run's tables as Parquet files, for DuckDB, Polars and pandas.",
    "ledger": "Show how predictions compared with trials on this machine, by rule.",
    "mcp": "Serve analyses, patches and trials to AI agents (Model Context Protocol).",
    "doctor": "Check what this machine can record, and how to fix what it cannot.",
    "rules": "List all rules, show one, or test your own.",
}
ELSEWHERE = {  # (module, name) of commands that are not `command` of the module with their name.
    "baseline": ("compare", "baseline"),
    "doctor": ("record", "doctor"),
    "ledger": ("patch", "ledger"),
    "try": ("try_", "command"),
}

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h


class Commands(click.Group):
    """A group whose commands are imported only when used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in COMMANDS:
            return None
        module, name = ELSEWHERE.get(cmd_name, (cmd_name, "command"))
        command = getattr(import_module(f"diagnose.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="diagnose")
def group() -> None:
    """Find out why a PyTorch training is slow, what to change, and what each change would save.

    Example: diagnose analyze trace.json.gz
    """


def main() -> None:
    """Run the command line and exit. See docs/command-line.md for exit codes."""
    try:
        code = group.main(prog_name="diagnose", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        click.echo(f"Error: {error.strerror or error}.", err=True)
        code = 2
    except MemoryError:
        click.echo("Error: not enough memory. Analyse fewer ranks at once with --jobs 1.", err=True)
        code = 2
    except Exception as error:
        if failures.raised():
            raise
        kind = type(error).__name__
        click.echo(
            f"Error: diagnose itself failed ({kind}). Please report the output with DIAGNOSE_DEBUG=1 set.", err=True
        )
        code = INTERNAL_ERROR
    sys.exit(code or 0)
