"""One reduction in a process of its own: `python -m benchmarks.scale.reduced RANKS REPEATS` prints what it took."""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.scale.made import Straggler, make
from benchmarks.scale.sequences import longer, of_rank
from diagnose.advice.assembly import summarised
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.peers import KeptSequence, compared, kept
from diagnose.facts.core.base import Facts
from diagnose.replay.job import join
from diagnose.source import ranks as sources
from diagnose.trace.job import CollectiveSequence, ProcessGroup

SCENARIOS = 6  # As many as two fixes need, with their ranges.


def main() -> None:
    """Reduce ranks whose steps were recorded so many times, and tell what it took."""
    ranks, repeats = int(sys.argv[1]), int(sys.argv[2])
    seeds = [longer(seed, repeats) for seed in _seeds()]
    world = ProcessGroup("0", "default_pg", tuple(range(ranks)))
    sent = {rank: kept(of_rank(seeds, rank, world), ranks) for rank in range(ranks)}
    begin = time.process_time()
    _reduce(sent)
    seconds = time.process_time() - begin
    told = {
        "ranks": ranks,
        "calls": len(seeds[0].calls.ids),
        "compared_calls": sent[0].calls,
        "packed_bytes": max(len(one.data) for one in sent.values()),
        "seconds": round(seconds, 2),
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }
    print(json.dumps(told))


def _reduce(sent: dict[int, KeptSequence]) -> None:
    others, _ = compared(dict(sent))
    assert others is not None
    assert others.awaited is not None
    others.peers(others.awaited)
    joined = join(others.job)
    summarised(others.job, joined)
    for _ in range(SCENARIOS):
        joined.step_ns([joined.recorded])


def _seeds() -> list[CollectiveSequence]:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        make(job, 3, Straggler(1, 5_000.0), jobs=1)
        return [collective_sequence(Facts(sources.read(path))) for path in sorted(job.iterdir())]


if __name__ == "__main__":
    main()
