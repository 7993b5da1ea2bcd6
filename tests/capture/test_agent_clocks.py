"""What the clock of steps reads, in this process."""

import time

from diagnose.capture.agent.clocks import Clock


def test_sleeping_takes_no_cpu_time_and_computing_does() -> None:
    """Of 2 steps each sleeps for 50 ms; in the second 30 ms of CPU time are used besides."""
    clock = Clock(0)
    time.sleep(0.05)
    clock.tick()
    asleep_ns = clock.cpu_ns
    time.sleep(0.05)
    until_ns = time.process_time_ns() + 30_000_000
    while time.process_time_ns() < until_ns:
        pass
    clock.tick()
    assert asleep_ns < 25_000_000
    assert 15_000_000 <= clock.cpu_ns < 40_000_000
    assert clock.timed()["cpu_ns"] == clock.cpu_ns
    first_ns, second_ns = clock.timed()["cpu_times_ns"]  # type: ignore[misc]
    assert (first_ns, (first_ns + second_ns) // 2) == (asleep_ns, clock.cpu_ns)
