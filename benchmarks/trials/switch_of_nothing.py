"""Run a module in which `torch.set_num_threads()` changes a number that nothing reads: a switch that does nothing.

python -m benchmarks.trials.switch_of_nothing MODULE [ARGUMENT...]
"""

import runpy
import sys
from typing import Any


def main() -> None:
    """Run it."""
    import torch

    given: Any = torch
    threads = [torch.get_num_threads()]
    given.get_num_threads = lambda: threads[0]
    given.set_num_threads = lambda number: threads.__setitem__(0, number)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
