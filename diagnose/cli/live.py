"""What `diagnose watch` shows while the training runs: options, and where it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from diagnose.live.follow import Show
    from diagnose.live.now import RankNow

BETWEEN_S = 60.0  # Lines, where there is no panel.


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Those of the live side, in the order of the help."""
    for option in (
        click.option(
            "--tensorboard",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Write TensorBoard scalars to DIR/RUN during the run.",
        ),
        click.option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics during the run; without HOST, on this machine only.",
        ),
        click.option("--live", is_flag=True, help="Show progress during the run: a panel, or one line per minute."),
    ):
        command = option(command)
    return command


def shows(
    live: bool, metrics: str | None, tensorboard: Path | None, run: str, say: Callable[[str], None]
) -> list[Show]:
    """What was asked for, of a run of that name. Raises a ClickException where it cannot be."""
    found: list[Show] = []
    if metrics is not None:
        _require("--metrics", "prometheus_client")
        from diagnose.live.server import CannotServe, MetricsServer

        try:
            found.append(server := MetricsServer(metrics))
        except CannotServe as error:
            raise click.ClickException(str(error)) from error
        say(f"serving metrics at {server.url}")
    if tensorboard is not None:
        _require("--tensorboard", "torch", "tensorboard")
        from diagnose.live.tensorboard import TensorBoard

        try:
            found.append(TensorBoard(tensorboard / run))
        except OSError as error:
            raise click.ClickException(
                f"Cannot write to {tensorboard}: {error.strerror}. Name another folder with --tensorboard."
            ) from error
    if live:
        from diagnose.cli import panel

        found.append(panel.Panel() if panel.possible() else Lines())
    return found


def _require(option: str, *packages: str) -> None:
    if missing := [one for one in packages if find_spec(one) is None]:
        raise click.ClickException(
            f"{option} needs {' and '.join(missing)}. Run: pip install 'torch-diagnose[torch,live]'."
        )


def following(folder: Path, shown: Sequence[Show]) -> AbstractContextManager[None]:
    """Tell what is to be shown of the logs in a folder, within `with`."""
    if not shown:
        return nullcontext()
    from diagnose.live.follow import Following

    return Following(folder, shown, lambda sentence: click.echo(f"diagnose: {sentence}", err=True))


class Lines:
    """A line a minute on standard error, and each finding when it is seen first."""

    name = "a line a minute"

    def __init__(self) -> None:
        self._told_s: float | None = None
        self._found: set[str] = set()

    def show(self, ranks: Sequence[RankNow]) -> None:
        """Tell it, if it is time to."""
        if self._told_s is not None and time.monotonic() - self._told_s < BETWEEN_S:
            return
        from diagnose.live import words

        self._told_s = time.monotonic()
        click.echo(f"diagnose: {words.line(ranks)}", err=True)
        for one in ranks[0].findings:
            if one.kind not in self._found:
                self._found.add(one.kind)
                click.echo(f"diagnose: {words.finding(one)}", err=True)

    def close(self) -> None:
        """The report follows."""
