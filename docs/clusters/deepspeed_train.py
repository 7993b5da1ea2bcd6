"""A training for DeepSpeed's launcher: diagnose profile -o /shared/runs/a -- deepspeed --hostfile hosts FILE."""

import argparse

import deepspeed
import torch

arguments = argparse.ArgumentParser()
arguments.add_argument("--local_rank", type=int, default=-1)
arguments.add_argument("--steps", type=int, default=200)
given = arguments.parse_args()

torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
model = torch.nn.Linear(64, 10)
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
)
for _ in range(given.steps):
    loss = engine(torch.randn(8, 64, device=engine.device)).sum()
    engine.backward(loss)
    engine.step()
