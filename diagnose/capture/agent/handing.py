"""What handing a batch over from a worker would take here: torch.multiprocessing sends tensors of its size."""

from __future__ import annotations

import time
from statistics import median

TIMES = 3  # That it is done (our choice).
MOST_TENSORS, MOST_BYTES = 256, 1 << 28  # That are sent at once; of more, so many times as much is told (our choice).


def handing(tensors: int, objects: int, size: int) -> dict[str, object]:
    """`handed_ns` and `sending_ns` as in `Loader` of the manifest; empty if that cannot be told. `size`: in bytes."""
    from multiprocessing import resource_sharer

    times = max(tensors / MOST_TENSORS, size / MOST_BYTES, 1.0)
    tensors, objects, size = (round(one / times) for one in (tensors, objects, size))
    sharer = getattr(resource_sharer, "_resource_sharer", None)  # A thread of this process, which sends descriptors.
    begins = getattr(sharer, "_listener", None) is None
    try:
        each = [_once(tensors, objects, size) for _ in range(TIMES)]
    except Exception:
        return {}  # All else can be recorded without it.
    finally:
        if begins and sharer is not None:
            resource_sharer.stop(timeout=1.0)
    takes = zip(("handed_ns", "sending_ns"), zip(*each, strict=True), strict=True)
    return {name: round(times * median(one)) for name, one in takes}


def _once(tensors: int, objects: int, size: int) -> tuple[int, int]:
    from multiprocessing.reduction import ForkingPickler

    import torch
    import torch.multiprocessing

    parts = [torch.zeros(size // tensors, dtype=torch.uint8) for _ in range(tensors)]
    batch = [parts, bytes(0 if tensors else size), list(range(objects))]
    begun_cpu_ns = time.process_time_ns()
    sent = bytes(ForkingPickler.dumps(batch))
    sent_cpu_ns = time.process_time_ns() - begun_cpu_ns
    del batch, parts  # Else they would be found again, and not received.
    begun_ns, begun_cpu_ns, own_ns = time.perf_counter_ns(), time.process_time_ns(), time.thread_time_ns()
    del ForkingPickler.loads(sent)[0]  # To give its memory back is part of it.
    taken_ns = time.perf_counter_ns() - begun_ns
    others_ns = time.process_time_ns() - begun_cpu_ns - (time.thread_time_ns() - own_ns)
    return taken_ns, sent_cpu_ns + max(others_ns, 0)
