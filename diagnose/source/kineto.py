"""torch.profiler's chrome-trace JSON (Kineto), of every age and back end, plain or gzip, as a Rank.

Events are decoded in batches and their fields moved into columns at once, so that neither the text nor the events are
ever held whole. Categories and keys: kineto libkineto/src/output_json.cpp, CuptiActivity.h, ActivityType.h; the names
before mid-2022 from traces of that time.
"""

import multiprocessing
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial

from diagnose.source import stream
from diagnose.source.assemble import Recording, assemble
from diagnose.source.base import Damage, InputError
from diagnose.source.collector import Workers, collect
from diagnose.source.columns import Columns
from diagnose.source.document import TraceText
from diagnose.source.events import event_type
from diagnose.source.header import HEADER_KEYS, read_header
from diagnose.storage.remote import Place
from diagnose.trace.model import Rank

_TIMES_PAST_DOUBLE = re.compile(rb'"ts"\s*:\s*"?\d{16,}\.\d')
"""Unix microseconds with decimals (kineto of March to May 2024): more digits than a double holds."""


class KinetoReader:
    """Reads torch.profiler traces. See `source.base.Reader`."""

    format = "kineto"

    def claims(self, path: Place, head: bytes) -> bool:
        """Any JSON text; what kind of JSON shows only on reading it."""
        return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")

    def parts(self, path: Place) -> tuple[int, ...]:
        """A file holds one rank."""
        return ()

    def read(self, path: Place, part: int | None = None) -> Rank:
        """The rank in the file at `path`, as far as the file is sound. Raises InputError when nothing is."""
        damage, columns = Damage(), Columns()
        # Closed here: left to the garbage collector, it would wait for its thread wherever that happens to run.
        with closing(stream.pieces(path, damage)) as pieces:
            first = next(pieces, b"")
            exact = _TIMES_PAST_DOUBLE.search(first) is not None
            text = TraceText(
                _chain(first, pieces), path, event_type(exact), partial(collect, exact=exact), HEADER_KEYS, damage
            )
            with _workers(path, exact) as workers:
                for batch in text.batches(workers):
                    columns.absorb(batch)
        if not columns.events and damage.lost_events:
            raise InputError(f"{path} has no readable event: all {damage.lost_events:,} are damaged.")
        if not columns.events:
            raise InputError(
                f"{path} has no events. Check that the profiler's schedule reached its active steps, and record again."
            )
        damage.unclassified = columns.unclassified
        header = read_header(text.header, damage)
        return assemble(
            Recording(
                path=path, format=self.format, events=columns.events, header=header, columns=columns, damage=damage
            )
        )


WORTH_WORKERS_BYTES = 64 << 20
"""Text that one process decodes in a quarter of a second, more than twice what it takes to start others."""

GZIP_RATIO = 12  # of Kineto's traces, typically
MOST_WORKERS = 4  # more wait for the process that puts their columns together, and each holds some 90 MB


def _workers(path: Place, exact: bool) -> AbstractContextManager[Workers | None]:
    """Decoding processes for a big file, on a machine with cores to spare, unless this is such a process itself."""
    size, cores = path.stat().st_size, os.cpu_count() or 1
    if size * GZIP_RATIO < WORTH_WORKERS_BYTES or cores == 1 or multiprocessing.parent_process() is not None:
        return nullcontext()
    if size < WORTH_WORKERS_BYTES and stream.head(path, 2, raw=True) != stream.GZIP_MAGIC:
        return nullcontext()
    return Workers(min(cores, MOST_WORKERS), exact)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
