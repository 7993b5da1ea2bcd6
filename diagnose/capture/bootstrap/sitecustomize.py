"""Loads the agent into every Python process of a recorded run; PYTHONPATH leads to a copy in the recording.

The copy knows by its place what it records, so that a launcher has to pass on no other variable.
"""

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load_agent(recording: str) -> None:
    """Import and start the agent: under a name of its own, as the process need not have `diagnose` installed."""
    folder = Path((HERE / "agent.txt").read_text(encoding="utf-8"))
    if not folder.is_dir():
        raise FileNotFoundError(f"install torch-diagnose on this machine too; it has no {folder}")
    spec = importlib.util.spec_from_file_location(
        "diagnose_agent", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["diagnose_agent"] = package
    spec.loader.exec_module(package)
    importlib.import_module("diagnose_agent.start").start(recording)


def make_way() -> None:
    """Leave the module path as it would be without us, and run the sitecustomize that would have been found."""
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":
    try:
        if "diagnose_agent" not in sys.modules:  # As where a recorded command starts one that records.
            load_agent(os.environ.setdefault("DIAGNOSE_RECORDING", str(HERE.parent)))
    except Exception as error:
        print(f"diagnose: this process cannot be recorded ({type(error).__name__}: {error})", file=sys.stderr)
    make_way()
