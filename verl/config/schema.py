"""The configuration schema: the only home of every default.

Groups follow the run: `data`, `actor_rollout_ref.{model,actor,ref,rollout}`, `critic`, `reward`,
`algorithm`, `trainer`. Every field carries one sentence (`description`), shown by `verl config`.
Values are layered: these defaults, then the recipe of `algorithm.type` (`recipes.py`), then the
user's file, then the command line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from verl.config import checks
from verl.config.invalid import problems_in
from verl.config.keys import keys_of
from verl.config.layers import Layer, flatten, layer_of, layered, nested, source_of
from verl.config.problems import InvalidConfigError, Problem, first_of_each_key
from verl.config.recipes import recipe_problem


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StringList = Annotated[list[str], BeforeValidator(_as_list)]


class Group(BaseModel):
    """A group of settings; unknown keys are errors.

    Raises:
        ConfigError: On creation and on assignment: a key is unknown, or a value has the wrong type or range.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, validate_default=True, allow_inf_nan=False)

    # Hidden from type checkers, which know the fields better through pydantic.
    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise InvalidConfigError(_of_group(problems_in(error, type(self)), type(self))) from None

        # Pydantic's own mark of a plain constructor: groups within groups are then validated in one pass,
        # which finds all problems of all groups.
        __init__.__pydantic_base_init__ = True

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                super().__setattr__(name, value)
            except ValidationError as error:
                raise InvalidConfigError(_of_group(problems_in(error, type(self)), type(self))) from None

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_what_is_no_number_of_a_machine(cls, value: Any, info: ValidationInfo) -> Any:
        # In Python True is the number 1, and pydantic takes it as one; and whole numbers have no end.
        is_too_large = isinstance(value, int) and abs(value) > checks.LARGEST_NUMBER
        if (isinstance(value, bool) or is_too_large) and info.field_name is not None:
            key = keys_of(cls)[info.field_name]
            if key.is_number:
                in_bits = ", in 64 bits" if is_too_large and "at most" not in key.allowed else ""
                raise ValueError(f"must be {key.allowed}{in_bits}")
        return value


# One field a line reads best as a table, however long the line.
# fmt: off
class DataConfig(Group):
    train_files: StringList = Field(default=[], description="Parquet or JSONL files with the training prompts; empty = the small built-in set.")
    val_files: StringList = Field(default=[], description="Files with the validation prompts; empty = the built-in held-out set if training uses the built-in set, else none.")
    prompt_key: str = Field(default="prompt", description="Column with the prompt: a list of chat messages or a plain string.")
    train_batch_size: int = Field(default=32, ge=1, description="Prompts per step; each is sampled `rollout.n` times.")
    val_batch_size: int | None = Field(default=None, ge=1, description="Prompts per validation batch; nothing = all at once.")
    max_prompt_length: int = Field(default=512, ge=1, description="Longest prompt in tokens; longer ones are handled by `overlong_prompts`.")
    max_response_length: int = Field(default=128, ge=1, description="Most tokens sampled for a response.")
    overlong_prompts: Literal["error", "drop", "truncate_left", "truncate_right"] = Field(default="error", description="What to do with a prompt that is longer than `max_prompt_length`.")
    bad_rows: Literal["error", "skip"] = Field(default="error", description="Stop on a malformed row, or skip it with a warning that names file and row.")
    shuffle: bool = Field(default=True, description="Shuffle the training prompts anew in each epoch.")
    seed: int = Field(default=0, ge=0, le=checks.LARGEST_NUMBER, description="Seed of the order of the prompts.")
    max_val_samples: int | None = Field(default=None, ge=1, description="Use only the first so many validation prompts.")


class LoraConfig(Group):
    rank: int = Field(default=0, ge=0, description="Rank of the LoRA adapter; 0 trains all weights.")
    alpha: float = Field(default=16.0, gt=0, description="LoRA scaling numerator (the update is scaled by alpha / rank).")
    target_modules: str | list[str] = Field(default="all-linear", description="Modules that get an adapter.")


