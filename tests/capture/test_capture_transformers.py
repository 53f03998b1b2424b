"""Models of transformers, tiny, with random weights: one node, portable, replayed on other inputs as eager."""

import pytest
import torch

from tests.capture.chains import Chain
from tests.capture.replay import assert_same, captured, outcome, replay
from tests.processes import printed

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ROWS, LENGTH, WORDS = 2, 7, 99


def ids(rows=ROWS, length=LENGTH):
    return torch.randint(3, WORDS, (rows, length))


def padded():
    mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
    mask[0, 5:] = 0
    return mask


def gpt2(**options):
    return transformers.GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)


def llama():
    return transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=1, **SMALL)


def bert(**options):
    return transformers.BertModel(transformers.BertConfig(vocab_size=WORDS, **SMALL, **options))


def image(side):
    return torch.randn(1, 3, side, side)


CASES = {
    "bert": lambda: (bert(), lambda: ((ids(),), {"attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.long)})),
    "bert, padded": lambda: (bert(), lambda: ((ids(),), {"attention_mask": padded()})),
    "bert, tuple": lambda: (bert(), lambda: ((ids(),), {"return_dict": False})),
    "bert, everything": lambda: (
        bert(attn_implementation="eager"),
        lambda: ((ids(),), {"output_attentions": True, "output_hidden_states": True}),
    ),
    "gpt2": lambda: (transformers.GPT2Model(gpt2()), lambda: ((ids(),), {"use_cache": False})),
    "gpt2, cache": lambda: (transformers.GPT2LMHeadModel(gpt2()), lambda: ((ids(),), {"use_cache": True})),
    "llama": lambda: (transformers.LlamaForCausalLM(llama()), lambda: ((ids(),), {"use_cache": True})),
    "vit": lambda: (
        transformers.ViTModel(transformers.ViTConfig(image_size=16, patch_size=4, **SMALL)),
        lambda: ((image(16),), {}),
    ),
    "convnext": lambda: (
        transformers.ConvNextModel(transformers.ConvNextConfig(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1])),
        lambda: ((image(32),), {}),
    ),
    "resnet": lambda: (
        transformers.ResNetModel(transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1])),
        lambda: ((image(32),), {}),
    ),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", CASES)
def test_model_is_one_node(name, mode):
    torch.manual_seed(0)
    model, arguments = CASES[name]()
    model.eval()
    with mode():
        args, kwargs = arguments()
        expected = model(*args, **kwargs)
        made = captured(model, *args, **kwargs)
        assert made.why_not_stored == ""
        assert_same(made.result, expected)
        args, kwargs = arguments()
        assert_same(replay(made, model, *args, **kwargs), model(*args, **kwargs))


def test_a_cache_that_is_returned_works_on():
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(llama()).eval()
    with torch.no_grad():
        made = captured(model, ids(), use_cache=True)
        prompt, token = ids(), ids(length=1)
        ours, theirs = replay(made, model, prompt, use_cache=True), model(prompt, use_cache=True)
        assert_same(
            model(token, cache=ours.past_key_values).logits,
            model(token, cache=theirs.past_key_values).logits,
        )


def test_decoding_writes_to_the_cache_it_was_given():
    model = transformers.LlamaForCausalLM(llama()).eval()
    with torch.no_grad():
        chain = Chain(model)
        given, token = ids(), ids(length=1)
        cache, same = (model(given, use_cache=True).past_key_values for _ in range(2))
        for length in range(LENGTH + 1, LENGTH + 4):
            assert_same(chain(token, cache=cache).logits, model(token, cache=same).logits)
            assert cache.get_seq_length() == length
        assert not chain.breaks


def test_a_module_made_in_the_call_after_torch_compile_ran():
    """torch.compile wraps `nn.Module.__init__` for the whole process and counts what it makes."""
    script = """
import torch, preheat
layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
def program(x):
    for layer in layers[:2]:
        x = layer(x)
    return x
with torch.no_grad():
    torch.compile(program, backend="eager")(torch.ones(2, 4))
    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(3):
        assert torch.allclose(compiled(torch.ones(2, 4)), program(torch.ones(2, 4)))
assert preheat.counters()["captures"] == 1 and preheat.counters()["breaks"] == 0, preheat.counters()
"""
    printed("-c", script)
