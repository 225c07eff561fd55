"""Lightning with the logger: fits a line.

python examples/tracking/lightning_training.py
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader

from verl.integrations.lightning_logger import VerlLogger


class Line(lightning.LightningModule):
    """One linear layer."""

    def __init__(self, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(3, 1)
        self.learning_rate = learning_rate

    def training_step(self, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
        loss = (self.layer(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def main() -> None:
    rows: Any = torch.randn(80, 3)
    logger = VerlLogger("examples", "lightning", ["console", "tensorboard"])
    trainer = lightning.Trainer(logger=logger, max_epochs=2, log_every_n_steps=1, enable_progress_bar=False)
    trainer.fit(Line(), DataLoader(rows, batch_size=8))


if __name__ == "__main__":
    main()
