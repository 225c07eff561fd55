"""The Trainer of transformers with the callback: a tiny Llama learns to count.

python examples/tracking/transformers_trainer.py
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from verl.integrations.transformers_callback import VerlCallback

VOCABULARY = 32


def main() -> None:
    rows = [{"input_ids": torch.arange(row, row + 8) % VOCABULARY} for row in range(64)]
    rows = [{**row, "labels": row["input_ids"]} for row in rows]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
    )
    arguments = TrainingArguments(
        "out/transformers_trainer",
        report_to="none",
        max_steps=20,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        learning_rate=1e-2,
        disable_tqdm=True,
    )
    callback = VerlCallback("examples", "transformers", ["console", "tensorboard"])
    Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=[callback]).train()  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
