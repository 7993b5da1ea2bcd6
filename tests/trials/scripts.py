"""Trainings to try fixes on."""

MANY = """
import gc, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def main():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    model(torch.zeros(1, 3, 12, 12))
    data = TensorDataset(torch.randn(256, 3, 12, 12), torch.randint(0, 10, (256,)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    collected = []
    gc.callbacks.append(lambda phase, info: collected.append(phase) if info["generation"] == 2 else None)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for epoch in range(1000):
        for number, (images, labels) in enumerate(loader):
            optimizer.zero_grad(set_to_none=False)
            empty = all(one.grad is None for one in model.parameters())
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            gc.collect()
            torch.cuda.empty_cache()
            if number == 3:
                channels_last = model[0].weight.is_contiguous(memory_format=torch.channels_last)
                group = optimizer.param_groups[0]
                print(loader.num_workers, group["fused"], group["foreach"], empty, channels_last, len(collected) > 6)


if __name__ == "__main__":
    main()
"""
"""It does what many fixes change, and prints whether they are made."""

MORE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(2)
torch.autograd.set_detect_anomaly(True)


def main():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(256, 64)), batch_size=8, num_workers=1)
    for epoch in range(1000):
        for number, (rows,) in enumerate(loader):
            optimizer.zero_grad()
            given = model(rows)
            given.float().square().mean().backward()
            optimizer.step()
            if number == 3:
                torch.save(model.state_dict(), "model.pt")
                settings = loader.prefetch_factor, loader.persistent_workers
                compiled = model._compiled_call_impl is not None
                print(*settings, torch.get_num_threads(), torch.is_anomaly_enabled(), given.dtype, compiled, flush=True)


if __name__ == "__main__":
    main()
"""
"""As MANY, of what other fixes change."""

STEADY = """
import sys, time
import torch

torch.manual_seed({seed})
torch.set_num_threads(1)
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for number in range({steps}):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(0, 10, (64,)))
    loss.backward()
    optimizer.step()
    time.sleep(0.002)
"""
"""Short steps, as many as are asked for."""


def steady(before: str = "", steps: int = 100_000, seed: str = "0") -> str:
    return STEADY.format(before=before, steps=steps, seed=seed)


OTHER = """
import gc
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
calls = []


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.inner, self.outer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 10)
        self.inner.register_forward_pre_hook(lambda *all: calls.append(1))

    def forward(self, words):
        return self.outer(checkpoint(self.inner, self.table(words).mean(1), use_reentrant=False))


def main():
    model = Net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, foreach=False)
    loader = DataLoader(TensorDataset(torch.randint(0, 50, (4096, 4)), torch.randint(0, 10, (4096,))), batch_size=8)
    for epoch in range(1000):
        for number, (words, labels) in enumerate(loader):
            optimizer.zero_grad()
            calls.clear()
            torch.nn.functional.cross_entropy(model(words), labels).backward()
            optimizer.step()
            if number == 3:
                settings = loader.batch_size, optimizer.param_groups[0]["foreach"], len(calls)
                determined = torch.are_deterministic_algorithms_enabled()
                print(*settings, determined, gc.isenabled(), gc.get_freeze_count() > 1000, flush=True)


if __name__ == "__main__":
    main()
"""
"""As MANY, of again other fixes."""

COMPILED = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)


@torch.compile
def smooth(x):
    return torch.nn.functional.gelu(x) * 2


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(100_000):
    optimizer.zero_grad()
    smooth(model(torch.randn(8, 64))).square().mean().backward()
    optimizer.step()
"""
"""It compiles a function itself."""

TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
torch.set_num_threads(1)
sizes = dict(n_embd=32, n_head=2, n_layer=2, n_positions=32, vocab_size=100, resid_pdrop=0, attn_pdrop=0, embd_pdrop=0)
model = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="{attention}"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(100_000):
    optimizer.zero_grad()
    words = torch.randint(0, 100, (4, 32))
    model(input_ids=words, labels=words).loss.backward()
    optimizer.step()
    if number == 3:
        print(model.config._attn_implementation, flush=True)
"""
"""A small GPT-2, with the attention that is named."""

LIGHTNING = """
import logging
import warnings

import torch
import lightning

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
lightning.seed_everything(0, verbose=False)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch, number):
        rows, labels = batch
        return torch.nn.functional.cross_entropy(self.net(rows), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(max_epochs=1000, accelerator="cpu", enable_checkpointing=False, **quiet)
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=16))
"""
"""Lightning calls training_step() of the largest module, not the module itself."""

RANKS = """
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
reduced = []


def hook(state, bucket):
    reduced.append(1)
    return default_hooks.allreduce_hook(None, bucket)


if {count}:
    model.register_comm_hook(None, hook)
for number in range(100_000):
    optimizer.zero_grad()
    for part in range({passes}):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 64)), torch.randint(0, 10, (8,))) / ({passes})
        loss.backward()
    optimizer.step()
    dist.barrier()
    if number == {shown}:
        weights = [torch.zeros(64, 64) for rank in range(2)]
        dist.all_gather(weights, model.module[0].weight.detach())
        if dist.get_rank() == 0:
            print(len(reduced), torch.equal(*weights), weights[0].sum().item(), flush=True)
"""
"""Two ranks of DDP with several backward passes a step; printed are reductions so far, and whether weights agree."""

SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 10))
fully_shard(model[0])
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
"""
"""Two ranks of FSDP."""


def ranks(passes: str, count: bool = True, shown: int = 8) -> str:
    """The text of RANKS. `passes`: how many backward passes step `number` has, in Python."""
    return RANKS.format(passes=passes, count=count, shown=shown)
