"""Health rules on series made by hand: they fire where they must, with the numbers, and are silent otherwise."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.config import PPOConfig
from verl.config.schema import HealthConfig
from verl.errors import ConfigError, VerlError
from verl.journal import JournalReader
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking, lookup
from verl.tracking.health.monitor import HealthMonitor, HealthStopError, build_rules
from verl.tracking.health.stall_watch import StallWatch

Alert = tuple[int, str, str, str]
"""Step, rule, text and level."""

NO_THREAD = {"stalled_step": {"enabled": False}}


def alerts_of(records: Iterable[tuple[int, Mapping[str, float]]], **settings: Any) -> list[Alert]:
    """What is told of a stream of (step, metrics)."""
    told: list[Alert] = []
    step = 0

    def alert(title: str, text: str, level: str) -> None:
        rule = text.rpartition("(Health rule `")[2].removesuffix("`.)")
        told.append((step, rule, text, level))

    monitor = HealthMonitor(HealthConfig(**{**NO_THREAD, **settings}), alert)
    for step, metrics in records:
        monitor.observe(step, metrics)
    return told


def series(key: str, values: Iterable[float], interval: int = 1) -> list[tuple[int, dict[str, float]]]:
    return [(interval * (index + 1), {key: value}) for index, value in enumerate(values)]


def the_alert(told: list[Alert]) -> Alert:
    assert len(told) == 1, told
    return told[0]


# Each rule.


def test_a_divergence_above_its_limit_for_two_records_is_a_blow_up() -> None:
    told = alerts_of(series("kl/kl_divergence", [0.01, 0.05, 2.5, 0.05, 2.5, 3.25, 4.0]))
    step, rule, text, level = the_alert(told)
    assert (step, rule, level) == (6, "kl_blow_up", "error")
    assert "Step 6: `kl/kl_divergence` is 3.25 nats/token (limit 1)" in text
    assert "learning rate" in text


def test_a_divergence_far_above_its_recent_median_is_a_blow_up_below_the_limit_too() -> None:
    told = alerts_of(series("kl/kl_divergence", [0.02] * 12 + [0.3, 0.4]))
    assert the_alert(told)[:2] == (14, "kl_blow_up")
    assert "`kl/kl_divergence` is 0.4 nats/token, more than 10 times its recent median 0.02" in told[0][2]


def test_a_slow_rise_of_the_divergence_is_none() -> None:
    assert alerts_of(series("kl/kl_divergence", [0.9 * index / 300 for index in range(300)])) == []


def test_an_update_that_goes_too_far_is_a_blow_up() -> None:
    told = alerts_of(series("policy/approx_kl", [0.01, 0.3, 0.3]))
    assert the_alert(told)[:2] == (3, "kl_blow_up")
    assert "`policy/approx_kl` is 0.3 nats/token (limit 0.2)" in told[0][2]


def test_entropy_far_below_its_early_median_has_collapsed() -> None:
    told = alerts_of(series("policy/entropy", [2.0] * 10 + [0.5] * 20 + [0.09] * 4))
    assert the_alert(told)[:2] == (33, "entropy_collapse")
    assert "`policy/entropy` is 0.09 nats/token, below 5% of its early median 2" in told[0][2]


def test_entropy_of_nearly_nothing_has_collapsed_though_it_began_low() -> None:
    told = alerts_of(series("policy/entropy", [0.02] * 10 + [0.004] * 3))
    assert the_alert(told)[:2] == (13, "entropy_collapse")
    assert "limit 0.005" in told[0][2]


@pytest.mark.parametrize("key", ["grad_norm/actor", "grad_norm/critic"])
def test_gradients_of_ten_times_their_median_for_three_records_are_an_explosion(key: str) -> None:
    told = alerts_of(series(key, [2.0] * 12 + [30.0, 2.0, 30.0, 31.0, 32.0, 33.0]))
    assert the_alert(told)[:2] == (17, "gradient_explosion")
    assert f"`{key}` is 32, 16 times its recent median 2" in told[0][2]


def test_a_gradient_of_a_hundred_times_the_median_is_told_at_once() -> None:
    told = alerts_of(series("grad_norm/actor", [2.0] * 12 + [500.0, 2.0]))
    assert the_alert(told)[:2] == (13, "gradient_explosion")


@pytest.mark.parametrize("norms", [[0.01] * 10 + [2.0], [0.01] * 12 + [2.0] * 10, [0.001] * 20 + [9.0] * 3])
def test_ordinary_gradients_after_tiny_ones_are_no_explosion(norms: list[float]) -> None:
    assert alerts_of(series("grad_norm/actor", norms)) == []


def test_large_gradients_after_tiny_ones_are_one() -> None:
    told = alerts_of(series("grad_norm/actor", [0.01] * 12 + [50.0] * 3))
    assert the_alert(told)[:2] == (15, "gradient_explosion")
    assert "`grad_norm/actor` is 50, 5e+03 times its recent median 0.01" in told[0][2]
    assert the_alert(alerts_of(series("grad_norm/actor", [0.01] * 12 + [150.0])))[0] == 13


def test_gradients_of_zero_say_nothing_of_the_usual_ones() -> None:
    told = alerts_of(series("grad_norm/actor", [0.0, 0.0, 0.0, 5.0] * 20))
    assert told == []
    told = alerts_of(series("grad_norm/actor", [0.0, 0.0, 0.0, 5.0] * 20 + [5000.0]))
    assert the_alert(told)[:2] == (81, "gradient_explosion")


def test_small_gradients_may_grow_many_times() -> None:
    assert alerts_of(series("grad_norm/actor", [0.001] * 20 + [0.9] * 10)) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["loss", "loss/policy_loss", "train/loss", "grad_norm", "train/grad_norm", "kl/coef"])
def test_a_metric_that_is_not_finite_is_told_at_once(key: str, value: float) -> None:
    told = alerts_of([(1, {key: 0.5, "a": 1.0}), (2, {key: value, "a": 1.0}), (3, {key: value, "a": 1.0})])
    step, rule, text, level = the_alert(told)
    assert (step, rule, level) == (2, "not_finite", "error")
    assert f"Step 2: `{key}` is {value}." in text


def test_gaps_of_metrics_that_may_have_gaps_are_none_of_its_business() -> None:
    gaps = {"value/explained_variance": math.nan, "my/score": math.nan, "val/reward_mean": math.inf}
    assert alerts_of([(step, gaps) for step in range(50)]) == []
    assert the_alert(alerts_of([(7, gaps)], not_finite={"keys": ["my/*"]}))[:2] == (7, "not_finite")


def test_another_metric_that_is_not_finite_is_an_alert_of_its_own() -> None:
    first, both = {"loss/value_loss": math.nan}, {"loss/value_loss": math.nan, "loss/policy_loss": math.nan}
    told = alerts_of([(1, first), (2, first), (3, both), (4, both)])
    assert [alert[0] for alert in told] == [1, 3]


def test_many_metrics_that_are_not_finite_are_one_alert() -> None:
    told = alerts_of([(1, {f"loss/{index}": math.nan for index in range(40)})])
    assert "and 35 more" in the_alert(told)[2]


def test_a_whole_number_larger_than_any_float_is_taken() -> None:
    assert alerts_of([(1, {"loss/a": 1.0, "tokens": 10**400})]) == []
    assert alerts_of(series("grad_norm/actor", [10**400] * 30)) == []
    told = alerts_of([(1, {"tokens": 10**400, "loss/a": math.nan})])
    assert "`loss/a` is nan" in the_alert(told)[2]


def test_a_reward_that_does_not_move_is_flat() -> None:
    told = alerts_of(series("reward/episode_reward_mean", [0.1] * 5 + [0.0] * 30))
    assert the_alert(told)[:2] == (35, "reward_flat")
    assert "stays between 0 and 0 for 30 records" in told[0][2]


def test_a_reward_that_never_rose_is_flat_however_noisy() -> None:
    noise = random.Random(1)
    told = alerts_of(series("reward/episode_reward_mean", [0.3 + noise.gauss(0, 0.05) for _ in range(220)]))
    assert told[0][:2] == (200, "reward_flat")
    assert "has not risen in 200 records: 0." in told[0][2]
    assert alerts_of(
        series("reward/episode_reward_mean", [0.3 + noise.gauss(0, 0.05) for _ in range(400)]),
        reward_flat={"no_progress_after": None},
    ) == []  # fmt: skip


def test_a_reward_that_rose_and_levelled_off_is_not_flat() -> None:
    noise = random.Random(2)
    values = [0.8 - 0.6 * math.exp(-step / 60) + noise.gauss(0, 0.05) for step in range(1000)]
    assert alerts_of(series("reward/episode_reward_mean", values)) == []


@pytest.mark.parametrize(("start", "rise"), [(-1000.0, 0.01), (1000.0, 0.002), (-1.0, 1e-4)])
def test_a_reward_far_from_zero_that_rises_steadily_is_not_flat(start: float, rise: float) -> None:
    values = [start + rise * step for step in range(600)]
    assert alerts_of(series("reward/episode_reward_mean", values)) == []


def test_a_reward_that_stops_moving_is_flat_measured_by_how_it_moved_at_first() -> None:
    noise = random.Random(3)
    moving = [-1000.0 + step + noise.gauss(0, 5.0) for step in range(100)]
    told = alerts_of(series("reward/episode_reward_mean", moving + [-900.0, -900.001] * 20))
    assert the_alert(told)[:2] == (130, "reward_flat")
    assert alerts_of(series("reward/episode_reward_mean", moving + [-900.0, -901.0] * 20)) == []


def test_a_jump_at_the_start_does_not_make_what_follows_flat() -> None:
    values = [-1e6, -1e5, -100.0] + [0.01 * step for step in range(100)]
    assert alerts_of(series("reward/episode_reward_mean", values)) == []


def test_equal_rewards_are_flat_though_they_are_rounded() -> None:
    told = alerts_of(series("reward/episode_reward_mean", [0.3, 0.3 + 1e-8] * 15))
    assert the_alert(told)[:2] == (30, "reward_flat")


@pytest.mark.parametrize("seed", range(5))
def test_a_plateau_from_the_start_is_told_once(seed: int) -> None:
    noise = random.Random(seed)
    values = [0.3 + noise.gauss(0, 0.05) for _ in range(2000)]
    assert len(alerts_of(series("reward/episode_reward_mean", values))) == 1


def test_a_plateau_after_a_rise_is_one_of_its_own() -> None:
    noise = random.Random(4)
    means = [0.3] * 250 + [0.6] * 150 + [0.2] * 300
    told = alerts_of(series("reward/episode_reward_mean", [mean + noise.gauss(0, 0.05) for mean in means]))
    assert [step for step, *_ in told] == [200, pytest.approx(440, abs=15)]


def test_groups_that_stay_equal_teach_nothing() -> None:
    key = "reward/group_zero_variance_fraction"
    assert alerts_of(series(key, ([1.0] * 9 + [0.5]) * 5)) == []
    told = alerts_of(series(key, [0.5] + [1.0] * 10))
    assert the_alert(told)[:2] == (11, "groups_equal")
    assert "is 1 (limit 0.95) for 10 records" in told[0][2]


@pytest.mark.parametrize(("value", "times"), [(900.0, "4.5"), (40.0, "0.2")])
def test_lengths_that_leave_their_early_median_far_behind(value: float, times: str) -> None:
    told = alerts_of(series("length/response_mean", [200.0] * 12 + [value] * 3))
    assert the_alert(told)[:2] == (15, "length_drift")
    assert f"is {value:g} tokens, {times} times its early median 200 (healthy: 0.25 to 4 times)" in told[0][2]


def test_many_truncated_responses() -> None:
    told = alerts_of(series("length/truncated_fraction", [0.1, 0.6, 0.7, 0.8, 0.5] + [0.75] * 5))
    assert the_alert(told)[:2] == (10, "truncation")
    assert "is 0.75 (limit 0.5) for 5 records" in told[0][2]


def test_many_clipped_tokens() -> None:
    told = alerts_of(series("policy/clip_fraction", [0.1, 0.5, 0.6, 0.4, 0.5, 0.6, 0.7]))
    assert the_alert(told)[:2] == (7, "clipping")
    assert "is 0.7 (limit 0.4)" in told[0][2]


def test_every_rule_looks_at_metrics_of_the_catalogue() -> None:
    keys = set()

    class Asked(dict[str, float]):
        def get(self, key: str, default: Any = None) -> Any:
            keys.add(key)
            return super().get(key, default)

    for rule in build_rules(HealthConfig()):
        rule.look(Asked())
    assert len(keys) == 10
    assert all(lookup(key) is not None for key in keys)


# When they speak, and how often.


def records_of(value: float, count: int) -> list[float]:
    return [value] * count


def test_what_goes_on_is_told_again_only_after_many_steps() -> None:
    values = records_of(0.1, 10) + records_of(0.9, 500)
    told = alerts_of(series("policy/clip_fraction", values), repeat_after=100)
    assert [alert[0] for alert in told] == [13, 113, 213, 313, 413]
    told = alerts_of(series("policy/clip_fraction", values, interval=10), repeat_after=100)
    assert [alert[0] for alert in told][:3] == [130, 230, 330]


def test_what_has_recovered_is_told_again() -> None:
    values = records_of(0.9, 3) + records_of(0.1, 5) + records_of(0.9, 3) + records_of(0.1, 4) + records_of(0.9, 20)
    told = alerts_of(series("policy/clip_fraction", values), recover_after=5)
    assert [alert[0] for alert in told] == [3, 11]  # four healthy records are not enough


def one_by_one(records: Iterable[Mapping[str, float]]) -> list[tuple[int, dict[str, float]]]:
    """A record for each metric, as `writer.add_scalar` makes."""
    return [(step + 1, {key: value}) for step, record in enumerate(records) for key, value in record.items()]


def test_a_metric_that_stays_nan_is_told_once_though_each_is_a_record_of_its_own() -> None:
    others = {f"my/{index}": 1.0 for index in range(6)} | {f"loss/{index}": 1.0 for index in range(6)}
    assert the_alert(alerts_of(one_by_one([{"loss": math.nan, **others}] * 50)))[0] == 1
    assert the_alert(alerts_of(one_by_one([{**others, "loss": math.nan}] * 50)))[0] == 1


def test_a_metric_that_was_nan_is_told_again_when_it_has_been_finite_for_some_records() -> None:
    step = {"loss/a": 1.0, "loss/b": 1.0, "my/c": 1.0}
    for bad in ({"loss/a": math.nan}, {"loss/a": math.nan, "loss/b": math.nan}):
        records = [{**step, **bad}] * 3 + [step] * 5 + [{**step, **bad}] * 3
        assert [alert[0] for alert in alerts_of(list(enumerate(records, 1)))] == [1, 9]
        told = alerts_of(one_by_one(records))
        assert [alert[0] for alert in told] == [1, 9] if len(bad) == 1 else [1, 1, 9, 9]


def test_every_rule_judges_alike_whether_a_step_is_one_record_or_many() -> None:
    ill = {
        "kl/kl_divergence": 3.0,
        "policy/approx_kl": 0.5,
        "policy/entropy": 0.001,
        "grad_norm/actor": 90.0,
        "grad_norm/critic": 90.0,
        "loss/policy_loss": math.inf,
        "reward/group_zero_variance_fraction": 1.0,
        "length/response_mean": 2000.0,
        "length/truncated_fraction": 1.0,
        "policy/clip_fraction": 1.0,
    }
    well = {**dict.fromkeys(ill, 0.1), "policy/entropy": 1.0, "grad_norm/actor": 2.0, "length/response_mean": 200.0}
    reward = itertools.count()
    records = [{**values, "reward/episode_reward_mean": float(next(reward))} for values in [well] * 15 + [ill] * 15]
    for alternating in (False, True):
        if alternating:  # a metric is healthy while another one of the same rule is not
            records = [{**record, "policy/approx_kl": 0.0, "grad_norm/critic": 2.0} for record in records]
        together = {(step, rule) for step, rule, *_ in alerts_of(list(enumerate(records, 1)))}
        apart = {(step, rule) for step, rule, *_ in alerts_of(one_by_one(records))}
        assert together == apart
        assert len({rule for _, rule in apart}) == len(build_rules(HealthConfig())) - 3  # two names twice; the reward


def test_a_blow_up_that_two_metrics_show_is_told_once() -> None:
    update = {"policy/approx_kl": 0.5}
    both = {"kl/kl_divergence": 2.0, **update}
    for records in ([both] * 20, [update] * 3 + [both] * 20):
        assert the_alert(alerts_of(list(enumerate(records, 1))))[0] == 2
        assert the_alert(alerts_of(one_by_one(records)))[0] == 2
    told = alerts_of(list(enumerate([update] * 3 + [both] * 250, 1)), repeat_after=100)
    assert [alert[0] for alert in told] == [2, 102, 202]


def test_explosions_of_two_models_are_two_alerts() -> None:
    usual, large = (
        {"grad_norm/actor": 1.0, "grad_norm/critic": 1.0},
        {"grad_norm/actor": 50.0, "grad_norm/critic": 50.0},
    )
    told = alerts_of(list(enumerate([usual] * 12 + [large] * 5, 1)))
    assert [(alert[0], alert[1]) for alert in told] == [(15, "gradient_explosion")] * 2
    assert "actor" in told[0][2]
    assert "critic" in told[1][2]


def test_a_metric_that_sways_around_its_limit_alerts_ever_more_seldom() -> None:
    values = (records_of(0.9, 3) + records_of(0.1, 12)) * 200
    told = alerts_of(series("policy/clip_fraction", values), recover_after=5, repeat_after=10**9)
    assert len(told) == 3  # 5, then 10 healthy records in a row; 20 there never are


def test_without_their_metrics_all_rules_are_silent() -> None:
    assert alerts_of((step, {"my/loss_of_time": 5.0, "accuracy": 0.0}) for step in range(500)) == []


def test_a_rule_that_is_off_is_silent() -> None:
    values = series("policy/clip_fraction", [0.9] * 30)
    assert alerts_of(values, clipping={"enabled": False}) == []
    assert alerts_of(values, enabled=False) == []
    assert len(alerts_of(values)) == 1


def test_after_going_back_to_an_earlier_step_there_is_no_history() -> None:
    told: list[str] = []
    monitor = HealthMonitor(HealthConfig(**NO_THREAD), lambda title, text, level: told.append(text))
    for step in range(1, 30):
        monitor.observe(step, {"length/response_mean": 100.0})
    monitor.reset()
    for step in range(5, 30):
        monitor.observe(step, {"length/response_mean": 900.0})
    assert told == []


def healthy(seed: int, count: int, gaps: float) -> Iterator[dict[str, float]]:
    """A run that learns, with the noise of real ones, and with values that are NaN or not there."""
    noise = random.Random(seed)
    entropy, norm, length = noise.uniform(0.3, 3.0), noise.lognormvariate(0, 2), noise.uniform(5, 3000)
    top, speed = noise.uniform(0.3, 0.9), noise.uniform(20, count / 4)
    for step in range(count):
        learned = 1 - math.exp(-step / speed)
        metrics = {
            "reward/episode_reward_mean": 0.1 + top * learned + noise.gauss(0, 0.05),
            "reward/group_zero_variance_fraction": noise.uniform(0, 0.9),
            "kl/kl_divergence": 0.1 * learned * noise.uniform(0.5, 1.5) + noise.gauss(0, 0.002),
            "policy/approx_kl": noise.uniform(0, 0.02),
            "policy/entropy": entropy * (1 - 0.8 * learned) * noise.uniform(0.8, 1.2),
            "policy/clip_fraction": noise.uniform(0, 0.3),
            "grad_norm/actor": norm * noise.lognormvariate(0, 0.6),
            "grad_norm/critic": norm * (1 - 0.9 * learned) * noise.lognormvariate(0, 0.6),
            "length/response_mean": length * (1 + learned) * noise.uniform(0.7, 1.3),
            "length/truncated_fraction": noise.uniform(0, 0.4),
            "value/explained_variance": math.nan,
            "loss/policy_loss": noise.gauss(0, 0.1),
        }
        for key in list(metrics):
            if noise.random() < gaps:
                del metrics[key]
            elif noise.random() < gaps and key != "loss/policy_loss":
                metrics[key] = math.nan
        yield metrics


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([1, 10]))
def test_healthy_noisy_runs_cause_no_alert(seed: int, gaps: float, interval: int) -> None:
    records = [(interval * (index + 1), metrics) for index, metrics in enumerate(healthy(seed, 400, gaps))]
    told = alerts_of([(0, {"val/reward_mean": 0.1}), *records], not_finite={"keys": ["loss/*"]})
    assert told == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(next(healthy(0, 1, 0.0)))), st.floats() | st.integers())))
def test_no_numbers_make_it_raise_or_flood(records: list[dict[str, float]]) -> None:
    told = alerts_of(list(enumerate(records)))
    assert len(told) <= len(build_rules(HealthConfig())) * (len(records) // 5 + 1)


# In a loop.


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Tracking]:
    return lambda health, loggers=(): Tracking(
        "p", "e", list(loggers), log_dir=str(tmp_path), health=health, async_log=False
    )


def test_an_alert_reaches_the_journal_and_every_tracker(run: Callable[..., Tracking], tmp_path: Path) -> None:
    logger = RecordingLogger()
    with run(HealthConfig(), [logger]) as tracking:
        for step in range(1, 4):
            tracking.log_metrics({"loss": 0.1 if step < 3 else math.nan}, step)
        tracking.check_health()
    ((title, text, level),) = logger.of("alert")
    assert (title, level) == ("metrics are not finite", "error")
    assert text.startswith("Step 3: `loss` is nan.")
    (record,) = JournalReader(tmp_path).records({"alert"})
    assert (record.step, record.fields["text"]) == (3, text)


def test_metrics_of_the_writer_are_watched_too(run: Callable[..., Tracking]) -> None:
    logger = RecordingLogger()
    with run(HealthConfig(), [logger]) as tracking:
        for step in range(1, 8):
            tracking.writer.add_scalar("policy/clip_fraction", 0.9, step)
    assert len(logger.of("alert")) == 1


def test_without_health_nothing_is_watched(run: Callable[..., Tracking], tmp_path: Path) -> None:
    with run(None) as tracking:
        tracking.log_metrics({"loss": math.nan}, 1)
        tracking.check_health()
    assert list(JournalReader(tmp_path).records({"alert"})) == []


def test_a_loop_of_ones_own_can_end_when_a_rule_says_so(run: Callable[..., Tracking], tmp_path: Path) -> None:
    done: list[int] = []

    def loop() -> None:
        with run(HealthConfig(stop_on=["not_finite"])) as tracking:
            for step in range(1, 10):
                tracking.log_metrics({"loss": math.inf if step == 4 else 1.0}, step)
                done.append(step)
                tracking.check_health()

    with pytest.raises(HealthStopError, match=r"`not_finite`.*Step 4: `loss` is inf"):
        loop()
    assert done == [1, 2, 3, 4]
    (finish,) = JournalReader(tmp_path).records({"finish"})
    assert finish.fields["status"] == "failed"
    assert "`not_finite`" in finish.fields["error"]
    assert issubclass(HealthStopError, VerlError)
    assert HealthStopError.exit_code == 1


@pytest.mark.parametrize("by_writer", [False, True])
def test_a_loop_that_logs_one_metric_per_call_ends_too(
    run: Callable[..., Tracking], tmp_path: Path, by_writer: bool
) -> None:
    done: list[int] = []

    def loop() -> None:
        health = HealthConfig(stop_on=["kl_blow_up"])
        with run(health) as tracking:
            for step in range(1, 10):
                values = {"my/score": 1.0, "kl/kl_divergence": 0.1 if step < 4 else 3.0, "policy/approx_kl": 0.01}
                for key, value in values.items():
                    if by_writer:
                        tracking.writer.add_scalar(key, value, step)
                    else:
                        tracking.log_metrics({key: value}, step)
                done.append(step)
                tracking.check_health()

    with pytest.raises(HealthStopError, match=r"`kl_blow_up`.*Step 5: `kl/kl_divergence` is 3 nats"):
        loop()
    assert done == [1, 2, 3, 4, 5]
    assert len(list(JournalReader(tmp_path).records({"alert"}))) == 1


# Configuration.


def test_rules_are_the_groups_of_the_configuration() -> None:
    named = {rule.name for rule in build_rules(HealthConfig())} | {StallWatch.name}
    assert named == set(HealthConfig.rule_names())


def test_an_unknown_rule_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as raised:
        PPOConfig(trainer={"health": {"stop_on": ["not_finit"]}})
    assert "did you mean `not_finite` instead of not_finit?" in str(raised.value)
    with pytest.raises(ConfigError, match="`kl_blow_up`"):
        HealthConfig(stop_on=["something else"])
    with pytest.raises(ConfigError, match=r"trainer\.health\.kl_blow_up"):
        PPOConfig(trainer={"health": {"kl_blowup": {"limit": 3}}})


def test_a_rule_that_is_off_cannot_stop_a_run() -> None:
    with pytest.raises(ConfigError, match="names the rule `clipping`, which is off"):
        PPOConfig(trainer={"health": {"stop_on": ["clipping"], "clipping": {"enabled": False}}})
    with pytest.raises(ConfigError, match="names the rule `clipping`, which is off"):
        PPOConfig(trainer={"health": {"stop_on": ["clipping"], "enabled": False}})


def test_the_page_of_the_docs_names_every_rule_and_threshold() -> None:
    page = (Path(__file__).parents[2] / "docs" / "health.md").read_text(encoding="utf-8")
    defaults = HealthConfig()
    for name in HealthConfig.rule_names():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        for key, value in getattr(defaults, name).model_dump().items():
            assert f"`{key}`" in row or key == "enabled"
            assert key in ("enabled", "keys") or f"{value:g}" in row


def test_the_loop_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "health.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- tested: health -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], "docs/health.md", "exec"), {})
    (folder,) = (tmp_path / "logs").iterdir()
    assert len(list(JournalReader(folder).records({"metrics"}))) == 3
