import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numeric_strategies import batches, numeric_settings, with_junk

from verl.algorithms.kl import (
    AdaptiveKlController,
    FixedKlController,
    build_kl_controller,
    estimate_kl,
    full_kl,
    kl_penalised_rewards,
)
from verl.config.schema import KlControlConfig
from verl.errors import CheckpointError, ConfigError, VerlError

ESTIMATORS = ["k1", "k2", "k3", "abs"]
NAN = float("nan")
# A policy and a reference over a vocabulary of five, so that every expectation is a sum of five terms.
LOGITS = torch.tensor([0.7, -0.4, 0.1, 1.3, -1.1], dtype=torch.float64)
REF_LOGITS = torch.tensor([0.2, 0.5, -0.8, 0.9, 0.3], dtype=torch.float64)
ALL = torch.ones(5)


def gradient_of(function):
    """Gradient of a function of the policy's logits."""
    leaf = LOGITS.clone().requires_grad_()
    function(leaf).backward()
    return leaf.grad


def expected_under_the_policy(per_token, logits):
    """Expectation over tokens sampled from the policy; as in training, sampling carries no gradient."""
    return (logits.softmax(-1).detach() * per_token).sum()


def kl_as_loss(estimator):
    def loss(logits):
        return expected_under_the_policy(
            estimate_kl(logits.log_softmax(-1), REF_LOGITS.log_softmax(-1), ALL, estimator), logits
        )

    return gradient_of(loss)


def kl_in_reward(estimator):
    """Score function with the penalty as (negative) reward: gradient of sum_v pi_v sg[kl_v] log pi_v."""

    def loss(logits):
        logprobs = logits.log_softmax(-1)
        kl = estimate_kl(logprobs, REF_LOGITS.log_softmax(-1), ALL, estimator)
        penalty = -kl_penalised_rewards(torch.zeros(5, dtype=torch.float64), kl, ALL, coef=1.0)
        return expected_under_the_policy(penalty * logprobs, logits)

    return gradient_of(loss)


def ratio_times_kl(estimator):
    def loss(logits):
        logprobs = logits.log_softmax(-1)
        ratio = (logprobs - logprobs.detach()).exp()
        kl = estimate_kl(logprobs, REF_LOGITS.log_softmax(-1), ALL, estimator)
        return expected_under_the_policy(ratio * kl, logits)

    return gradient_of(loss)


TO_REF = gradient_of(lambda logits: full_kl(logits, REF_LOGITS))
# full_kl holds its second argument constant, so KL(ref || pi) is written out.
FROM_REF = gradient_of(lambda z: (REF_LOGITS.softmax(-1) * (REF_LOGITS.log_softmax(-1) - z.log_softmax(-1))).sum())


def test_the_two_gradients_of_this_example_are_far_apart():
    assert (TO_REF - FROM_REF).abs().max() > 0.05


def test_full_kl_by_hand():
    # 3/4 ln(3/4 / 1/2) + 1/4 ln(1/4 / 1/2)
    logits, ref_logits = torch.tensor([0.75, 0.25]).double().log(), torch.zeros(2).double()
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert full_kl(logits, ref_logits).item() == pytest.approx(expected)
    assert full_kl(logits, logits).item() == 0.0


def test_full_kl_and_its_gradient_with_forbidden_tokens():
    leaf = torch.tensor([0.0, 1.0, -math.inf], dtype=torch.float64, requires_grad=True)
    kl = full_kl(leaf, torch.tensor([0.5, 0.0, -math.inf]).double())
    kl.backward()
    assert kl.item() == pytest.approx(full_kl(leaf[:2], torch.tensor([0.5, 0.0]).double()).item())
    assert leaf.grad.isfinite().all()
    assert math.isinf(full_kl(torch.zeros(2), torch.tensor([0.0, -math.inf])).item())


