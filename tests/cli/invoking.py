"""The command line within this process: what it prints and ends with, without the start of another."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from subprocess import CompletedProcess
from unittest import mock

import pytest

from diagnose.cli import main


def ran(*arguments: object, **environment: str) -> CompletedProcess[str]:
    """As `python -m diagnose ARGUMENTS` would, with more variables in its environment."""
    words = ["diagnose", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return CompletedProcess(words, int(ended.value.code or 0), out.getvalue(), err.getvalue())
