"""Architectures of transformers, tiny, with random weights: configuration and model class by name.

    model, inputs = build("llama")     eval mode, seeded; `model(**inputs)` is the forward pass
    model, inputs = causal("llama")    with a language-model head, to generate with

A row names the model class, what its inputs are and the settings that `SMALL` does not make small.
`SMALL` holds for every configuration that has the attribute.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import transformers

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size", "dim"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
         "decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
         "decoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim",
         "hidden_dim", "n_inner"), 64),
    **dict.fromkeys(("d_kv", "head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    "vocab_size": 99,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
    "decoder_start_token_id": 2,
    "image_size": 32,
    "patch_size": 8,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
}


@dataclass(frozen=True)
class Architecture:
    """One row: `settings` go over `SMALL`, ... takes one away; `inputs`: a key of `INPUTS`."""

    model: str
    inputs: str = "tokens"
    settings: Mapping[str, Any] = field(default_factory=dict)


def _row(model: str, inputs: str = "tokens", **settings: Any) -> Architecture:
    return Architecture(model, inputs, settings)


_EARS = {
    "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}

ARCHITECTURES: dict[str, Architecture] = {
    # ---------------------------------------- encoders of text
    "albert": _row("AlbertModel", num_hidden_groups=1),
    "bert": _row("BertModel"),
    "big_bird": _row("BigBirdModel", attention_type="original_full"),
    "camembert": _row("CamembertModel"),
    "canine": _row("CanineModel"),
    "convbert": _row("ConvBertModel"),
    "data2vec_text": _row("Data2VecTextModel"),
    "deberta": _row("DebertaModel"),
    "deberta_v2": _row("DebertaV2Model"),
    "distilbert": _row("DistilBertModel"),
    "electra": _row("ElectraModel"),
    "ernie": _row("ErnieModel"),
    "esm": _row("EsmModel", position_embedding_type="rotary", mask_token_id=3),
    "fnet": _row("FNetModel"),
    "funnel": _row("FunnelModel", num_hidden_layers=..., block_sizes=[1, 1], d_head=8, d_inner=64),
    "ibert": _row("IBertModel"),
    "layoutlm": _row("LayoutLMModel"),
    "lilt": _row("LiltModel", hidden_size=48),
    "longformer": _row("LongformerModel", attention_window=4),
    "megatron_bert": _row("MegatronBertModel"),
    "mobilebert": _row("MobileBertModel", intra_bottleneck_size=32, true_hidden_size=32),
    "modernbert": _row("ModernBertModel", cls_token_id=1, sep_token_id=1),
    "mpnet": _row("MPNetModel"),
    "nystromformer": _row("NystromformerModel", num_landmarks=2, segment_means_seq_len=8),
    "rembert": _row("RemBertModel", input_embedding_size=16, output_embedding_size=16),
    "roberta": _row("RobertaModel"),
    "roberta_prelayernorm": _row("RobertaPreLayerNormModel"),
    "roformer": _row("RoFormerModel"),
    "squeezebert": _row("SqueezeBertModel"),
    "xlm": _row("XLMModel", emb_dim=32),
    "xlm_roberta": _row("XLMRobertaModel"),
    "xlnet": _row("XLNetModel", d_inner=64, max_position_embeddings=...),
    # ---------------------------------------- decoders
    "biogpt": _row("BioGptModel"),
    "bloom": _row("BloomModel"),
    "codegen": _row("CodeGenModel", rotary_dim=4),
    "cohere": _row("CohereModel"),
    "ctrl": _row("CTRLModel", dff=64),
    "falcon": _row("FalconModel", head_dim=...),
    "gemma": _row("GemmaModel"),
    "gemma2": _row("Gemma2Model"),
    "gemma3": _row("Gemma3TextModel"),
    "glm": _row("GlmModel"),
    "gpt2": _row("GPT2Model"),
    "gpt_bigcode": _row("GPTBigCodeModel"),
    "gpt_neo": _row("GPTNeoModel", attention_types=[[["global", "local"], 1]]),
    "gpt_neox": _row("GPTNeoXModel"),
    "gptj": _row("GPTJModel", rotary_dim=4),
    "granite": _row("GraniteModel"),
    "helium": _row("HeliumModel"),
    "llama": _row("LlamaModel"),
    "mamba": _row("MambaModel", state_size=8),
    "mistral": _row("MistralModel"),
    "mixtral": _row("MixtralModel"),
    "mpt": _row("MptModel", max_seq_len=64),
    "nemotron": _row("NemotronModel"),
    "olmo": _row("OlmoModel"),
    "olmo2": _row("Olmo2Model"),
    "openai_gpt": _row("OpenAIGPTModel"),
    "opt": _row("OPTModel", word_embed_proj_dim=32),
    "persimmon": _row("PersimmonModel"),
    "phi": _row("PhiModel"),
    "phi3": _row("Phi3Model"),
    "qwen2": _row("Qwen2Model"),
    "qwen2_moe": _row("Qwen2MoeModel"),
    "qwen3": _row("Qwen3Model"),
    "rwkv": _row("RwkvModel", attention_hidden_size=32),
    "smollm3": _row("SmolLM3Model"),
    "stablelm": _row("StableLmModel"),
    "starcoder2": _row("Starcoder2Model"),
    "xglm": _row("XGLMModel", attention_heads=4),
    # ---------------------------------------- encoders with decoders
    "bart": _row("BartModel", "pair"),
    "blenderbot": _row("BlenderbotModel", "pair"),
    "m2m_100": _row("M2M100Model", "pair"),
    "marian": _row("MarianModel", "pair"),
    "mbart": _row("MBartModel", "pair"),
    "mt5": _row("MT5Model", "pair"),
    "pegasus": _row("PegasusModel", "pair"),
    "t5": _row("T5Model", "pair"),
    # ---------------------------------------- images
    "beit": _row("BeitModel", "image"),
    "bit": _row("BitModel", "image", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                num_groups=4),
    "convnext": _row("ConvNextModel", "image", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "convnextv2": _row(
        "ConvNextV2Model", "image", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "deit": _row("DeiTModel", "image"),
    "dinov2": _row("Dinov2Model", "image"),
    "focalnet": _row("FocalNetModel", "image", embed_dim=8, depths=[1, 1], patch_size=4),
    "mobilenet_v1": _row("MobileNetV1Model", "image", depth_multiplier=0.25),
    "mobilenet_v2": _row("MobileNetV2Model", "image", depth_multiplier=0.25),
    "mobilevit": _row("MobileViTModel", "image", hidden_sizes=[16, 16, 16], patch_size=2,
                      neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 16]),
    "poolformer": _row("PoolFormerModel", "image", hidden_sizes=[8, 16, 16, 16],
                       depths=[1, 1, 1, 1], patch_size=7),
    "pvt": _row("PvtModel", "image", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1],
                num_attention_heads=[1, 2, 2, 2]),
    "regnet": _row("RegNetModel", "image", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                   groups_width=4),
    "resnet": _row("ResNetModel", "image", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "segformer": _row("SegformerModel", "image", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1],
                      num_attention_heads=[1, 2, 2, 2]),
    "swin": _row("SwinModel", "image", embed_dim=8, depths=[1, 1], num_heads=[2, 2], patch_size=4,
                 window_size=4),
    "swinv2": _row("Swinv2Model", "image", embed_dim=8, depths=[1, 1], num_heads=[2, 2],
                   patch_size=4, window_size=4),
    "vit": _row("ViTModel", "image"),
    "vit_msn": _row("ViTMSNModel", "image"),
    "yolos": _row("YolosModel", "image", image_size=[32, 32], num_detection_tokens=4),
    # ---------------------------------------- sound, several kinds of input
    "audio_spectrogram": _row("ASTModel", "spectrogram", max_length=24, num_mel_bins=16),
    "hubert": _row("HubertModel", "sound", **_EARS),
    "wav2vec2": _row("Wav2Vec2Model", "sound", **_EARS),
    "whisper": _row("WhisperModel", "speech", num_mel_bins=16, max_source_positions=12,
                    max_target_positions=16),
    "clip": _row("CLIPModel", "text and image"),
    "siglip": _row("SiglipModel", "text and image"),
    "vilt": _row("ViltModel", "text and image"),
    "decision_transformer": _row("DecisionTransformerModel", "decisions"),
    "time_series": _row("TimeSeriesTransformerModel", "series", prediction_length=3,
                        context_length=6, lags_sequence=[1, 2], num_time_features=1),
}

# Of each, the class with a head, to generate with.
CAUSAL: dict[str, str] = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "phi": "PhiForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "falcon": "FalconForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo": "OlmoForCausalLM",
}


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model, in eval mode, and the keyword arguments of one call. Equal on every call."""
    row = ARCHITECTURES[name]
    return _made(row.model, row), INPUTS[row.inputs]()


