"""All metrics that the package itself logs, each with its reduction, unit and meaning.

The tables below are the only place where a built-in metric is declared: the buffer reduces by them,
`verl metrics` and `docs/metrics.md` show them, and the trainers' tests hold every logged key against them.
"""

# One metric a line reads best as a table, however long the line.
# ruff: noqa: E501

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from verl.tracking.spec import Direction, MetricSpec, Reduction

_MEAN, _SUM, _MIN, _MAX, _LAST = Reduction.MEAN, Reduction.SUM, Reduction.MIN, Reduction.MAX, Reduction.LAST
_STD = Reduction.STD
_UP, _DOWN, _WATCH = Direction.UP, Direction.DOWN, Direction.WATCH

_NO_CRITIC = "no critic (adv_estimator other than gae)"
_NO_REFERENCE = "no reference policy is used (neither KL in the reward nor a KL loss)"
_NO_SAMPLE = "system_metrics_interval is 0, or no sample was taken since the last record"
_NO_GPU = "no NVIDIA GPU, or no sample was taken since the last record"
_NO_VALIDATION = "no validation data, or not a validation step"

# fmt: off
REWARD = (
    MetricSpec("reward/episode_reward_mean", _MEAN, "", _UP, "Mean reward of the trajectories of the step, before any KL penalty.", "rises, then levels off"),
    MetricSpec("reward/episode_reward_std", _STD, "", _WATCH, "Standard deviation (divisor n) of the trajectory rewards.", "above 0: without spread nothing is learned"),
    MetricSpec("reward/episode_reward_min", _MIN, "", _UP, "Smallest trajectory reward."),
    MetricSpec("reward/episode_reward_max", _MAX, "", _UP, "Largest trajectory reward."),
    MetricSpec("reward/parts/<name>", _MEAN, "", _UP, "Mean unweighted value of one reward part."),
    MetricSpec("reward/group_zero_variance_fraction", _MEAN, "fraction", _DOWN, "Share of prompt groups whose trajectories all got the same reward; with a group-relative estimator they teach nothing.", "below 0.5", "one sample per prompt"),
)
KL = (
    MetricSpec("kl/kl_divergence", _MEAN, "nats/token", _WATCH, "Mean divergence of the policy from the reference, per trainable token.", "0.001 to 0.1, rising slowly", _NO_REFERENCE),
    MetricSpec("kl/coef", _LAST, "", _WATCH, "Coefficient of the KL penalty in the reward.", absent_when="KL is not part of the reward"),
    MetricSpec("kl/reward_penalty", _MEAN, "", _WATCH, "Mean KL penalty subtracted from a trajectory's reward.", absent_when="KL is not part of the reward"),
)
LOSS = (
    MetricSpec("loss/policy_loss", _MEAN, "", _WATCH, "Clipped policy-gradient loss; its sign and size say little, its jumps do.", "near 0"),
    MetricSpec("loss/value_loss", _MEAN, "", _DOWN, "Loss of the value model.", "falls, then follows the reward's changes", _NO_CRITIC),
    MetricSpec("loss/kl_loss", _MEAN, "nats/token", _WATCH, "KL term of the loss, before its coefficient.", absent_when="use_kl_loss is off"),
    MetricSpec("loss/entropy_bonus", _MEAN, "nats/token", _WATCH, "Entropy term of the loss, times its coefficient.", absent_when="entropy_coeff is 0"),
)
POLICY = (
    MetricSpec("policy/entropy", _MEAN, "nats/token", _WATCH, "Mean entropy of the policy's next-token distribution over trainable tokens.", "falls slowly; near 0 means collapse"),
    MetricSpec("policy/clip_fraction", _MEAN, "fraction", _WATCH, "Share of trainable tokens whose ratio hit the clip range.", "below 0.2", "always 0 with a single update per batch: ratios are then 1"),
    MetricSpec("policy/clip_fraction_lower", _MEAN, "fraction", _WATCH, "Share of trainable tokens with a negative advantage that hit the dual-clip bound.", "near 0", "clip_ratio_c is not set"),
    MetricSpec("policy/approx_kl", _MEAN, "nats/token", _WATCH, "Estimated divergence of the updated policy from the one that was updated first in this step.", "below 0.02", "always 0 with a single update per batch"),
    MetricSpec("policy/ratio_mean", _MEAN, "", _WATCH, "Mean probability ratio of new to old policy.", "0.99 to 1.01"),
    MetricSpec("policy/ratio_max", _MAX, "", _WATCH, "Largest probability ratio.", "below 5"),
    MetricSpec("policy/ratio_min", _MIN, "", _WATCH, "Smallest probability ratio.", "above 0.2"),
)
ADVANTAGE_AND_VALUE = (
    MetricSpec("advantage/mean", _MEAN, "", _WATCH, "Mean advantage over trainable tokens.", "near 0"),
    MetricSpec("advantage/std", _STD, "", _WATCH, "Standard deviation (divisor n) of the advantages over trainable tokens.", "about 1 when normalised"),
    MetricSpec("advantage/min", _MIN, "", _WATCH, "Smallest advantage."),
    MetricSpec("advantage/max", _MAX, "", _WATCH, "Largest advantage."),
    MetricSpec("value/mean", _MEAN, "", _WATCH, "Mean prediction of the value model.", "follows value/return_mean", _NO_CRITIC),
    MetricSpec("value/return_mean", _MEAN, "", _UP, "Mean return that the value model learns.", absent_when=_NO_CRITIC),
    MetricSpec("value/explained_variance", _MEAN, "", _UP, "Share of the returns' variance that the value model explains; at most 1.", "rises above 0", _NO_CRITIC),
    MetricSpec("value/clip_fraction", _MEAN, "fraction", _WATCH, "Share of value predictions that hit the value clip range.", "below 0.3", "no critic, or cliprange_value is off"),
)
OPTIMIZER = (
    MetricSpec("grad_norm/actor", _MEAN, "", _WATCH, "Gradient norm of the policy before clipping, mean over the optimizer steps.", "steady, below a few times grad_clip", "critic warm-up: the policy is not updated"),
    MetricSpec("grad_norm/critic", _MEAN, "", _WATCH, "Gradient norm of the value model before clipping.", "steady", _NO_CRITIC),
    MetricSpec("lr/actor", _LAST, "", _WATCH, "Learning rate of the policy."),
    MetricSpec("lr/critic", _LAST, "", _WATCH, "Learning rate of the value model.", absent_when=_NO_CRITIC),
)
LENGTH = (
    MetricSpec("length/prompt_mean", _MEAN, "tokens", _WATCH, "Mean prompt length."),
    MetricSpec("length/response_mean", _MEAN, "tokens", _WATCH, "Mean response length.", "no sudden growth to the limit"),
    MetricSpec("length/response_min", _MIN, "tokens", _WATCH, "Shortest response."),
    MetricSpec("length/response_max", _MAX, "tokens", _WATCH, "Longest response."),
    MetricSpec("length/truncated_fraction", _MEAN, "fraction", _DOWN, "Share of responses cut by the token limit.", "below 0.1"),
)
SPEED = (
    MetricSpec("throughput/rollout_per_second", _MEAN, "1/s", _UP, "Trajectories sampled per second of the rollout phase."),
    MetricSpec("throughput/step_per_second", _MEAN, "1/s", _UP, "Training steps per second."),
    MetricSpec("throughput/tokens_per_second", _MEAN, "tokens/s", _UP, "Prompt and response tokens handled per second of the whole step."),
    MetricSpec("timing/rollout", _SUM, "s", _DOWN, "Time spent sampling responses."),
    MetricSpec("timing/reward", _SUM, "s", _DOWN, "Time spent computing rewards."),
    MetricSpec("timing/old_logprob", _SUM, "s", _DOWN, "Time for log-probs of the policy before the update."),
    MetricSpec("timing/ref_logprob", _SUM, "s", _DOWN, "Time for log-probs of the reference.", absent_when=_NO_REFERENCE),
    MetricSpec("timing/values", _SUM, "s", _DOWN, "Time for predictions of the value model.", absent_when=_NO_CRITIC),
    MetricSpec("timing/advantage", _SUM, "s", _DOWN, "Time for advantages and returns."),
    MetricSpec("timing/update_actor", _SUM, "s", _DOWN, "Time for the update of the policy."),
    MetricSpec("timing/update_critic", _SUM, "s", _DOWN, "Time for the update of the value model.", absent_when=_NO_CRITIC),
    MetricSpec("timing/validation", _SUM, "s", _DOWN, "Time for validation.", absent_when=_NO_VALIDATION),
    MetricSpec("timing/checkpoint", _SUM, "s", _DOWN, "Time for saving a checkpoint.", absent_when="not a checkpoint step"),
    MetricSpec("timing/recording", _SUM, "s", _DOWN, "Time for token facts and the metrics of the batch."),
    MetricSpec("timing/logging", _SUM, "s", _DOWN, "Time the training thread spent on handing over metrics, texts and trajectory files.", "below 1% of timing/step"),
    MetricSpec("timing/step", _SUM, "s", _DOWN, "Time of the whole step."),
    MetricSpec("timing/other", _SUM, "s", _DOWN, "Time of the step that no phase accounts for.", "below 5% of timing/step"),
    MetricSpec("timing/<name>", _SUM, "s", _DOWN, "Time of one more phase."),
)
HEALTH = (
    MetricSpec("mismatch/logprob_diff_mean", _MEAN, "nats/token", _DOWN, "Mean absolute difference of log-probs between rollout engine and trainer.", "below 0.01"),
    MetricSpec("mismatch/logprob_diff_max", _MAX, "nats/token", _DOWN, "Largest absolute difference of log-probs between rollout engine and trainer.", "below 1"),
    MetricSpec("progress/epoch", _LAST, "epochs", _UP, "Passes over the training prompts so far."),
)
SYSTEM = (
    MetricSpec("system/cpu_percent", _MEAN, "%", _WATCH, "Use of the machine's processors; 100 = all of them.", absent_when=_NO_SAMPLE),
    MetricSpec("system/process_cpu_percent", _MEAN, "%", _WATCH, "Processor use of the training process and its children; 100 = one core.", absent_when=_NO_SAMPLE),
    MetricSpec("system/memory_bytes", _MAX, "bytes", _DOWN, "Resident memory of the training process.", "steady", _NO_SAMPLE),
    MetricSpec("system/memory_used_fraction", _MAX, "fraction", _DOWN, "Used share of the memory of the machine, or of the container if that is nearer to its limit.", "below 0.9", _NO_SAMPLE),
    MetricSpec("system/disk_free_bytes", _MIN, "bytes", _UP, "Free space on the disk of the run directory.", absent_when=_NO_SAMPLE),
    MetricSpec("system/disk_used_fraction", _MAX, "fraction", _DOWN, "Used share of that disk.", "below 0.9", _NO_SAMPLE),
    MetricSpec("system/disk_read_bytes_per_second", _MEAN, "bytes/s", _WATCH, "Read from the disks of the machine.", absent_when=_NO_SAMPLE),
    MetricSpec("system/disk_write_bytes_per_second", _MEAN, "bytes/s", _WATCH, "Written to the disks of the machine.", absent_when=_NO_SAMPLE),
    MetricSpec("system/network_sent_bytes_per_second", _MEAN, "bytes/s", _WATCH, "Sent by the network cards of the machine.", absent_when=_NO_SAMPLE),
    MetricSpec("system/network_received_bytes_per_second", _MEAN, "bytes/s", _WATCH, "Received by the network cards of the machine.", absent_when=_NO_SAMPLE),
    MetricSpec("system/gpu_<index>/utilisation", _MEAN, "%", _UP, "Share of the time in which the GPU computed.", "high in the update phases", _NO_GPU),
    MetricSpec("system/gpu_<index>/memory_used", _MEAN, "bytes", _WATCH, "Used memory of the GPU, by all processes.", absent_when=_NO_GPU),
    MetricSpec("system/gpu_<index>/memory_used_max", _MAX, "bytes", _DOWN, "Most memory of the GPU used at a sample.", absent_when=_NO_GPU),
    MetricSpec("system/gpu_<index>/memory_used_fraction", _MAX, "fraction", _DOWN, "Largest used share of the GPU's memory at a sample.", "below 0.95", _NO_GPU),
    MetricSpec("system/gpu_<index>/temperature", _MAX, "°C", _DOWN, "Highest temperature of the GPU at a sample.", "below 85", _NO_GPU),
    MetricSpec("system/gpu_<index>/power", _MEAN, "W", _WATCH, "Power that the GPU draws.", absent_when=_NO_GPU),
    MetricSpec("system/torch_memory_bytes", _MAX, "bytes", _DOWN, "Memory that torch has allocated on the GPU at the end of a step.", "steady", "training is not on a GPU"),
)
VALIDATION = (
    MetricSpec("val/reward_mean", _MEAN, "", _UP, "Mean reward over all validation samples.", "rises with the training reward", _NO_VALIDATION),
    MetricSpec("val/length/response_mean", _MEAN, "tokens", _WATCH, "Mean response length in validation.", absent_when=_NO_VALIDATION),
    MetricSpec("val/truncated_fraction", _MEAN, "fraction", _DOWN, "Share of validation responses cut by the token limit.", absent_when=_NO_VALIDATION),
    MetricSpec("val/<source>/reward_mean", _MEAN, "", _UP, "Mean reward over the validation samples of one data source.", absent_when=_NO_VALIDATION),
    MetricSpec("val/<source>/<part>", _MEAN, "", _UP, "Mean value of one reward part over one data source.", absent_when=_NO_VALIDATION),
)
# fmt: on

