"""A control whose every step waits: `python -m benchmarks.noise.slowed NS MODULE [ARGUMENTS]`."""

import runpy
import sys
import time

from sample_traces import harness


def main() -> None:
    """Run the control's training, with so many nanoseconds of busy waiting at the end of each step."""
    wait_ns, module = int(sys.argv[1]), sys.argv[2]
    stepped = harness.Run.stepped

    def slowly(run: harness.Run) -> bool:
        until = time.perf_counter_ns() + wait_ns
        while time.perf_counter_ns() < until:
            pass
        return stepped(run)

    harness.Run.stepped = slowly  # type: ignore[method-assign, assignment]
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
