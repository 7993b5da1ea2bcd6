"""Tone classification: windowed DFT front end, log power, 1-D CNN."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

N_FFT, HOP, LENGTH, CLASSES = 256, 64, 2048, 6


def dft_basis(n):
    t = np.arange(n)[:, None]
    f = np.arange(n // 2 + 1)[None, :]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * t / n)
    ang = 2 * np.pi * t * f / n
    return window * np.cos(ang), window * np.sin(ang)


class ToneNet(nn.Module):
    def __init__(self):
        super().__init__()
        cos, sin = dft_basis(N_FFT)
        self.register_buffer("cos", torch.from_numpy(cos))
        self.register_buffer("sin", torch.from_numpy(sin))
        self.conv1 = nn.Conv1d(N_FFT // 2 + 1, 20, 3, padding=1)
        self.conv2 = nn.Conv1d(20, 20, 3, padding=1)
        self.fc = nn.Linear(20, CLASSES)

    def features(self, wav):
        frames = wav.unfold(1, N_FFT, HOP).to(self.cos.dtype)
        re = frames @ self.cos
        im = frames @ self.sin
        power = re * re + im * im
        return torch.log(power + 1e-3).transpose(1, 2).float()

    def forward(self, wav):
        h = F.relu(self.conv1(self.features(wav)))
        h = F.relu(self.conv2(h))
        return self.fc(h.mean(-1))


def synth(n, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    t = torch.arange(LENGTH, dtype=torch.float32)
    freq = 0.02 + 0.004 * y.float() + 0.002 * torch.rand(n, generator=gen)
    phase = 6.28 * torch.rand(n, generator=gen)
    wav = torch.sin(2 * math.pi * freq[:, None] * t + phase[:, None])
    return wav + 0.8 * torch.randn(n, LENGTH, generator=gen), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(13)
    gen = torch.Generator().manual_seed(14)
    wavs, labels = synth(600, gen)

    net = ToneNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    for step in range(args.steps):
        idx = torch.randint(0, len(wavs), (24,), generator=gen)
        loss = F.cross_entropy(net(wavs[idx]), labels[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            print(f"step {step + 1} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
