"""Layers, interpolation and overrides: from a file and a command line to a configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl.config import PPOConfig, load_config
from verl.errors import ConfigError

WriteYaml = Callable[[str], Path]


@pytest.fixture
def write_yaml(tmp_path: Path) -> WriteYaml:
    def write(text: str) -> Path:
        file = tmp_path / "experiment.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def message_of(file: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(file, overrides)
    assert raised.value.exit_code == 2
    return str(raised.value)


# Layers.


def test_nothing_given_is_the_schema_under_the_default_recipe() -> None:
    assert load_config(None, []) == PPOConfig()


def test_each_layer_wins_over_the_one_below(write_yaml: WriteYaml) -> None:
    # kl_loss_coef: schema 0.001, recipe 0.04; lr: schema 1e-6; n: schema 8.
    file = write_yaml(
        """
        algorithm: {type: grpo}
        actor_rollout_ref:
          actor: {optim: {lr: 2e-6}}
          rollout: {n: 4}
        """
    )
    config = load_config(file, ["actor_rollout_ref.rollout.n=2"])
    actor = config.actor_rollout_ref.actor
    assert (actor.kl_loss_coef, actor.optim.lr, config.actor_rollout_ref.rollout.n) == (0.04, 2e-6, 2)
    assert actor.grad_clip == 1.0


def test_a_file_wins_over_the_recipe_and_the_command_line_over_both(write_yaml: WriteYaml) -> None:
    file = write_yaml("algorithm: {type: grpo}\nactor_rollout_ref: {actor: {kl_loss_coef: 0.5}}\n")
    assert load_config(file).actor_rollout_ref.actor.kl_loss_coef == 0.5
    overridden = load_config(file, ["actor_rollout_ref.actor.kl_loss_coef=0.25"])
    assert overridden.actor_rollout_ref.actor.kl_loss_coef == 0.25


def test_the_recipe_follows_the_type_of_the_last_layer(write_yaml: WriteYaml) -> None:
    config = load_config(write_yaml("algorithm: {type: grpo}"), ["algorithm.type=ppo"])
    assert config.algorithm.adv_estimator == "gae"
    assert config.algorithm.lam == 0.95
    assert not config.actor_rollout_ref.actor.use_kl_loss


def test_a_group_given_in_part_keeps_its_other_defaults(write_yaml: WriteYaml) -> None:
    # The critic's learning rate differs from that of the class it shares with the actor.
    config = load_config(write_yaml("critic: {optim: {weight_decay: 0.5}}"))
    assert (config.critic.optim.lr, config.critic.optim.weight_decay) == (1e-5, 0.5)


def test_a_group_with_all_keys_commented_out_is_empty(write_yaml: WriteYaml) -> None:
    assert load_config(write_yaml("trainer:\n  # seed: 3\ndata:\n")) == PPOConfig()


def test_an_empty_file_changes_nothing(write_yaml: WriteYaml) -> None:
    assert load_config(write_yaml("# nothing\n")) == PPOConfig()


def test_dotted_keys_work_in_files(write_yaml: WriteYaml) -> None:
    assert load_config(write_yaml("trainer.seed: 3\n")).trainer.seed == 3


# Values of overrides.


@pytest.mark.parametrize(
    ("override", "group", "name", "expected"),
    [
        ("data.train_files=data/a.parquet", "data", "train_files", ["data/a.parquet"]),
        ('data.train_files="data/a.parquet"', "data", "train_files", ["data/a.parquet"]),
        ("data.train_files=[a.parquet,b.parquet]", "data", "train_files", ["a.parquet", "b.parquet"]),
        ("trainer.logger=['console']", "trainer", "logger", ["console"]),
        ("trainer.logger=['console', 'tensorboard']", "trainer", "logger", ["console", "tensorboard"]),
        ("trainer.logger=[]", "trainer", "logger", []),
        ("critic.cliprange_value=null", "critic", "cliprange_value", None),
        ("trainer.total_steps=null", "trainer", "total_steps", None),
        ("trainer.total_steps=", "trainer", "total_steps", None),
        ("trainer.async_log=False", "trainer", "async_log", False),
        ("trainer.log_embeddings=True", "trainer", "log_embeddings", True),
        ("trainer.log_embeddings=true", "trainer", "log_embeddings", True),
        ("trainer.log_val_generations=0.05", "trainer", "log_val_generations", 0.05),
        ("trainer.log_val_generations=20", "trainer", "log_val_generations", 20),
        ("trainer.log_dir=./logs/rank_{rank}", "trainer", "log_dir", "./logs/rank_{rank}"),
        ("trainer.experiment_name=a=b", "trainer", "experiment_name", "a=b"),
        ("trainer.experiment_name=42", "trainer", "experiment_name", "42"),
        ("trainer.experiment_name=007", "trainer", "experiment_name", "007"),
        ("trainer.experiment_name=on", "trainer", "experiment_name", "on"),
        ("trainer.experiment_name=null", "trainer", "experiment_name", None),
        ("experiment_name=1e3", "trainer", "experiment_name", "1e3"),
    ],
)
def test_override_values_are_yaml_and_text_keys_take_what_was_typed(
    override: str, group: str, name: str, expected: object
) -> None:
    value = getattr(getattr(load_config(None, [override]), group), name)
    assert value == expected
    assert type(value) is type(expected)


def test_numbers_may_be_in_scientific_notation() -> None:
    assert load_config(None, ["critic.optim.lr=1e-4"]).critic.optim.lr == 1e-4


def test_the_last_of_equal_overrides_counts() -> None:
    assert load_config(None, ["trainer.seed=1", "trainer.seed=2"]).trainer.seed == 2


def test_a_mapping_override_sets_single_keys() -> None:
    config = load_config(None, ["critic.optim={weight_decay: 0.5}", "critic.optim.min_lr_ratio=0.1"])
    assert (config.critic.optim.lr, config.critic.optim.weight_decay, config.critic.optim.min_lr_ratio) == (
        1e-5,
        0.5,
        0.1,
    )


def test_reward_functions_are_given_as_one_list() -> None:
    config = load_config(None, ["reward.functions=[{path: rewards.py:length, weight: 0.1}, a.b:score]"])
    assert [(function.path, function.weight) for function in config.reward.functions] == [
        ("rewards.py:length", 0.1),
        ("a.b:score", 1.0),
    ]


# Interpolation.


def test_interpolation_sees_every_layer(write_yaml: WriteYaml) -> None:
    file = write_yaml(
        """
        trainer:
          experiment_name: ${algorithm.type}_${data.train_batch_size}_${trainer.seed}_${algorithm.adv_estimator}
        algorithm: {type: grpo}
        """
    )
    config = load_config(file, ["trainer.seed=7"])
    # algorithm.type from the file, the batch size from the schema, the seed typed, the estimator from the recipe.
    assert config.trainer.experiment_name == "grpo_32_7_grpo"


def test_interpolation_keeps_the_type_of_its_target(write_yaml: WriteYaml) -> None:
    file = write_yaml("data: {train_batch_size: 6, val_batch_size: '${data.train_batch_size}'}")
    assert load_config(file).data.val_batch_size == 6


def test_interpolation_works_in_overrides_and_in_lists() -> None:
    config = load_config(
        None, ["data.train_files=['${trainer.project_name}.parquet']", "log_dir=runs/${trainer.project_name}"]
    )
    assert config.data.train_files == ["verl.parquet"]
    assert config.trainer.log_dir == "runs/verl"


def test_the_recipe_may_be_interpolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGORITHM_FOR_TEST", "grpo")
    config = load_config(None, ["algorithm.type=${oc.env:ALGORITHM_FOR_TEST}"])
    assert (config.algorithm.type, config.algorithm.adv_estimator) == ("grpo", "grpo")


def test_an_escaped_interpolation_is_text(write_yaml: WriteYaml) -> None:
    assert load_config(write_yaml(r"data: {prompt_key: '\${x}'}")).data.prompt_key == "${x}"


def test_an_interpolation_without_target_names_key_and_file(write_yaml: WriteYaml) -> None:
    file = write_yaml("trainer: {log_dir: 'runs/${trainer.nmae}'}")
    message = message_of(file)
    assert "`trainer.log_dir` cannot be resolved" in message
    assert "trainer.nmae" in message
    assert str(file) in message


def test_an_interpolation_circle_is_an_error() -> None:
    message = message_of(None, "trainer.log_dir=${trainer.project_name}", "trainer.project_name=${trainer.log_dir}")
    assert "cannot be resolved" in message


def test_a_mandatory_value_must_be_given(write_yaml: WriteYaml) -> None:
    file = write_yaml("actor_rollout_ref: {model: {path: '???'}}")
    assert "`actor_rollout_ref.model.path` must be given: its value is `???`" in message_of(file)
    assert load_config(file, ["actor_rollout_ref.model.path=models/tiny"]).actor_rollout_ref.model.path == "models/tiny"


# Files that cannot be read.


def test_a_missing_file_is_named_with_those_beside_it(write_yaml: WriteYaml) -> None:
    existing = write_yaml("{}")
    missing = existing.with_name("experimnt.yaml")
    message = message_of(missing)
    assert f"the configuration file {missing} does not exist" in message
    assert "experiment.yaml" in message


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "nor does its folder" in message_of(tmp_path / "confg" / "a.yaml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "cannot be read" in message_of(tmp_path)


def test_a_syntax_error_names_file_line_and_column(write_yaml: WriteYaml) -> None:
    file = write_yaml("trainer:\n  seed: 1\n  logger: [console\ndata: {}\n")
    # The list is still open where `data:` begins with a colon.
    message = message_of(file)
    assert f"{file}, line 4, column" in message
    assert "not valid YAML" in message


def test_a_key_twice_in_a_file_names_the_line(write_yaml: WriteYaml) -> None:
    message = message_of(write_yaml("trainer:\n  seed: 1\n  seed: 2\n"))
    assert "line 3, column 3" in message
    assert "seed" in message


@pytest.mark.parametrize("text", ["- trainer\n- data\n", "trainer\n", "3\n"])
def test_a_file_must_hold_groups(write_yaml: WriteYaml, text: str) -> None:
    message = message_of(write_yaml(text))
    assert "must hold groups of keys (data, actor_rollout_ref, critic, reward, algorithm, trainer)" in message


def test_a_file_must_be_utf8(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("trainer: {project_name: caf\u00e9}".encode("latin-1"))
    assert "not a text file in UTF-8" in message_of(file)


def test_a_chinese_file_is_read(write_yaml: WriteYaml) -> None:
    assert load_config(write_yaml("trainer: {project_name: 股票分析}  # 项目名称")).trainer.project_name == "股票分析"


# Overrides that cannot be read.


def test_an_override_without_equals_sign_is_named() -> None:
    message = message_of(None, "trainer.seed")
    assert "`trainer.seed` is not a setting: write key=value" in message


def test_dashes_before_a_setting_are_named() -> None:
    assert "settings are key=value, without dashes" in message_of(None, "--trainer.seed=1")


def test_a_value_that_is_no_yaml_is_named() -> None:
    message = message_of(None, "trainer.logger=[console")
    assert "the value of `trainer.logger` is not valid YAML" in message


# Keys.


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("trainer.totl_steps", "did you mean `trainer.total_steps`?"),
        ("actor_rollout_ref.rolout.n", "did you mean `actor_rollout_ref.rollout.n`?"),
        ("trainer.max_response_length", "did you mean `data.max_response_length`?"),
        ("seed", "did you mean one of `data.seed`, `trainer.seed`?"),
        ("actor.optim.lr", "did you mean one of `actor_rollout_ref.actor.optim.lr`, `critic.optim.lr`?"),
        ("log_dri", "did you mean `log_dir` (= `trainer.log_dir`)?"),
        ("algorithm.frobnicate", "`algorithm` has the keys kl_ctrl, type, adv_estimator, gamma, lam"),
        ("actor_rollout_ref.rollout.trace.frobnicate", "`actor_rollout_ref.rollout.trace` has the keys backend"),
        ("frobnicate", "the groups are data, actor_rollout_ref, critic, reward, algorithm, trainer"),
    ],
)
def test_an_unknown_key_names_what_was_meant(key: str, suggestion: str) -> None:
    message = message_of(None, f"{key}=1")
    assert f"`{key}` is not a key" in message
    assert "on the command line" in message
    assert suggestion in message


def test_an_unknown_key_in_a_file_names_the_file(write_yaml: WriteYaml) -> None:
    file = write_yaml("trainer: {sede: 1}")
    assert f"`trainer.sede` is not a key (in {file}); did you mean `trainer.seed`?" in message_of(file)


def test_a_group_is_no_value() -> None:
    assert "`critic.optim` is a group of keys, such as `critic.optim.lr`; given: 3" in message_of(
        None, "critic.optim=3"
    )
    assert "`trainer` is a group of keys" in message_of(None, "trainer=null")


def test_items_of_a_list_cannot_be_set_alone() -> None:
    message = message_of(None, "reward.functions[0].weight=2")
    assert "items of a list cannot be set one by one" in message
    assert "`reward.functions`" in message


def test_keys_of_list_items_are_checked() -> None:
    message = message_of(None, "reward.functions=[{pth: a.py:f}]")
    assert "`reward.functions[0].path` must be given" in message
    assert "`reward.functions[0].pth` is not a key; did you mean `reward.functions[0].path`?" in message


# Values.


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.total_steps=0", "`trainer.total_steps` must be a whole number of at least 1, or null; given: 0"),
        ("trainer.total_steps=ten", "`trainer.total_steps` must be a whole number of at least 1, or null; given: ten"),
        ("trainer.total_steps=1.5", "`trainer.total_steps` must be a whole number of at least 1, or null; given: 1.5"),
        (
            "trainer.seed=true",
            "`trainer.seed` must be a whole number of at least 0 and at most 9223372036854775807; given: true",
        ),
        ("trainer.async_log=3", "`trainer.async_log` must be true or false; given: 3"),
        ("trainer.device=tpu", "`trainer.device` must be one of `auto`, `cpu`, `cuda`; given: tpu"),
        ("algorithm.gamma=1.5", "`algorithm.gamma` must be a number of at least 0 and at most 1; given: 1.5"),
        ("critic.grad_clip=0", "`critic.grad_clip` must be a number above 0; given: 0"),
        ("critic.optim.lr=.inf", "`critic.optim.lr` must be a number of at least 0; given: .inf"),
        ("actor_rollout_ref.actor.entropy_coeff=.nan", "must be a number; given: .nan"),
        ("critic.optim.betas=[0.9]", "`critic.optim.betas` must be a list of 2 numbers; given: [0.9]"),
        ("critic.optim.betas=[0.9,1.0]", "`critic.optim.betas` must be 2 numbers of at least 0 and below 1"),
        ("trainer.logger={a: 1}", "`trainer.logger` must be text or a list of texts; given: {a: 1}"),
        ("trainer.project_name=null", "`trainer.project_name` must be non-empty text; given: null"),
        ("trainer.experiment_name=[a]", "`trainer.experiment_name` must be text, or null; given: [a]"),
        ("reward.functions=3", "`reward.functions` must be text, a list of texts, or a list of groups"),
    ],
)
def test_a_wrong_value_says_what_is_allowed_and_what_was_given(override: str, sentence: str) -> None:
    message = message_of(None, override)
    assert sentence in message
    assert "\n" not in message


def test_a_number_for_text_in_a_file_says_how_to_write_it(write_yaml: WriteYaml) -> None:
    message = message_of(write_yaml("trainer: {experiment_name: 42}"))
    assert "must be text, or null; given: 42 (quote it to make it text)" in message


def test_all_problems_are_told_at_once(write_yaml: WriteYaml) -> None:
    file = write_yaml("trainer: {sede: 1, total_steps: 0}\nalgorithm: {type: gropo}\n")
    message = message_of(file, "nonsense", "critic.optim.lr=-1", "data.truncation=middle", "log_dir=${a.b}")
    lines = message.splitlines()
    assert lines[0] == "7 problems in the configuration:"
    assert len(lines) == 8
    for part in (
        "`nonsense` is not a setting",
        "`trainer.sede` is not a key",
        f"`trainer.total_steps` must be a whole number of at least 1, or null; given: 0 (in {file})",
        f"`algorithm.type` must be a recipe, one of `ppo`, `grpo` (did you mean `grpo`?); given: gropo (in {file})",
        "`critic.optim.lr` must be a number of at least 0; given: -1 (on the command line)",
        "`data.truncation` must be one of `left`, `right`, `error`; given: middle (on the command line)",
        "`trainer.log_dir` cannot be resolved",
    ):
        assert sum(part in line for line in lines) == 1, part


def test_secrets_are_never_shown() -> None:
    message = message_of(
        None,
        "trainer.total_steps=https://user:hunter2hunter2@proxy.example",
        "reward.num_workers={api_key: abcdef1234567890}",
        "reward.functions=[{path: a.py:f, weight: x, kwargs: {api_key: abcdef1234567890}}]",
    )
    assert "hunter2" not in message
    assert "abcdef1234567890" not in message
    assert "***" in message


# What no YAML, no text and no number is


def test_an_interpolation_that_is_cut_short_is_told() -> None:
    message = message_of(None, "trainer.project_name=${")
    assert message.startswith("the value of `trainer.project_name` holds a `${` that refers to nothing")
    assert "Write ${other.key} or ${oc.env:NAME,default}" in message


def test_a_number_of_thousands_of_digits_is_told(write_yaml: WriteYaml) -> None:
    digits = "1" + "0" * 5000
    assert "the value of `trainer.seed` is not valid YAML (Exceeds the limit" in message_of(
        None, f"trainer.seed={digits}"
    )
    assert "Exceeds the limit" in message_of(write_yaml(f"trainer: {{seed: {digits}}}\n"))
    message = message_of(None, "data.max_val_samples=0x" + "f" * 5000)  # YAML reads hexadecimal of any length
    assert message == (
        "`data.max_val_samples` must be a whole number of at least 1, or null, in 64 bits;"
        " given: a value of type int too large to be shown (on the command line)"
    )


@pytest.mark.parametrize("override", ["trainer.project_name=a\udcff", "trainer.\udcff=1", "\udcff"])
def test_an_override_that_is_not_utf8_is_told(override: str) -> None:
    assert message_of(None, override).endswith("is not text in UTF-8")


@pytest.mark.parametrize("text", ["[" * 5000, "trainer: {seed: " + "[ " * 5000 + "]" * 5000 + "}"])
def test_yaml_that_is_nested_too_deeply_is_told(text: str, write_yaml: WriteYaml) -> None:
    file = write_yaml(text)
    assert message_of(file) == f"{file}: brackets or groups are nested too deeply to be read as YAML"
