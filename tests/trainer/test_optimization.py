"""Learning-rate schedules by hand, clipping, refused updates, and exact continuation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from verl.config.schema import OptimConfig
from verl.trainer.optimization import Optimization, learning_rate_factor


@pytest.mark.parametrize(
    ("scheduler", "step", "expected"),
    [
        ("constant", 0, 0.25),
        ("constant", 3, 1.0),
        ("constant", 99, 1.0),
        ("linear", 4, 1.0),
        ("linear", 9, 0.1 + 0.9 * 0.5),
        ("linear", 14, 0.1),
        ("linear", 50, 0.1),
        ("cosine", 4, 1.0),
        ("cosine", 9, 0.1 + 0.9 * 0.5),
        ("cosine", 14, 0.1),
    ],
)
def test_schedule_follows_its_formula(scheduler, step, expected):
    config = OptimConfig(lr=1.0, lr_scheduler=scheduler, lr_warmup_steps=4, min_lr_ratio=0.1)
    assert learning_rate_factor(config, total_steps=14, step=step) == pytest.approx(expected, abs=1e-12)


def make(lr: float = 0.1, steps: int = 10, clip: float = 1.0) -> tuple[nn.Linear, Optimization]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, Optimization(model, OptimConfig(lr=lr, lr_scheduler="linear"), steps, clip)


def train(model: nn.Linear, optimization: Optimization, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(4, 3)).square().sum().backward()
        optimization.apply()
        optimization.end_step()


def test_a_gradient_that_is_not_finite_updates_nothing_and_is_reported():
    model, optimization = make()
    before = [parameter.clone() for parameter in model.parameters()]
    (model(torch.ones(1, 3)).sum() * math.inf).backward()
    assert not math.isfinite(optimization.apply())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_norm_is_that_before_clipping():
    model, optimization = make(clip=1e-3)
    model.weight.grad, model.bias.grad = torch.full((2, 3), 2.0), torch.zeros(2)
    assert optimization.apply() == pytest.approx(math.sqrt(24.0))


def test_continuing_from_a_state_equals_not_having_stopped(tmp_path):
    unbroken, optimization = make()
    train(unbroken, optimization, 7)

    first, optimization = make()
    train(first, optimization, 3)
    torch.save({"model": first.state_dict(), "optimization": optimization.state_dict()}, tmp_path / "state.pt")
    second, optimization = make()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    second.load_state_dict(state["model"])
    optimization.load_state_dict(state["optimization"])
    train(second, optimization, 4)
    assert all(torch.equal(a, b) for a, b in zip(unbroken.parameters(), second.parameters(), strict=True))
    assert optimization.learning_rate == pytest.approx(0.03)


def test_a_continued_run_takes_the_learning_rate_of_its_configuration():
    _, optimization = make(lr=0.1)
    state = optimization.state_dict()
    _, changed = make(lr=0.5)
    changed.load_state_dict(state)
    assert changed.learning_rate == pytest.approx(0.5)