def test_full_kl_of_masked_positions_is_zero_without_gradient():
    mask = torch.tensor([[1, 0]])
    leaf = torch.stack([LOGITS, torch.full_like(LOGITS, NAN)]).unsqueeze(0).requires_grad_()
    reference = torch.stack([REF_LOGITS, torch.full_like(LOGITS, math.inf)]).unsqueeze(0)
    kl = full_kl(leaf, reference, mask)
    kl.sum().backward()
    assert kl[0].tolist() == [pytest.approx(full_kl(LOGITS, REF_LOGITS).item()), 0.0]
    torch.testing.assert_close(leaf.grad[0], torch.stack([TO_REF, torch.zeros(5).double()]))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    # x = log pi - log ref = 1/2 and -1.
    [
        ("k1", [0.5, -1.0]),
        ("k2", [0.125, 0.5]),
        ("k3", [math.exp(-0.5) - 1 + 0.5, math.e - 1 - 1]),
        ("abs", [0.5, 1.0]),
    ],
)
def test_estimators_by_hand(estimator, expected):
    found = estimate_kl(torch.tensor([-1.0, -3.0]).double(), torch.tensor([-1.5, -2.0]).double(), ALL[:2], estimator)
    assert found.tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator):
    values = estimate_kl(LOGITS.log_softmax(-1), REF_LOGITS.log_softmax(-1), ALL, estimator)
    found = expected_under_the_policy(values, LOGITS)
    assert found.item() == pytest.approx(full_kl(LOGITS, REF_LOGITS).item(), abs=1e-14)


@pytest.mark.parametrize("estimator", ["k2", "abs"])
def test_k2_and_abs_are_biased(estimator):
    values = estimate_kl(LOGITS.log_softmax(-1), REF_LOGITS.log_softmax(-1), ALL, estimator)
    found = expected_under_the_policy(values, LOGITS)
    assert abs(found.item() - full_kl(LOGITS, REF_LOGITS).item()) > 0.005


def test_as_a_loss_k1_has_no_gradient():
    torch.testing.assert_close(kl_as_loss("k1"), torch.zeros(5).double(), rtol=0, atol=1e-14)


def test_as_a_loss_k2_has_the_gradient_of_the_kl_to_the_reference():
    torch.testing.assert_close(kl_as_loss("k2"), TO_REF, rtol=0, atol=1e-14)


def test_as_a_loss_k3_has_the_gradient_of_the_kl_from_the_reference():
    torch.testing.assert_close(kl_as_loss("k3"), FROM_REF, rtol=0, atol=1e-14)


@pytest.mark.parametrize("wanted", [TO_REF, FROM_REF])
def test_as_a_loss_abs_has_neither(wanted):
    assert (kl_as_loss("abs") - wanted).abs().max() > 0.05


def test_in_the_reward_k1_has_the_gradient_of_the_kl_to_the_reference():
    torch.testing.assert_close(kl_in_reward("k1"), TO_REF, rtol=0, atol=1e-14)


def test_in_the_reward_k3_has_the_difference_of_both_gradients():
    torch.testing.assert_close(kl_in_reward("k3"), TO_REF - FROM_REF, rtol=0, atol=1e-14)


@pytest.mark.parametrize("estimator", ["k2", "abs"])
@pytest.mark.parametrize("wanted", [TO_REF, FROM_REF])
def test_in_the_reward_k2_and_abs_have_neither(estimator, wanted):
    assert (kl_in_reward(estimator) - wanted).abs().max() > 0.02


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_ratio_times_k1_or_k3_has_the_gradient_of_the_kl_to_the_reference(estimator):
    torch.testing.assert_close(ratio_times_kl(estimator), TO_REF, rtol=0, atol=1e-14)


@pytest.mark.parametrize("estimator", ["k2", "abs"])
@pytest.mark.parametrize("wanted", [TO_REF, FROM_REF])
def test_ratio_times_k2_or_abs_has_neither(estimator, wanted):
    assert (ratio_times_kl(estimator) - wanted).abs().max() > 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(st.floats(-100, 0, width=32), st.floats(-1, 1) | st.floats(-1e-6, 1e-6) | st.floats(-1e-15, 1e-15))
@numeric_settings
def test_k3_is_never_negative(dtype, logprob, difference):
    reference = torch.tensor([logprob], dtype=dtype)
    assert estimate_kl(reference + difference, reference, ALL[:1], "k3").item() >= 0.0


