"""A loop of your own: fits a line, and shows it in the console and in TensorBoard.

python examples/tracking/own_loop.py
"""

from __future__ import annotations

import torch

from verl.tracking import Tracking

STEPS = 20
MICRO_BATCHES = (2, 6, 8)


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracking("examples", "own loop", ["console", "tensorboard"], {"lr": 0.1}, total_steps=STEPS) as tracking:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            for size in MICRO_BATCHES:  # of any sizes: each sample of the metric says how much it counts
                inputs = torch.randn(size, 3)
                loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
                (loss * size / sum(MICRO_BATCHES)).backward()
                tracking.metrics.add("loss/fit", loss, weight=size)
            optimizer.step()
            tracking.log_metrics(tracking.metrics.reduce(), step)
            tracking.log_histogram("weights", model.weight, step)


if __name__ == "__main__":
    main()
