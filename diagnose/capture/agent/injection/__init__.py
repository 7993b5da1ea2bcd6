"""Fixes that are made in a running script, without editing it: for the arms of a trial.

A fix is named as in `Fix.trial`: `env:NAME=VALUE` (of several variables with blanks between them; without a value:
taken out), `patch:Name(argument=value)` for a call or a setting of the script's, or `wrap:...` for its model or loader.
Each notes the lines at which it changes something. A fix that has noted none has not been made, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from .fixes import Injection, Trial
from .forms import form_of, parsed

__all__ = ["Trial", "effects", "inject", "parsed", "refused"]

_injected: dict[str, Injection] = {}


def inject(fixes: Sequence[str]) -> None:
    """Make fixes in this process, before the script imports anything. Of environment variables the parent has."""
    for fix in fixes:
        trial = parsed(fix)
        assert trial is not None, fix
        injection = _injected[fix] = Injection(trial)
        form_of(trial)(injection)


def effects() -> dict[str, list[str]]:
    """Of each fix where it took effect."""
    return {fix: injection.found()[0] for fix, injection in _injected.items()}


def refused() -> dict[str, str]:
    """Of each fix that took none a clause on why, as far as that is known."""
    return {fix: why for fix, injection in _injected.items() if (why := injection.found()[1])}
