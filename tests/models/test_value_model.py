import pytest
import torch
from sequences import Sequence, random_sequences

from verl.config.schema import CriticConfig, ModelConfig
from verl.models.batching import pad_batch
from verl.models.loading import load_critic
from verl.models.value_model import HEAD_FILE, ValueModel, token_values
from verl.testing.models import ARCHITECTURES, make_tiny_model_folder

TOLERANCE = 2e-5


def make_critic(folder, **settings) -> ValueModel:
    critic = load_critic(CriticConfig(), ModelConfig(path=str(folder), **settings), "cpu")
    torch.nn.init.normal_(critic.value_head.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.constant_(critic.value_head.bias, 0.5)
    return critic


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_value_of_a_token_is_read_at_the_position_that_predicts_it(tmp_path, architecture):
    critic = make_critic(make_tiny_model_folder(tmp_path / "m", architecture))
    rows = random_sequences(5, seed=8)
    with torch.no_grad():
        values_BT = token_values(critic, pad_batch(rows))
        for index, row in enumerate(rows):
            hidden = critic.backbone(torch.tensor([row.prompt_ids + row.response_ids])).last_hidden_state[0]
            expected = critic.value_head(hidden).squeeze(-1)[len(row.prompt_ids) - 1 : -1]
            actual = values_BT[index, : len(row.response_ids)]
            torch.testing.assert_close(
                actual, expected * torch.tensor(row.response_mask), atol=TOLERANCE, rtol=TOLERANCE
            )


def test_a_value_does_not_see_its_own_token(model_folder):
    critic = make_critic(model_folder)
    with torch.no_grad():
        values_BT = token_values(critic, pad_batch([Sequence([5, 6], [7], [1]), Sequence([5, 6], [8], [1])]))
    assert values_BT[0, 0] == values_BT[1, 0]


def test_values_outside_the_mask_are_zero(model_folder):
    with torch.no_grad():
        values_BT = token_values(
            make_critic(model_folder), pad_batch([Sequence([5], [6, 7], [0, 1]), Sequence([5], [6], [1])])
        )
    assert values_BT[0, 0] == 0
    assert values_BT[1, 1] == 0
    assert values_BT[0, 1] != 0


def test_gradients_reach_head_and_backbone(model_folder):
    critic = make_critic(model_folder)
    token_values(critic, pad_batch(random_sequences(3))).sum().backward()
    assert critic.value_head.weight.grad.abs().max() > 0
    assert critic.backbone.get_input_embeddings().weight.grad.abs().max() > 0


def test_saving_and_loading_keeps_the_values(model_folder, tmp_path):
    critic, batch = make_critic(model_folder), pad_batch(random_sequences(3))
    critic.save_pretrained(tmp_path / "critic")
    assert (tmp_path / "critic" / HEAD_FILE).exists()
    loaded = load_critic(CriticConfig(path=str(tmp_path / "critic")), ModelConfig(path=str(model_folder)), "cpu")
    with torch.no_grad():
        assert torch.equal(token_values(loaded, batch), token_values(critic, batch))


def test_bfloat16_values_are_close_and_float32(model_folder):
    batch = pad_batch(random_sequences(3))
    with torch.no_grad():
        exact = token_values(make_critic(model_folder), batch)
        rough = token_values(make_critic(model_folder, dtype="bfloat16"), batch)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, atol=0.3, rtol=0.1)


def test_an_opt_backbone_with_an_output_projection_gets_a_head_of_the_right_width(tmp_path):
    critic = make_critic(make_tiny_model_folder(tmp_path / "m", "opt", word_embed_proj_dim=16))
    assert critic.value_head.in_features == 16
