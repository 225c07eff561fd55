"""The same loop on several processes, with data of different size on each.

torchrun --standalone --nproc_per_node 2 examples/tracking/torchrun_loop.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from verl.distributed.metric_reduction import reduce_metrics
from verl.tracking import Tracking

STEPS = 20


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(3, 1, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # On rank 0 this opens the run; on the others it writes nothing.
    with Tracking("examples", "torchrun", ["console", "tensorboard"], {"lr": 0.1}, total_steps=STEPS) as tracking:
        for step in range(1, STEPS + 1):
            inputs = torch.randn(8 + rank, 3, device=device)
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracking.metrics.add("loss/fit", loss, weight=len(inputs))
            if loss > 100:
                tracking.alert("Loss explodes", f"{loss.item():.3g} at step {step}")  # of any rank: rank 0 logs it
            tracking.log_metrics(reduce_metrics(tracking), step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
