"""Deep MLP regression with a max-norm constraint on every neuron's incoming weights."""
import argparse

import torch
import torch.nn as nn

torch.set_num_threads(1)

MAX_NORM = 0.9


def build(width=64, depth=5):
    layers = [nn.Linear(16, width), nn.Tanh()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    layers.append(nn.Linear(width, 1))
    return nn.Sequential(*layers)


@torch.no_grad()
def apply_max_norm(model):
    for layer in model:
        if not isinstance(layer, nn.Linear):
            continue
        for j in range(layer.out_features):
            row = layer.weight[j]
            norm = row.norm().item()
            if norm > MAX_NORM:
                layer.weight[j] = row * (MAX_NORM / (norm + 1e-7))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()

    torch.manual_seed(1)
    x_all = torch.randn(4000, 16)
    y_all = (torch.sin(x_all[:, :4].sum(1)) + x_all[:, 4] * x_all[:, 5]).unsqueeze(1)

    model = build()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(1.6)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    criterion = nn.MSELoss()

    for step in range(args.steps):
        pick = torch.randint(0, 4000, (128,))
        loss = criterion(model(x_all[pick]), y_all[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        apply_max_norm(model)
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            print(f"step {step + 1:5d}  mse {loss.item():.6f}")


if __name__ == "__main__":
    main()