SECTIONS: dict[str, tuple[MetricSpec, ...]] = {
    "Reward": REWARD,
    "KL": KL,
    "Losses": LOSS,
    "Policy": POLICY,
    "Advantages and values": ADVANTAGE_AND_VALUE,
    "Gradients and learning rates": OPTIMIZER,
    "Lengths": LENGTH,
    "Speed": SPEED,
    "Health": HEALTH,
    "System": SYSTEM,
    "Validation": VALIDATION,
}

DISTRIBUTIONS: dict[str, str] = {
    "reward/dist": "Histogram of the trajectory rewards of the step.",
    "reward/model_score": "Histogram of the reward model's scores; absent without a reward model.",
    "length/response": "Histogram of the response lengths in tokens.",
    "advantage/dist": "Histogram of the advantages over trainable tokens.",
    "samples/prompt_response": "Text: sampled prompts with their responses (`trainer.log_train_samples`).",
    "val/generations": "Table: validation prompts, responses and rewards (`trainer.log_val_generations`).",
}

TIME_DEPENDENT = ("timing/", "throughput/", "system/")
"""How the keys begin whose values depend on the clock and the machine; all others are the same in a resumed run."""

CATALOGUE: dict[str, MetricSpec] = {spec.key: spec for section in SECTIONS.values() for spec in section}
"""Every built-in metric by key; keys with `<...>` are patterns."""