class ModelConfig(Group):
    path: str | None = Field(default=None, description="Model folder or hub name.")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Precision of the computation; trained weights and optimizer stay in float32.")
    gradient_checkpointing: bool = Field(default=False, description="Recompute activations in the backward pass: less memory, more time.")
    trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")
    attn_implementation: str | None = Field(default=None, description="Attention kernel by its transformers name; nothing = the model's own choice.")
    lora: LoraConfig = Field(default_factory=LoraConfig, description="LoRA adapter through peft.")


class OptimConfig(Group):
    lr: float = Field(default=1e-6, ge=0, description="Peak learning rate of AdamW.")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW betas.")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW decoupled weight decay.")
    lr_scheduler: Literal["constant", "linear", "cosine"] = Field(default="constant", description="Schedule after the warm-up.")
    lr_warmup_steps: int = Field(default=0, ge=0, description="Steps of linear warm-up.")
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1, description="Share of the peak rate that the schedule ends at.")

    @field_validator("betas")
    @classmethod
    def _check_betas(cls, value: tuple[float, float]) -> tuple[float, float]:
        return checks.betas(value)


class ActorConfig(Group):
    ppo_epochs: int = Field(default=1, ge=1, description="Passes over each rollout batch.")
    ppo_mini_batch_size: int | None = Field(default=None, ge=1, description="Prompts per optimizer step (times `rollout.n` trajectories); nothing = the whole batch.")
    micro_batch_size: int | None = Field(default=None, ge=1, description="Trajectories per forward/backward pass; nothing = the whole mini-batch. Changes memory, never results.")
    shuffle: bool = Field(default=True, description="Shuffle the trajectories into mini-batches.")
    clip_ratio_low: float = Field(default=0.2, ge=0, description="Lower PPO clip range (1 - low).")
    clip_ratio_high: float = Field(default=0.2, ge=0, description="Upper PPO clip range (1 + high).")
    clip_ratio_c: float | None = Field(default=None, gt=1, description="Dual-clip bound for negative advantages; nothing = off.")
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = Field(default="token-mean", description="How token losses become one number; counts are global, never per micro-batch.")
    loss_scale_length: int | None = Field(default=None, ge=1, description="Constant divisor of `seq-mean-token-sum-norm`; nothing = `data.max_response_length`.")
    entropy_coeff: float = Field(default=0.0, description="Weight of the entropy bonus.")
    use_kl_loss: bool = Field(default=False, description="Add a KL term against the reference to the loss.")
    kl_loss_coef: float = Field(default=0.001, ge=0, description="Weight of that term.")
    kl_loss_type: Literal["k1", "k2", "k3", "abs"] = Field(default="k3", description="KL estimator of that term (see docs on the gradient that each gives).")
    grad_clip: float = Field(default=1.0, gt=0, description="Largest gradient norm.")
    optim: OptimConfig = Field(default_factory=OptimConfig, description="Optimizer of the policy.")


class RefConfig(Group):
    path: str | None = Field(default=None, description="Reference model; nothing = the initial policy.")
    micro_batch_size: int | None = Field(default=None, ge=1, description="Trajectories per forward pass; nothing = as the actor.")


class ValSamplingConfig(Group):
    n: int = Field(default=1, ge=1, description="Samples per validation prompt.")
    temperature: float = Field(default=0.0, ge=0, description="0 = greedy; else at least 0.001.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling.")
    top_k: int = Field(default=0, ge=0, le=2**31 - 1, description="0 = all tokens.")

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float) -> float:
        return checks.temperature(value)


class TraceConfig(Group):
    backend: str | None = Field(default=None, description="Tracker that also gets a sample of the trajectories; not in this version: they all go to the run directory.")
    token2text: bool = Field(default=True, description="Store decoded text beside the token ids.")


