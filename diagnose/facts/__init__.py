"""What can be measured on a rank's trace. One module per question; facts are lazy, cached, never advise."""

import importlib
import pkgutil
from functools import cache


@cache
def import_all() -> None:
    """Import every module of facts: `core.base.FACTS` then has all that the package knows."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        if not module.name.rpartition(".")[2].startswith("_"):
            importlib.import_module(module.name)
