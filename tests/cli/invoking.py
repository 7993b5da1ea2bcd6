"""The command line as users run it: within this process, without the start of another, or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

import pytest

from diagnose.cli import main


def run(*arguments: object, cwd: Path | None = None, **environment: str) -> CompletedProcess[str]:
    """What `python -m diagnose ARGUMENTS` prints and ends with, with more variables in its environment."""
    words, here = ["diagnose", *map(str, arguments)], Path.cwd()
    out, err = io.StringIO(), io.StringIO()
    os.chdir(cwd or here)
    try:
        with (
            mock.patch.object(sys, "argv", words),
            mock.patch.dict(os.environ, environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    finally:
        os.chdir(here)
    return CompletedProcess(words, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def run_alone(*arguments: object, cwd: Path | None = None, **environment: str) -> CompletedProcess[str]:
    """The same in a process of its own, whose standard output is a pipe."""
    command = [sys.executable, "-m", "diagnose", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})


def refused(done: CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one clear sentence, no traceback, nothing on standard output."""
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
