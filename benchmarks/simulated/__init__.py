"""A simulated GPU machine, trainings that run on it, and whether diagnoses of their traces are right.

Nothing here knows how diagnose measures or replays. `judge` alone imports diagnose, and calls `analyze` only.

    gpus          what a kernel takes on a stated GPU
    program       what a training step asks of the machine
    machine       a discrete-event simulation of host threads, streams, loaders and ranks
    kernel_names  names of kernels as traces have them
    tensor        what a trace shows of tensors
    kineto        the trace that torch.profiler writes of it
    eager         the ops that PyTorch runs for a layer, forward and backward
    models        trainings as people write them: ResNet, GPT, BERT, DLRM
    training      one step of a training, from the loader to the optimizer
    cases         trainings with a fault and without
    judge         what diagnose says of a trace, beside what is true
    tables        the published tables
    recorded      what is said of trainings whose recorder takes the host more and more time
"""
