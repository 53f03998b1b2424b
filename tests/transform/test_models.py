"""Whole models: lowered, interpreted, equal to eager; only the ops meant for the library stay there."""

import copy

import pytest
import torch
from torch import nn

from transform.check import check, library_ops

LIBRARY = {
    "aten.convolution.default", "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten.max_pool2d_with_indices.default", "aten._adaptive_avg_pool2d.default", "aten.upsample_bicubic2d.default",
    "aten.mkldnn_rnn_layer.default", "aten.cumsum.default",
}


class Called(nn.Module):
    """A transformers model called by keyword; gives its tensors."""

    def __init__(self, cls, config, names) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.names = cls(config).eval(), names

    def forward(self, *given):
        return [v for v in self.model(**dict(zip(self.names, given)), return_dict=False) if isinstance(v, torch.Tensor)]


def _ids(*sizes):
    return torch.randint(0, 50, sizes, generator=torch.Generator().manual_seed(0))


def _pixels(*sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def bert():
    from transformers import BertConfig, BertModel
    config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    return Called(BertModel, config, ("input_ids",)), (_ids(2, 7),)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    return Called(GPT2LMHeadModel, config, ("input_ids",)), (_ids(2, 7),)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)
    return Called(LlamaForCausalLM, config, ("input_ids",)), (_ids(2, 7),)


def vit():
    from transformers import ViTConfig, ViTModel
    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16,
                       patch_size=4)
    return Called(ViTModel, config, ("pixel_values",)), (_pixels(2, 3, 16, 16),)


def convnext():
    from transformers import ConvNextConfig, ConvNextModel
    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    return Called(ConvNextModel, config, ("pixel_values",)), (_pixels(2, 3, 32, 32),)


def resnet():
    from transformers import ResNetConfig, ResNetModel
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return Called(ResNetModel, config, ("pixel_values",)), (_pixels(2, 3, 32, 32),)


def lstm():
    torch.manual_seed(0)
    return nn.LSTM(8, 16, 2, batch_first=True), (_pixels(2, 5, 8),)


class Encoder(nn.Module):
    """A pre-norm layer in plain ops (nn's own layer is one fused op in inference)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.mix, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.ff = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / 8**0.5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        return x + self.ff(x)


def encoder():
    return Encoder(), (_pixels(2, 5, 16),)


def mlp():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1))
    return model, (_pixels(3, 8),)


MODELS = (bert, gpt2, llama, vit, convnext, resnet, lstm, encoder, mlp)


@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_model(make, dtype):
    model, inputs = make()
    if make is lstm and dtype != torch.float32:
        pytest.skip("the library's own bfloat16 LSTM")
    model = model.eval().to(dtype)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    graph = check(model, *inputs, factor=8, reference=copy.deepcopy(model).double())
    allowed = LIBRARY | ({"aten.addmm.default", "aten.baddbmm.default"} if dtype != torch.float32 else set())
    assert set(library_ops(graph)) <= allowed, set(library_ops(graph)) - allowed
