"""Generated texts, written or checked: `python -m diagnose.docs [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from diagnose import diagnosis


def texts() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    return {diagnosis.SCHEMA_FILE: diagnosis.json_schema()}


def main(check: bool) -> int:
    """Write the texts; or only say which differ, and return 1 if any does."""
    stale = [path for path, text in texts().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not check:
            path.write_text(texts()[path], encoding="utf-8")
        print(f"{'out of date' if check else 'written'}: {path.name}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
