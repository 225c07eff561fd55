"""What the speed benchmarks of models have in common: their settings and the model that they measure."""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import PreTrainedTokenizerBase

from verl.config.schema import ModelConfig
from verl.models.loading import load_policy, load_tokenizer
from verl.models.policy import PolicyModel
from verl.testing.models import make_tiny_model_folder


def speed_parser(description: str | None) -> argparse.ArgumentParser:
    """Settings of every benchmark of a model; the benchmark adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder; nothing = a tiny random one")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    return parser


def load_measured(arguments: argparse.Namespace) -> tuple[PolicyModel, PreTrainedTokenizerBase]:
    """Sets the threads and loads the model of `speed_parser`'s settings on the CPU."""
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or str(make_tiny_model_folder(folder, hidden_size=64, intermediate_size=192))
        tokenizer = load_tokenizer(path)
        return load_policy(ModelConfig(path=path), "cpu", tokenizer=tokenizer), tokenizer


def headline(policy: PolicyModel, work: str, threads: int) -> str:
    """First line of a benchmark's output."""
    parameters = sum(parameter.numel() for parameter in policy.network.parameters())
    return f"{parameters:,} parameters, {work}, {threads} thread(s)"
