"""Small fully convolutional segmentation net; mean IoU is tracked while training."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
N_CLASSES = 20


class IoUMeter:
    def __init__(self):
        self.inter = [0] * N_CLASSES
        self.union = [0] * N_CLASSES

    def update(self, pred, target):
        for p, t in zip(pred, target):
            for c in range(N_CLASSES):
                self.inter[c] += ((p == c) & (t == c)).sum().item()
                self.union[c] += ((p == c) | (t == c)).sum().item()

    def value(self):
        return sum(i / max(u, 1) for i, u in zip(self.inter, self.union)) / N_CLASSES


class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.c3 = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Conv2d(16 + 8, N_CLASSES, 1)

    def forward(self, x):
        a = F.relu(self.c1(x))
        b = F.relu(self.c3(F.relu(self.c2(a))))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.head(torch.cat([a, b], 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)

    coarse = torch.randint(0, N_CLASSES, (256, 4, 4))
    masks = coarse.repeat_interleave(6, 1).repeat_interleave(6, 2)
    palette = torch.randn(N_CLASSES, 3)
    images = palette[masks].permute(0, 3, 1, 2).contiguous() + 0.5 * torch.randn(256, 3, 24, 24)

    model = FCN()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    meter = IoUMeter()

    for step in range(args.steps):
        idx = torch.randint(0, 256, (12,))
        x, y = images[idx], masks[idx]
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(out.argmax(1), y)
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f} miou {meter.value():.6f}")


if __name__ == "__main__":
    main()