class RolloutConfig(Group):
    name: str = Field(default="hf", description="Rollout engine.")
    n: int = Field(default=8, ge=1, description="Samples per prompt (the group).")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature, 0 (greedy) or at least 0.001; log-probs are taken at the same temperature.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling.")
    top_k: int = Field(default=0, ge=0, le=2**31 - 1, description="0 = all tokens.")
    stop: StringList = Field(default=[], description="Strings that end a response (kept in the response).")
    max_batch_size: int | None = Field(default=None, ge=1, description="Most sequences decoded at once; nothing = all.")
    max_turns: int = Field(default=1, ge=1, description="Most turns of the policy in one trajectory.")
    val_kwargs: ValSamplingConfig = Field(default_factory=ValSamplingConfig, description="Sampling in validation.")
    trace: TraceConfig = Field(default_factory=TraceConfig, description="Mirrors of trajectories.")

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float) -> float:
        return checks.temperature(value)


class ActorRolloutRefConfig(Group):
    model: ModelConfig = Field(default_factory=ModelConfig, description="The policy model.")
    actor: ActorConfig = Field(default_factory=ActorConfig, description="The update of the policy.")
    ref: RefConfig = Field(default_factory=RefConfig, description="The frozen reference.")
    rollout: RolloutConfig = Field(default_factory=RolloutConfig, description="Sampling.")


class CriticConfig(Group):
    path: str | None = Field(default=None, description="Model that the critic starts from; nothing = the policy model.")
    ppo_epochs: int | None = Field(default=None, ge=1, description="Passes over each rollout batch; nothing = as the actor.")
    ppo_mini_batch_size: int | None = Field(default=None, ge=1, description="Prompts per optimizer step; nothing = as the actor.")
    micro_batch_size: int | None = Field(default=None, ge=1, description="Trajectories per pass; nothing = as the actor.")
    cliprange_value: float | None = Field(default=0.5, gt=0, description="Value clip range around the old value; nothing = off.")
    grad_clip: float = Field(default=1.0, gt=0, description="Largest gradient norm.")
    warmup_steps: int = Field(default=0, ge=0, description="First steps in which only the critic learns.")
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig(lr=1e-5), description="Optimizer of the critic.")


class RewardFunctionConfig(Group):
    path: str = Field(description="`file.py:function` or `package.module:function` with the signature of `compute_score`.")
    name: str | None = Field(default=None, description="Name of this part in the metrics; nothing = the function's name.")
    weight: float = Field(default=1.0, description="Weight in the sum.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments for the function.")


class RewardModelConfig(Group):
    path: str | None = Field(default=None, description="Sequence-classification folder or hub name with one label.")
    weight: float = Field(default=1.0, description="Weight of its score in the sum.")
    micro_batch_size: int = Field(default=16, ge=1, description="Texts scored at once.")
    max_length: int = Field(default=2048, ge=1, description="Longest text in tokens; the left side is cut.")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Precision of its computation.")
    trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")


