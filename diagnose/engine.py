"""Rules: where the built-in ones are."""

from __future__ import annotations

from pathlib import Path


def built_in_rules() -> Path:
    """The folder of the built-in rules: inside an installed package, else beside the package in a checkout."""
    package = Path(__file__).parent
    installed = package / "_rules"
    return installed if installed.is_dir() else package.parent / "rules"
