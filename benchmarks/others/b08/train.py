"""Knowledge distillation of a frozen MLP teacher into a smaller student."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
SAVE_EVERY = 1


def mlp(width, depth, n_in=64, n_out=20):
    layers, d = [], n_in
    for _ in range(depth):
        layers += [nn.Linear(d, width), nn.GELU()]
        d = width
    return nn.Sequential(*layers, nn.Linear(d, n_out))


def kd_loss(student, teacher, y, temp=3.0):
    soft = F.kl_div(F.log_softmax(student / temp, 1), F.softmax(teacher / temp, 1),
                    reduction="batchmean") * temp ** 2
    return 0.7 * soft + 0.3 * F.cross_entropy(student, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)

    centers = torch.randn(20, 64)
    ys = torch.randint(0, 20, (10_000,))
    xs = centers[ys] + torch.randn(10_000, 64)

    teacher = mlp(512, 3).eval().requires_grad_(False)
    student = mlp(256, 3)
    opt = torch.optim.Adam(student.parameters(), lr=1e-3)

    with tempfile.TemporaryDirectory() as ckpt_dir:
        for step in range(args.steps):
            idx = torch.randint(0, len(xs), (64,))
            x, y = xs[idx], ys[idx]
            with torch.no_grad():
                t_out = teacher(x)
            loss = kd_loss(student(x), t_out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()

            if (step + 1) % SAVE_EVERY == 0 or step == args.steps - 1:
                torch.save({"step": step, "student": student.state_dict(),
                            "optimizer": opt.state_dict()},
                           os.path.join(ckpt_dir, "last.pt"))
            if step % 50 == 0 or step == args.steps - 1:
                print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