def test_k3_stays_finite_for_a_huge_log_ratio():
    found = estimate_kl(torch.tensor([-300.0, 0.0]), torch.tensor([0.0, -300.0]), ALL[:2], "k3")
    assert found.tolist() == pytest.approx([math.exp(20) - 1 - 20, math.exp(-20) - 1 + 20], rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(batches(2))
@numeric_settings
def test_junk_at_masked_positions_changes_neither_kl_nor_gradient(estimator, batch):
    mask, tensors = batch
    results = []
    for inputs in (tensors, [with_junk(tensor, mask, seed) for seed, tensor in enumerate(tensors)]):
        leaf = inputs[0].clone().requires_grad_()
        kl = estimate_kl(leaf, inputs[1], mask, estimator)
        kl.sum().backward()
        results.append((kl.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert torch.all(results[1][0][mask == 0] == 0)


def test_an_unknown_estimator_names_the_allowed_ones():
    with pytest.raises(ConfigError, match=r"'k4'.*k1, k2, k3, abs"):
        estimate_kl(LOGITS, REF_LOGITS, ALL, "k4")


def test_penalised_rewards_by_hand():
    # 1 - .5 x .2, 0 - .5 x -.4; masked positions give 0 whatever they hold.
    rewards = torch.tensor([[1.0, NAN, 0.0]])
    kl = torch.tensor([[0.2, NAN, -0.4]], requires_grad=True)
    found = kl_penalised_rewards(rewards, kl, torch.tensor([[1, 0, 1]]), coef=0.5)
    assert found[0].tolist() == pytest.approx([0.9, 0.0, 0.2])
    assert not found.requires_grad


def test_the_adaptive_controller_by_hand():
    controller = AdaptiveKlController(coef=0.1, target=0.5, horizon=1000)
    # Error .6 / .5 - 1 = .2 (also where it would be more): .1 (1 + .2 x 100 / 1000) = .102.
    controller.update(current_kl=5.0, num_trajectories=100)
    assert controller.coef == pytest.approx(0.1 * 1.02)
    # Error .55 / .5 - 1 = .1 over 200 of 1000: x 1.02.
    controller.update(current_kl=0.55, num_trajectories=200)
    assert controller.coef == pytest.approx(0.1 * 1.02 * 1.02)
    # Error clipped to -.2 over 500 of 1000: x .9.
    controller.update(current_kl=-1.0, num_trajectories=500)
    assert controller.coef == pytest.approx(0.1 * 1.02 * 1.02 * 0.9)
    # On target nothing moves.
    controller.update(current_kl=0.5, num_trajectories=500)
    assert controller.coef == pytest.approx(0.1 * 1.02 * 1.02 * 0.9)


def test_a_step_larger_than_the_horizon_cannot_turn_the_coefficient_negative():
    controller = AdaptiveKlController(coef=1.0, target=0.1, horizon=10)
    controller.update(current_kl=0.0, num_trajectories=1000)
    assert controller.coef == pytest.approx(0.8)


def test_an_infinite_kl_raises_the_coefficient_and_a_nan_stops():
    controller = AdaptiveKlController(coef=1.0, target=0.1, horizon=10)
    controller.update(current_kl=math.inf, num_trajectories=5)
    assert controller.coef == pytest.approx(1.1)
    with pytest.raises(VerlError, match=r"NaN.*grad_norm/actor"):
        controller.update(current_kl=NAN, num_trajectories=5)
    assert controller.coef == pytest.approx(1.1)


def test_a_resumed_controller_goes_on_as_if_nothing_happened():
    straight = AdaptiveKlController(coef=0.1, target=0.5, horizon=100)
    straight.update(0.9, 10)
    resumed = AdaptiveKlController(coef=0.1, target=0.5, horizon=100)
    resumed.load_state_dict(straight.state_dict())
    for controller in (straight, resumed):
        controller.update(0.2, 10)
    assert resumed.coef == straight.coef


def test_the_fixed_controller_keeps_the_coefficient_of_the_configuration():
    controller = FixedKlController(0.3)
    controller.update(current_kl=NAN, num_trajectories=10)
    controller.load_state_dict({"coef": 0.9})
    assert controller.coef == 0.3
    assert controller.state_dict() == {"coef": 0.3}


@pytest.mark.parametrize("state", [{}, {"coef": NAN}, {"coef": -1.0}, {"coef": math.inf}])
def test_a_state_without_usable_coefficient_is_refused(state):
    with pytest.raises(CheckpointError, match="finite coef"):
        AdaptiveKlController(coef=0.1, target=0.5, horizon=100).load_state_dict(state)


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 10), (0.1, 0), (NAN, 10)])
def test_a_target_or_horizon_of_zero_is_refused(target, horizon):
    with pytest.raises(ConfigError, match="above 0"):
        AdaptiveKlController(coef=0.1, target=target, horizon=horizon)


def test_the_configuration_chooses_the_controller():
    fixed = build_kl_controller(KlControlConfig(kl_coef=0.2))
    assert isinstance(fixed, FixedKlController)
    assert fixed.coef == 0.2
    adaptive = build_kl_controller(KlControlConfig(type="adaptive", kl_coef=0.2, target_kl=0.5, horizon=10))
    adaptive.update(current_kl=9.0, num_trajectories=5)
    assert adaptive.coef == pytest.approx(0.2 * 1.1)