_PLACEHOLDER = re.compile(r"<[a-z]+>")
_PATTERNS = tuple(
    (re.compile(".+".join(re.escape(part) for part in _PLACEHOLDER.split(key))), spec)
    for key, spec in CATALOGUE.items()
    if "<" in key
)


def lookup(key: str) -> MetricSpec | None:
    """Find the declaration of a built-in metric.

    Args:
        key: A metric key, such as `reward/episode_reward_mean` or `val/gsm8k/reward_mean`.

    Returns:
        Its declaration (for `reward/parts/<name>` and the like, that of the pattern), or None for a user's own key.
    """
    if key in CATALOGUE:
        return CATALOGUE[key]
    return next((spec for pattern, spec in _PATTERNS if pattern.fullmatch(key)), None)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_NOT_NAME = re.compile(r"[^A-Za-z0-9]+")
_RESERVED = frozenset({"reward_mean", "response_mean"})  # last parts of fixed keys under `val/`
_LONGEST_NAME = 64


def sanitize_name(text: str) -> str:
    """Turn a data source or part name into one that metric keys may hold.

    A name of letters, digits, `_`, `.`, `-` and inner `/`, such as `openai/gsm8k`, stays as it is. In any other one
    the other characters become `_`, and six hexadecimal digits of its hash are added, so that `math!` and `math?`
    never share a key. The same text always gives the same name.

    Args:
        text: Any text.

    Returns:
        A name of these characters, 1 to 64 of them, whose last part is neither `reward_mean` nor `response_mean`.
    """
    if _NAME.fullmatch(text) and len(text) <= _LONGEST_NAME and text.rpartition("/")[2] not in _RESERVED:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    readable = _NOT_NAME.sub("_", text).strip("_")[: _LONGEST_NAME - len(digest) - 1]
    return f"{readable or 'name'}_{digest}"