def _as_functions(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    return [{"path": item} if isinstance(item, str) else item for item in values]


class RewardConfig(Group):
    functions: Annotated[list[RewardFunctionConfig], BeforeValidator(_as_functions)] = Field(default=[], description="Reward functions; their weighted sum is the reward.")
    model: RewardModelConfig = Field(default_factory=RewardModelConfig, description="Reward model, added to the functions.")
    num_workers: int = Field(default=1, ge=1, description="Threads that call the reward functions.")


class KlControlConfig(Group):
    type: Literal["fixed", "adaptive"] = Field(default="fixed", description="Controller of the coefficient.")
    kl_coef: float = Field(default=0.001, ge=0, description="(Initial) coefficient.")
    target_kl: float = Field(default=0.1, gt=0, description="Target of the adaptive controller, in nats per token (mean over tokens).")
    horizon: float = Field(default=10000, gt=0, description="Trajectories over which the adaptive controller moves the coefficient.")


class AlgorithmConfig(Group):
    type: str = Field(default="ppo", description="Recipe: sets the estimator, loss and KL defaults of its paper.")
    adv_estimator: Literal["gae", "grpo"] = Field(default="gae", description="Advantage estimator.")
    gamma: float = Field(default=1.0, ge=0, le=1, description="Discount per trainable token.")
    lam: float = Field(default=1.0, ge=0, le=1, description="GAE lambda.")
    norm_adv_by_std: bool = Field(default=True, description="GRPO: divide by the standard deviation of the group.")
    whiten_advantages: bool = Field(default=True, description="GAE: normalise advantages over the trainable tokens of the global batch.")
    use_kl_in_reward: bool = Field(default=False, description="Subtract the KL to the reference from the token rewards.")
    kl_penalty: Literal["k1", "k2", "k3", "abs"] = Field(default="k1", description="Estimator of that KL.")
    kl_ctrl: KlControlConfig = Field(default_factory=KlControlConfig, description="Coefficient of that KL.")


class HealthRuleConfig(Group):
    enabled: bool = Field(default=True, description="Watch for this.")


class KlBlowUpConfig(HealthRuleConfig):
    limit: float = Field(default=1.0, gt=0, description="Largest healthy `kl/kl_divergence`, in nats per token.")
    update_limit: float = Field(default=0.2, gt=0, description="Largest healthy `policy/approx_kl`, in nats per token.")
    factor: float = Field(default=10.0, gt=1, description="Largest healthy `kl/kl_divergence` as a multiple of its recent median, once it is above 0.2.")
    patience: int = Field(default=2, ge=1, description="Records in a row beyond a limit before the alert.")


class EntropyCollapseConfig(HealthRuleConfig):
    fraction: float = Field(default=0.05, gt=0, lt=1, description="Smallest healthy `policy/entropy` as a fraction of its early median.")
    minimum: float = Field(default=0.005, ge=0, description="Smallest healthy `policy/entropy`, in nats per token.")
    patience: int = Field(default=3, ge=1, description="Records in a row below a limit before the alert.")


class GradientExplosionConfig(HealthRuleConfig):
    factor: float = Field(default=10.0, gt=1, description="Largest healthy gradient norm as a multiple of its recent median.")
    sudden_factor: float = Field(default=100.0, gt=1, description="Multiple of the recent median that is an alert at once, without patience.")
    minimum: float = Field(default=1.0, ge=0, description="Gradient norms up to this are healthy in any case; a smaller recent median counts as this.")
    patience: int = Field(default=3, ge=1, description="Records in a row above `factor` before the alert.")


class NotFiniteConfig(HealthRuleConfig):
    keys: StringList = Field(default=["loss", "loss/*", "*/loss", "*_loss", "*grad_norm*", "kl/*", "policy/*", "advantage/*", "reward/*", "value/*mean"], description="Metrics that must not be NaN or infinite: names, `*` stands for any characters.")


class RewardFlatConfig(HealthRuleConfig):
    window: int = Field(default=30, ge=2, description="Records within which the mean reward must move.")
    tolerance: float = Field(default=1e-3, ge=0, description="Movement that counts as none, as a fraction of the spread (between the quartiles) of the first `window` records.")
    no_progress_after: int | None = Field(default=200, ge=40, description="Records after which the mean reward of the last quarter of so many must be above that of the first quarter; nothing = it need not.")


class GroupsEqualConfig(HealthRuleConfig):
    limit: float = Field(default=0.95, gt=0, le=1, description="Smallest unhealthy `reward/group_zero_variance_fraction`.")
    patience: int = Field(default=10, ge=1, description="Records in a row at the limit or above before the alert.")


class LengthDriftConfig(HealthRuleConfig):
    growth: float = Field(default=4.0, gt=1, description="Largest healthy `length/response_mean` as a multiple of its early median.")
    shrinkage: float = Field(default=0.25, gt=0, lt=1, description="Smallest healthy `length/response_mean` as a fraction of its early median.")
    patience: int = Field(default=3, ge=1, description="Records in a row beyond a limit before the alert.")


class TruncationConfig(HealthRuleConfig):
    limit: float = Field(default=0.5, gt=0, le=1, description="Largest healthy `length/truncated_fraction`.")
    patience: int = Field(default=5, ge=1, description="Records in a row above the limit before the alert.")


class ClippingConfig(HealthRuleConfig):
    limit: float = Field(default=0.4, gt=0, le=1, description="Largest healthy `policy/clip_fraction`.")
    patience: int = Field(default=3, ge=1, description="Records in a row above the limit before the alert.")


class StalledStepConfig(HealthRuleConfig):
    factor: float = Field(default=10.0, gt=1, description="Longest healthy step as a multiple of the median step.")
    minimum_seconds: float = Field(default=600.0, gt=0, description="Steps up to this long are healthy in any case.")


class HealthConfig(Group):
    enabled: bool = Field(default=True, description="Look at the metrics as they are logged, and alert people to what is unhealthy.")
    stop_on: StringList = Field(default=[], description="Rules whose alert ends the run after the step, with a checkpoint and the status failed.")
    history: int = Field(default=10, ge=3, description="Records that make an early or recent median; before, rules that need one are silent.")
    repeat_after: int = Field(default=200, ge=1, description="Steps after which an alert that still holds is given again.")
    recover_after: int = Field(default=5, ge=1, description="Healthy records in a row after which a rule may alert again; twice as many after each alert.")
    kl_blow_up: KlBlowUpConfig = Field(default_factory=KlBlowUpConfig, description="The policy runs away from the reference, or far within one step.")
    entropy_collapse: EntropyCollapseConfig = Field(default_factory=EntropyCollapseConfig, description="The policy has stopped to explore.")
    gradient_explosion: GradientExplosionConfig = Field(default_factory=GradientExplosionConfig, description="Gradient norms far above what they were.")
    not_finite: NotFiniteConfig = Field(default_factory=NotFiniteConfig, description="NaN or infinite metrics.")
    reward_flat: RewardFlatConfig = Field(default_factory=RewardFlatConfig, description="The reward does not move, or never rose.")
    groups_equal: GroupsEqualConfig = Field(default_factory=GroupsEqualConfig, description="Nearly all groups have equal rewards, so nothing is learned from them.")
    length_drift: LengthDriftConfig = Field(default_factory=LengthDriftConfig, description="Responses grow or shrink far from their early length.")
    truncation: TruncationConfig = Field(default_factory=TruncationConfig, description="Many responses are cut by the token limit.")
    clipping: ClippingConfig = Field(default_factory=ClippingConfig, description="Many tokens hit the clip range.")
    stalled_step: StalledStepConfig = Field(default_factory=StalledStepConfig, description="No step ends for far longer than usual.")

    @classmethod
    def rule_names(cls) -> tuple[str, ...]:
        """The rules, each a group of its own."""
        return tuple(
            name
            for name, field in cls.model_fields.items()
            if isinstance(field.annotation, type) and issubclass(field.annotation, HealthRuleConfig)
        )

    def rules_off(self) -> tuple[str, ...]:
        """The rules that are not watched."""
        return tuple(name for name in self.rule_names() if not (self.enabled and getattr(self, name).enabled))

    @field_validator("stop_on")
    @classmethod
    def _check_stop_on(cls, value: list[str]) -> list[str]:
        return checks.health_stop_on(value, cls.rule_names())


class TrainerConfig(Group):
    project_name: str = Field(default="verl", min_length=1, description="Project in the trackers.")
    experiment_name: str | None = Field(default=None, description="Name of the run; nothing = made of algorithm, model and date.")
    logger: StringList = Field(default=["console", "tensorboard"], description="Trackers by name.")
    log_dir: str | None = Field(default=None, description="Run directory; nothing = VERL_LOG_DIR, else logs/<YYYYmmdd_HHMMSS>/. `{rank}` gives each rank its own.")
    total_steps: int | None = Field(default=None, ge=1, description="Steps to train; wins over `total_epochs`.")
    total_epochs: int | None = Field(default=None, ge=1, description="Passes over the training prompts; 1 if neither is given.")
    log_step_interval: int = Field(default=1, ge=1, description="Steps between metric records.")
    log_val_generations: int | float = Field(default=0, ge=0, description="Validation generations shown in the trackers: a count, or a share such as 0.05.")
    log_train_samples: int = Field(default=1, ge=0, description="Training samples written as text at each logged step.")
    log_embeddings: bool = Field(default=False, description="Log the embedding layer for the TensorBoard projector at start and end.")
    async_log: bool = Field(default=True, description="Feed trackers from a relay process; false = in the training process, for debugging.")
    wandb_proxy: str | None = Field(default=None, description="Proxy for W&B alone.")
    save_freq: int | None = Field(default=None, ge=1, description="Steps between checkpoints; one is always saved at the end.")
    keep_checkpoints: int | None = Field(default=None, ge=1, description="Newest checkpoints kept (the best one stays too); nothing = all.")
    best_metric: str | None = Field(default=None, description="Metric whose best checkpoint is kept; nothing = val/reward_mean.")
    test_freq: int | None = Field(default=None, ge=1, description="Steps between validations; one is always done at the end.")
    val_before_train: bool = Field(default=True, description="Validate the untrained policy first.")
    resume_from_checkpoint: str | None = Field(default=None, description="Checkpoint folder, or `auto` for the newest one in the run directory.")
    seed: int = Field(default=0, ge=0, le=checks.LARGEST_NUMBER, description="Seed of sampling and of everything else that is random.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where to compute.")
    num_threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads of torch; nothing = all cores.")
    hook_errors: Literal["stop", "warn"] = Field(default="stop", description="What a hook that raises does to the run.")
    system_metrics_interval: float | None = Field(default=10.0, ge=0, description="Seconds between samples of the machine (`system/...`: processor, memory, disk, network, GPUs); 0 or nothing = none.")
    health: HealthConfig = Field(default_factory=HealthConfig, description="Alerts to what is unhealthy, see docs/health.md.")

    @field_validator("logger")
    @classmethod
    def _check_logger(cls, value: list[str]) -> list[str]:
        return checks.logger(value)

    @field_validator("log_dir")
    @classmethod
    def _check_log_dir(cls, value: str | None) -> str | None:
        return checks.log_dir(value)

    @field_validator("log_val_generations")
    @classmethod
    def _check_log_val_generations(cls, value: int | float) -> int | float:
        return checks.log_val_generations(value)

    @field_validator("system_metrics_interval")
    @classmethod
    def _check_system_metrics_interval(cls, value: float | None) -> float | None:
        return checks.system_metrics_interval(value)

    @field_validator("resume_from_checkpoint", mode="before")
    @classmethod
    def _check_resume(cls, value: Any) -> Any:
        return checks.resume_from_checkpoint(value)

# fmt: on


class PPOConfig(Group):
    """Configuration of `PPOTrainer` (PPO and the GRPO family).

    Takes the groups as dictionaries or objects, dotted keys, and the other spellings of `aliases.py`:

        PPOConfig(log_dir="./logs/a", total_steps=100, actor_model_name_or_path="models/tiny",
                  algorithm={"type": "grpo"}, data={"train_files": "data/train.parquet"})

    What is not given comes from the recipe of `algorithm.type`, then from the defaults of this schema.

    Raises:
        ConfigError: A key is unknown, a value has the wrong type, is out of range, or contradicts another;
            the message lists everything that is wrong.
    """

    data: DataConfig = Field(default_factory=DataConfig, description="Prompts.")
    actor_rollout_ref: ActorRolloutRefConfig = Field(
        default_factory=ActorRolloutRefConfig, description="Policy, sampling and reference."
    )
    critic: CriticConfig = Field(default_factory=CriticConfig, description="Value model (only for adv_estimator=gae).")
    reward: RewardConfig = Field(default_factory=RewardConfig, description="Reward functions and reward model.")
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig, description="Advantages and KL.")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="Run, logging, checkpoints.")

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            layer = layer_of(flatten(values, PPOConfig), "", PPOConfig)
            problems = list(layer.problems)
            settings = layered(_recipe(layer, problems), [layer], PPOConfig)
            try:
                BaseModel.__init__(self, **nested(settings))
            except ValidationError as error:
                problems += problems_in(error, PPOConfig)
            if not problems:
                problems = self._contradictions()
            if problems:
                raise InvalidConfigError(_told(problems, layer))

        def __setattr__(self, name: str, value: Any) -> None:
            before = dict(self.__dict__)
            super().__setattr__(name, value)
            problems = self._contradictions()
            if problems:
                self.__dict__.update(before)
                raise InvalidConfigError(problems)

    else:

        def __init__(self, **values: Any) -> None: ...

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """As `PPOConfig(**obj)`, so recipes count and errors are `ConfigError`."""
        return obj if isinstance(obj, cls) else cls(**obj)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """As `PPOConfig(**json.loads(json_data))`."""
        return cls(**json.loads(json_data))

    def check(self) -> None:
        """Looks for contradictions between settings once more, after settings were assigned one by one.

        Raises:
            ConfigError: Settings contradict each other.
        """
        problems = self._contradictions()
        if problems:
            raise InvalidConfigError(problems)

    def _contradictions(self) -> list[Problem]:
        actor, rollout = self.actor_rollout_ref.actor, self.actor_rollout_ref.rollout
        batch_size = self.data.train_batch_size
        return [
            *filter(None, [recipe_problem(self.algorithm.type)]),
            *checks.mini_batch("actor_rollout_ref.actor.ppo_mini_batch_size", actor.ppo_mini_batch_size, batch_size),
            *checks.mini_batch("critic.ppo_mini_batch_size", self.critic.ppo_mini_batch_size, batch_size),
            *checks.group_size(self.algorithm.adv_estimator, rollout.n),
            *checks.sampling("actor_rollout_ref.rollout", rollout.temperature, rollout.n),
            *checks.sampling(
                "actor_rollout_ref.rollout.val_kwargs", rollout.val_kwargs.temperature, rollout.val_kwargs.n
            ),
            *checks.engine(rollout.name, rollout.max_turns),
            *checks.trace_backend(rollout.trace.backend),
            *checks.validation(self.trainer.test_freq, self.data.train_files, self.data.val_files),
            *checks.health_rules_off(self.trainer.health.stop_on, self.trainer.health.rules_off()),
            *checks.reward_names(
                [function.name or function.path for function in self.reward.functions], self.reward.model.path
            ),
        ]


def _of_group(problems: list[Problem], group: type[Group]) -> list[Problem]:
    """Problems of a group that does not know where in a configuration it is: they name its class."""
    return [Problem(problem.key, f"{group.__name__}: {problem.sentence}") for problem in problems]


def _recipe(layer: Layer, problems: list[Problem]) -> Any:
    """The recipe that `layer` names; one that is unknown becomes a problem."""
    if "algorithm.type" not in layer.values:
        return keys_of(PPOConfig)["algorithm.type"].default
    name = layer.values["algorithm.type"]
    problem = recipe_problem(name)
    if problem is not None:
        problems.append(problem)
    return name


def _told(problems: list[Problem], layer: Layer) -> list[Problem]:
    """One problem per key, each with the spelling under which its setting was given."""
    return [
        Problem(problem.key, problem.sentence + source_of(problem.key, [layer]))
        for problem in first_of_each_key(problems)
    ]
