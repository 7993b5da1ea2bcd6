"""A Ray Train job that records itself: Ray starts its workers where no command of ours reaches them."""

import sys

import ray.train
import ray.train.torch
import torch

import diagnose


def train(config: dict) -> None:
    """What each worker runs."""
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with diagnose.record(config["out"], steps=5) as recording:
        for _ in range(config["steps"]):
            optimizer.zero_grad()
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            recording.step()


if __name__ == "__main__":
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"out": sys.argv[1], "steps": 200},  # a folder that all machines share
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available()),
    )
    trainer.fit()