def catalogue_markdown() -> str:
    """Write the catalogue as the page `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Every metric that the trainers log, made from the catalogue in `verl/tracking/catalogue.py`",
        "(`python -m verl.tracking.catalogue > docs/metrics.md`). Names in angle brackets stand for any name",
        "(letters, digits, `_ . -` and inner `/`; others are rewritten). A metric of your own needs no declaration:",
        "it is reduced as a mean, or as you declare it (`tracking.metrics.declare(MetricSpec(...))`).",
        "",
        "*better*: ↑ higher, ↓ lower, – neither (keep it in its range).",
    ]
    for title, specs in SECTIONS.items():
        lines += ["", f"## {title}", "", "| key | meaning | reduction | unit | better | healthy | absent or 0 when |"]
        lines += ["|---|---|---|---|---|---|---|", *_rows(specs)]
    lines += ["", "## Distributions, texts and tables", "", "| tag | what |", "|---|---|"]
    lines += [f"| `{tag}` | {text} |" for tag, text in DISTRIBUTIONS.items()]
    return "\n".join(lines) + "\n"


def _rows(specs: Iterable[MetricSpec]) -> list[str]:
    arrows = {_UP: "↑", _DOWN: "↓", _WATCH: "–"}
    return [
        f"| `{spec.key}` | {spec.description} | {spec.reduction} | {spec.unit} | {arrows[spec.direction]} "
        f"| {spec.healthy} | {spec.absent_when} |"
        for spec in specs
    ]


if __name__ == "__main__":
    import sys

    sys.stdout.write(catalogue_markdown())
