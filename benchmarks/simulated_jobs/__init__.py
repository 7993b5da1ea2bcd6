"""Simulated GPU jobs of many ranks, and whether diagnoses of their traces are right.

Nothing here knows how diagnose measures or replays. `judge` alone imports diagnose, and calls `analyze` only.

    moments     times as the latest of their times, of all ranks together
    layout      hosts, links, and process groups
    recording   what happened on a rank
    machine     a rank: its host threads, its streams, and how it communicates
    a100        what a kernel takes
    model       a transformer's blocks, forward and backward
    schedules   in which order the ranks of an interleaved pipeline work
    training    DDP, FSDP, tensor parallelism, pipelines, experts: one step of a rank
    kineto      the traces that torch.profiler writes of a job
    cases       jobs with a fault and without
    judge       what diagnose says of a job's traces, beside what is true
    tables      the published tables
"""
