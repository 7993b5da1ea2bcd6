"""What a project wants of the rules: `[diagnose]` of a setup.cfg or `[tool.diagnose]` of a pyproject.toml nearby.

Rules are code, and a folder with traces may come from anyone: more of them are asked for on the command line only.
"""

import configparser
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from diagnose.rulekit.engine import RuleSet, known_folders
from diagnose.storage.remote import Place

MOST_FOLDERS = 32  # How far up from a trace a settings file is looked for.


class SettingsError(Exception):
    """A settings file that cannot be used: one sentence that says why."""


class Settings(Struct, frozen=True):
    """What was asked for; empty where nothing was."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)  # `rule.NAME` -> value.


def rule_set(
    trace: Place, folders: Sequence[str] = (), select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> RuleSet:
    """The rules to run: those that are named, else as the settings near the trace say, else all.
    Of a trace at a URL the settings near the current folder are used. Raises SettingsError."""
    found = near(trace if isinstance(trace, Path) else Path())
    return RuleSet(
        folders=(*known_folders(), *map(Path, folders)),
        select=names(select) or found.select,
        ignore=names(ignore) or found.ignore,
        thresholds=tuple(found.thresholds.items()),
    )


def near(path: Path) -> Settings:
    """The settings in the nearest file at or above a trace that has any. Raises SettingsError."""
    start = path.absolute()
    for folder in [start, *start.parents][:MOST_FOLDERS]:
        for name, read in (("pyproject.toml", _pyproject), ("setup.cfg", _setup_cfg)):
            file = folder / name
            if file.is_file() and (found := read(file)) is not None:
                return _settings(file, found)
    return Settings()


def _pyproject(file: Path) -> Mapping[str, object] | None:
    """Its table [tool.diagnose] as flat keys; None if it has none. Refuses a damaged file that has one."""
    text = _text(file)
    if sys.version_info < (3, 11):
        _refuse_damaged(file, "[tool.diagnose" in text, "that takes Python 3.11. Use a setup.cfg")
        return None
    import tomllib

    try:
        tables = tomllib.loads(text).get("tool", {})
    except ValueError as error:
        _refuse_damaged(file, "[tool.diagnose" in text, str(error))
        return None
    found = tables.get("diagnose") if isinstance(tables, dict) else None
    return _flat(found) if isinstance(found, dict) else None


def _setup_cfg(file: Path) -> Mapping[str, object] | None:
    """Its section [diagnose]; None if it has none. Refuses a damaged file that has one."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[method-assign, assignment]  # Names of thresholds are upper case.
    text = _text(file)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        _refuse_damaged(file, "[diagnose" in text, str(error).partition("\n")[0])
        return None
    return dict(parser["diagnose"]) if parser.has_section("diagnose") else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _refuse_damaged(file: Path, ours: bool, why: str) -> None:
    """A file that cannot be parsed matters only if it has settings of ours; else whoever owns it will say so."""
    if ours:
        raise SettingsError(f"{file} cannot be read: {why.rstrip('.')}.")


def _flat(table: Mapping[str, object]) -> dict[str, object]:
    """Tables inside the table become dotted keys: [tool.diagnose.input_starvation] WORTH_SHARE = 0.1."""
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[key] = value
    return found


def _settings(file: Path, found: Mapping[str, object]) -> Settings:
    """The settings that flat keys of a file give. Raises SettingsError for a key that is not known or not allowed."""
    thresholds = {}
    for key, value in found.items():
        if "." in key:
            thresholds[key] = _number(file, key, value)
        elif key == "rules":
            raise SettingsError(f"{file} sets 'rules', which runs code: ask for them by --rules.")
        elif key not in ("select", "ignore"):
            raise SettingsError(f"{file} sets {key!r}; known are select, ignore, and thresholds as rule.NAME.")
    return Settings(names(found.get("select")), names(found.get("ignore")), thresholds)


def _number(file: Path, key: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise SettingsError(f"{file} sets {key} to {value!r}, which is no number.") from None


def names(value: object) -> tuple[str, ...]:
    """Names from text with commas or line ends between them, or from a row of such texts."""
    texts = value if isinstance(value, list | tuple) else (value or "",)
    listed = (name for text in texts for name in str(text).replace(",", "\n").splitlines())
    return tuple(name for name in map(str.strip, listed) if name)