def causal(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model that can generate, and the prompt."""
    return _made(CAUSAL[name], ARCHITECTURES[name]), {"input_ids": _tokens(1, 5)}


def _made(model: str, row: Architecture) -> torch.nn.Module:
    kind = getattr(transformers, model)
    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    return kind(configuration(kind.config_class, row.settings)).eval()


def configuration(kind: type, settings: Mapping[str, Any]) -> Any:
    """A small configuration of the class, and of the configurations inside."""
    default = kind()
    inside = {
        name: _small(part).to_dict()
        for name, part in vars(default).items()
        if isinstance(part, transformers.PreTrainedConfig)
    }
    aliases = getattr(kind, "attribute_map", {})
    names = {
        name: value
        for name, value in SMALL.items()
        if hasattr(default, name) and name not in aliases
    }
    wanted = {**names, **inside, **settings}
    return kind(**{name: value for name, value in wanted.items() if value is not ...})


def _small(config: Any) -> Any:
    return configuration(type(config), {})


def _draw(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(7))


def _tokens(rows: int = 2, columns: int = 8) -> torch.Tensor:
    return torch.randint(3, 90, (rows, columns), generator=torch.Generator().manual_seed(3))


INPUTS: dict[str, Any] = {
    "tokens": lambda: {
        "input_ids": _tokens(), "attention_mask": torch.ones(2, 8, dtype=torch.int64),
    },
    "pair": lambda: {"input_ids": _tokens(), "decoder_input_ids": _tokens(2, 5)},
    "image": lambda: {"pixel_values": _draw(1, 3, 32, 32)},
    "spectrogram": lambda: {"input_values": _draw(2, 24, 16)},
    "sound": lambda: {"input_values": _draw(1, 800)},
    "speech": lambda: {"input_features": _draw(1, 16, 24), "decoder_input_ids": _tokens(1, 5)},
    "text and image": lambda: {"input_ids": _tokens(1, 8), "pixel_values": _draw(1, 3, 32, 32)},
    "decisions": lambda: {
        "states": _draw(1, 4, 17), "actions": _draw(1, 4, 4), "rewards": _draw(1, 4, 1),
        "returns_to_go": _draw(1, 4, 1), "timesteps": torch.arange(4)[None],
        "attention_mask": torch.ones(1, 4, dtype=torch.int64),
    },
    "series": lambda: {
        "past_values": _draw(2, 8), "past_time_features": _draw(2, 8, 1),
        "past_observed_mask": torch.ones(2, 8), "future_values": _draw(2, 3),
        "future_time_features": _draw(2, 3, 1),
    },
}
