import re
from pathlib import Path

from verl.config.schema import ActorRolloutRefConfig, CriticConfig, ModelConfig, RewardModelConfig

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    exec(compile(code, "docs/models.md", "exec"), {"__name__": "docs"})


def test_the_keys_of_the_page_exist():
    for name in re.findall(r"actor_rollout_ref\.(\w+)", PAGE):
        assert name in ActorRolloutRefConfig.model_fields
    for name in re.findall(r"actor_rollout_ref\.model\.(\w+)", PAGE):
        assert name in ModelConfig.model_fields
    for name in re.findall(r"reward\.model\.(\w+)", PAGE):
        assert name in RewardModelConfig.model_fields
    assert "path" in CriticConfig.model_fields
