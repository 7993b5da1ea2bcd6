"""Train a small ResNet on generated images, the way many first scripts do.

    python train.py
    python train.py --workers 4 --pin-memory --log-every 50 --amp --channels-last --fused

Slow on purpose, and the flag that fixes it:
    images are made and augmented in the training process     --workers 4
    every step waits for loss.item()                          --log-every 50
    batches are copied from pageable memory, one by one       --pin-memory
    everything is in fp32                                     --amp
    convolutions in NCHW                                      --channels-last
    the optimizer launches several kernels per step           --fused
"""

# ruff: noqa: D101, D102, D103, N812, PTH118
import argparse
import math
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class StripesDataset(Dataset):
    """Images of noisy stripes; the class is their direction."""

    def __init__(self, length, size, classes, train, seed):
        self.length = length
        self.size = size
        self.classes = classes
        self.train = train
        self.seed = seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        label = index % self.classes
        image = self.load(index, label)
        if self.train:
            image = self.augment(image)
        return (image - 0.5) / 0.25, label

    def load(self, index, label):
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        phase, freq = torch.rand(2, generator=g).tolist()
        angle = math.pi * label / self.classes
        axis = torch.linspace(-1, 1, self.size)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        wave = torch.sin((x * math.cos(angle) + y * math.sin(angle)) * (8 + 4 * freq) + phase * 2 * math.pi)
        image = 0.5 + 0.3 * wave.expand(3, -1, -1) + 0.2 * torch.randn(3, self.size, self.size, generator=g)
        return image.clamp(0, 1)

    def augment(self, image):
        # random crop
        pad = max(1, self.size // 8)
        image = F.pad(image, (pad, pad, pad, pad), mode="reflect")
        top, left = torch.randint(0, 2 * pad + 1, (2,)).tolist()
        image = image[:, top : top + self.size, left : left + self.size]
        # brightness, contrast, saturation
        b, c, s = (0.8 + 0.4 * torch.rand(3)).tolist()
        image = image * b
        image = (image - image.mean()) * c + image.mean()
        gray = image.mean(0, keepdim=True)
        image = gray + (image - gray) * s
        # blur
        kernel = torch.tensor([1.0, 2.0, 1.0])
        kernel = torch.outer(kernel, kernel)
        kernel = (kernel / kernel.sum()).expand(3, 1, 3, 3)
        if torch.rand(()) < 0.5:
            image = F.conv2d(image[None], kernel, padding=1, groups=3)[0]
        return image.clamp(0, 1)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.shortcut = nn.Identity()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class SmallResNet(nn.Module):
    def __init__(self, width, blocks, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        layers = []
        cin = width
        for stage in range(3):
            cout = width * 2**stage
            for i in range(blocks):
                layers.append(Block(cin, cout, 2 if stage > 0 and i == 0 else 1))
                cin = cout
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.fc(x.mean((2, 3)))


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    correct = total = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        correct += (model(images).argmax(1) == labels).sum().item()
        total += len(labels)
    return correct / total


def parse_args():
    cuda = torch.cuda.is_available()
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--steps", type=int, default=0, help="stop after this many steps (0: train all epochs)")
    p.add_argument("--batch-size", type=int, default=256 if cuda else 32)
    p.add_argument("--images", type=int, default=51200 if cuda else 4096)
    p.add_argument("--image-size", type=int, default=64 if cuda else 32)
    p.add_argument("--width", type=int, default=64 if cuda else 16)
    p.add_argument("--blocks", type=int, default=3 if cuda else 2)
    p.add_argument("--classes", type=int, default=10)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--pin-memory", action="store_true")
    p.add_argument("--amp", action="store_true")
    p.add_argument("--channels-last", action="store_true")
    p.add_argument("--fused", action="store_true")
    p.add_argument("--log-every", type=int, default=1)
    p.add_argument("--save-every", type=int, default=0, help="steps between checkpoints (0: none)")
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = StripesDataset(args.images, args.image_size, args.classes, True, args.seed)
    val_set = StripesDataset(max(args.images // 16, args.classes), args.image_size, args.classes, False, args.seed + 1)
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=args.pin_memory,
        drop_last=True,
        persistent_workers=args.workers > 0,
    )
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)

    model = SmallResNet(args.width, args.blocks, args.classes).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, fused=True if args.fused else None
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train_loader))
    save_dir = tempfile.mkdtemp(prefix="checkpoints-") if args.save_every else None

    step = 0
    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for images, labels in train_loader:
            images = images.to(device, non_blocking=args.pin_memory)
            labels = labels.to(device, non_blocking=args.pin_memory)
            if args.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)

            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.amp):
                outputs = model(images)
                loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            scheduler.step()

            if step % args.log_every == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
            step += 1
            if save_dir and step % args.save_every == 0:
                path = os.path.join(save_dir, f"step{step}.pt")
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
                print(f"saved {path}")
            if args.steps and step >= args.steps:
                break

        accuracy = validate(model, val_loader, device)
        print(f"epoch {epoch} done in {time.time() - start:.1f} s, validation accuracy {accuracy:.4f}")
        if args.steps and step >= args.steps:
            break


if __name__ == "__main__":
    main()
