"""Train an MLP on several processes with DistributedDataParallel.

    torchrun --nproc_per_node 2 train.py
    torchrun --nproc_per_node 2 train.py --no-find-unused --no-sync --log-every 20

Slow on purpose, and the flag that fixes it:
    DDP searches the graph for unused parameters; there are none    --no-find-unused
    gradients are summed over the ranks in every micro-batch        --no-sync
    the loss is averaged over the ranks and read in every step      --log-every 20
"""

# ruff: noqa: D103, N817
import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse_args():
    cuda = torch.cuda.is_available()
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--steps", type=int, default=0, help="stop after this many steps (0: train all epochs)")
    p.add_argument("--batch-size", type=int, default=1024 if cuda else 64, help="per process and micro-batch")
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--samples", type=int, default=1_048_576 if cuda else 16384)
    p.add_argument("--features", type=int, default=256)
    p.add_argument("--hidden", type=int, default=4096 if cuda else 1024)
    p.add_argument("--layers", type=int, default=8 if cuda else 4)
    p.add_argument("--classes", type=int, default=10)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--no-find-unused", action="store_true")
    p.add_argument("--no-sync", action="store_true")
    p.add_argument("--log-every", type=int, default=1)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main():
    args = parse_args()
    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(args.seed)

    # the class is the nearest of some random centers
    centers = torch.randn(args.classes, args.features)
    labels = torch.randint(args.classes, (args.samples,))
    features = centers[labels] + 8 * torch.randn(args.samples, args.features)
    dataset = TensorDataset(features, labels)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)

    layers = []
    dim = args.features
    for _ in range(args.layers - 1):
        layers += [nn.Linear(dim, args.hidden), nn.ReLU()]
        dim = args.hidden
    model = nn.Sequential(*layers, nn.Linear(dim, args.classes)).to(device)
    model = DDP(model, device_ids=[local_rank] if use_cuda else None, find_unused_parameters=not args.no_find_unused)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()

    step = 0
    done = False
    start = time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            last = (i + 1) % args.accumulate == 0
            with model.no_sync() if args.no_sync and not last else contextlib.nullcontext():
                loss = criterion(model(x), y) / args.accumulate
                loss.backward()
            if not last:
                continue
            optimizer.step()
            optimizer.zero_grad()

            if step % args.log_every == 0:
                total = loss.detach() * args.accumulate
                dist.all_reduce(total)
                mean = total.item() / world_size
                if rank == 0:
                    print(f"epoch {epoch} step {step} loss {mean:.6f}")
            step += 1
            if args.steps and step >= args.steps:
                done = True
                break
        if done:
            break

    if rank == 0:
        print(f"{step} steps in {time.time() - start:.1f} s")
    # gloo's threads may still hold the last tensor; if the interpreter ends first, they abort (seen with torch 2.13)
    time.sleep(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
