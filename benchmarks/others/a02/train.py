"""Small fully convolutional segmenter, trained only inside a circular field of view."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

SIZE = 32
BATCH = 12


class SegNet(nn.Module):
    def __init__(self, ch=4):
        super().__init__()
        self.enc1 = nn.Conv2d(1, ch, 3, padding=1)
        self.enc2 = nn.Conv2d(ch, ch * 2, 3, stride=2, padding=1)
        self.dec = nn.ConvTranspose2d(ch * 2, ch, 2, stride=2)
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        h = F.relu(self.enc1(x))
        z = F.relu(self.enc2(h))
        return self.out(F.relu(self.dec(z)) + h).squeeze(1)


def sample_batch(gen):
    low = torch.randn(BATCH, 1, 8, 8, generator=gen)
    field = F.interpolate(low, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    target = (field > 0.2).float().squeeze(1)
    image = field + 0.3 * torch.randn(BATCH, 1, SIZE, SIZE, generator=gen)
    centers = torch.randint(12, 20, (BATCH, 2), generator=gen)
    radii = torch.randint(9, 15, (BATCH,), generator=gen)
    return image, target, centers, radii


def field_of_view(centers, radii):
    mask = torch.zeros(len(radii), SIZE, SIZE)
    for b in range(len(radii)):
        cy, cx = centers[b].tolist()
        r = radii[b].item()
        for y in range(SIZE):
            for x in range(SIZE):
                if (y - cy) ** 2 + (x - cx) ** 2 <= r * r:
                    mask[b, y, x] = 1.0
    return mask


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    gen = torch.Generator().manual_seed(11)
    net = SegNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    for step in range(args.steps):
        image, target, centers, radii = sample_batch(gen)
        logits = net(image)
        mask = field_of_view(centers, radii)
        pixel_loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        loss = (pixel_loss * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            print("step", step + 1, "loss", round(loss.item(), 6))


if __name__ == "__main__":
    main()
