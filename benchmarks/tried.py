"""The training of the documentation's trials: rows are slow to read, and AdamW steps one parameter at a time."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):  # type: ignore[misc]
    """Each takes a millisecond to read."""

    def __len__(self) -> int:
        return 64_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return torch.full((128,), index / len(self)), index % 10


torch.manual_seed(0)
torch.set_num_threads(1)
layers = [layer for _ in range(16) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
loss_of = torch.nn.CrossEntropyLoss()
for rows, labels in DataLoader(Rows(), batch_size=8, shuffle=True):
    loss = loss_of(model(rows), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
