"""What time goes to, by one name wherever it is met: in what threads do, in idle gaps, on the critical path."""

from __future__ import annotations

from enum import Enum


class TimeCause(str, Enum):
    """What goes on, or what is waited for."""

    GARBAGE_COLLECTION = "garbage_collection"
    COMPILE = "compile"
    CHECKPOINT = "checkpoint"
    ALLOCATION = "allocation"  # In cudaMalloc, cudaFree, cudaHostAlloc and the like.
    SYNC = "sync"
    """The host is blocked until the device has done something; before an idle gap, so that nothing was queued."""
    LOADER = "loader"  # Fetching the next batch.
    OTHER_RANK = "other_rank"
    """In a collective on the host, which mostly waits for other ranks; or in no op while another thread is in one."""
    HOST_COPY = "host_copy"  # In a call that starts a copy; from pageable memory the call does the copying.
    LAUNCH = "launch"
    """In a call that starts a kernel, graph or memset; on the critical path also on to the start of its work."""
    HOST_COMPUTE = "host_compute"
    """In an op that starts nothing on the device and takes longer than dispatching: the CPU computes."""
    OPTIMIZER = "optimizer"
    """In the optimizer's step or its zeroing of gradients, in its ops, launches and Python, outside the calls above."""
    BLOCKED = "blocked"
    """In a long call of the operating system, or off the processor: waits for another thread, a file, a timer."""
    OPS = "ops"  # In framework ops, outside the calls above: the host dispatches slower than the device works.
    PYTHON = "python"  # Between ops: Python code, or nothing the recording shows.
    DEVICE_WAIT = "device_wait"  # Queued work waits: for an event, another stream, another rank.
    BETWEEN_KERNELS = "between_kernels"  # Turn-around of work that was queued on one stream.
    HOST_NOT_RECORDED = "host_not_recorded"
    """Before the first or after the last record of the host: it may have done anything."""
    UNKNOWN = "unknown"  # The recording does not show who launched the next work, or what that waited for.
    UNEXPLAINED = "unexplained"  # The recording does not show what is waited for.
    OTHER_STEPS = "other_steps"  # In steps of a kind that was not recorded, beyond what recorded ones take.
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"


LAUNCHING = (TimeCause.OPS, TimeCause.LAUNCH)
"""What the host does for each kernel, and does less of where fewer are launched."""
ON_DEVICE = (TimeCause.COMPUTE, TimeCause.COMMUNICATION, TimeCause.COPY)
IDLE_CAUSES = tuple(cause for cause in TimeCause if cause not in (*ON_DEVICE, TimeCause.UNEXPLAINED))
"""Why the device had nothing to do."""
PATH_CAUSES = (*ON_DEVICE, *(cause for cause in TimeCause if cause not in (*ON_DEVICE, TimeCause.UNKNOWN)))
"""What a stretch of the critical path goes to: on the device, between both, or on a thread."""
