"""Facts from config.json and the safetensors index, against figures computed by hand from public model cards."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.fit import Facts, Unreadable
from libs.fit.config import facts_of, in_precision, sum_of
from libs.fit.headers import Model, open_source, read

MODELS = Path(__file__).parents[2] / "data" / "models"


def load(name: str) -> Model:
    (model,) = read(*open_source(str(MODELS / name)))
    return model


# Keys and values of 16 bits: layers x KV heads x (key + value) x 2 bytes.
TOKEN_BYTES = {
    "llama-3-8b": 32 * 8 * (128 + 128) * 2,  # 131,072
    "llama-3-70b": 80 * 8 * (128 + 128) * 2,  # 327,680
    "qwen3-235b-a22b": 94 * 4 * (128 + 128) * 2,  # 192,512
    # Latent attention keeps one vector of kv_lora_rank + qk_rope_head_dim for all 128 heads.
    "deepseek-v3": 61 * (512 + 64) * 2,  # 70,272
    "mixtral-8x7b": 32 * 8 * (128 + 128) * 2,  # 131,072
    "gemma-3-27b": 62 * 16 * (128 + 128) * 2,  # 507,904
    "gpt-oss-20b": 24 * 8 * (64 + 64) * 2,  # 49,152
}
# Past the windows only layers that see everything keep another token: every sixth of Gemma's 62, half of GPT-OSS's 24.
FAR_TOKEN_BYTES = TOKEN_BYTES | {
    "gemma-3-27b": 10 * 16 * (128 + 128) * 2,  # 81,920
    "gpt-oss-20b": 12 * 8 * (64 + 64) * 2,  # 24,576
}
# metadata.total_size of the published indexes. Gemma's is twice its 27,432,406,640 weights.
WEIGHT_BYTES = {
    "llama-3-8b": 16_060_522_496,
    "llama-3-70b": 141_107_412_992,
    "qwen3-235b-a22b": 470_187_269_120,
    "deepseek-v3": 688_586_727_753,
    "mixtral-8x7b": 93_405_585_408,
    "gemma-3-27b": 54_864_813_280,
    "gpt-oss-20b": 13_761_264_768,
}


@pytest.mark.parametrize("name", TOKEN_BYTES)
def test_context_costs_exactly_what_is_computed_by_hand(name: str) -> None:
    facts = load(name).facts

    assert facts.token_bytes == TOKEN_BYTES[name]
    assert facts.far_token_bytes == FAR_TOKEN_BYTES[name]


@pytest.mark.parametrize("name", WEIGHT_BYTES)
def test_the_index_says_how_large_the_weights_are(name: str) -> None:
    assert load(name).facts.weights.total == WEIGHT_BYTES[name]


@pytest.mark.parametrize("name", WEIGHT_BYTES)
def test_without_an_index_the_weights_are_computed_within_a_hundredth(name: str) -> None:
    config = load(name).config
    assert config is not None

    facts = facts_of(name, config)

    assert facts.weights.total == pytest.approx(WEIGHT_BYTES[name], rel=0.01)


def test_what_the_cards_of_the_models_say() -> None:
    shapes = {name: load(name).facts for name in WEIGHT_BYTES}

    def told(facts: Facts) -> tuple[object, ...]:
        experts = (facts.experts.total, facts.experts.active) if facts.experts else None
        return (facts.precision, facts.layers, facts.heads, facts.kv_heads, facts.head_dim, facts.context, experts)

    assert told(shapes["llama-3-8b"]) == ("bf16", 32, 32, 8, 128, 8192, None)
    assert told(shapes["llama-3-70b"]) == ("bf16", 80, 64, 8, 128, 8192, None)
    assert told(shapes["qwen3-235b-a22b"]) == ("bf16", 94, 64, 4, 128, 40960, (128, 8))
    assert told(shapes["deepseek-v3"])[:2] == ("fp8", 61)
    assert told(shapes["deepseek-v3"])[5:] == (163840, (256, 8))
    assert told(shapes["mixtral-8x7b"]) == ("bf16", 32, 32, 8, 128, 32768, (8, 2))
    assert told(shapes["gemma-3-27b"]) == ("bf16", 62, 32, 16, 128, 131072, None)
    assert told(shapes["gpt-oss-20b"]) == ("mxfp4", 24, 64, 8, 64, 131072, (32, 4))
    assert shapes["deepseek-v3"].latent
    assert shapes["deepseek-v3"].split_heads == 1
    assert {group.window for group in shapes["gemma-3-27b"].attention} == {None, 1024}
    assert {group.window for group in shapes["gpt-oss-20b"].attention} == {None, 128}


MINILM = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 384, "num_hidden_layers": 6,
    "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522, "max_position_embeddings": 512,
    "type_vocab_size": 2, "torch_dtype": "float32",
}  # fmt: skip


def test_encoders_have_two_matrices_a_table_of_positions_and_no_cache() -> None:
    bge = load("bge-m3").facts

    # As published: 567,754,752 weights of bge-m3, 22,713,216 of all-MiniLM-L6-v2.
    assert bge.parameters == 567_754_752
    assert facts_of("minilm", MINILM).parameters == 22_713_216
    assert bge.encoder
    assert (bge.context, bge.token_bytes, bge.heads) == (8192, 0, 16)
    assert bge.weights.total == 4 * bge.parameters
    assert not load("llama-3-8b").facts.encoder
    # A decoder of the same family generates.
    assert not facts_of("decoder", {**MINILM, "is_decoder": True}).encoder


@pytest.mark.parametrize(
    ("name", "billions"),
    # As their makers say.
    [("qwen3-235b-a22b", 22), ("deepseek-v3", 37), ("mixtral-8x7b", 12.9)],
)
def test_active_weights_are_as_many_as_the_name_says(name: str, billions: float) -> None:
    facts = load(name).facts

    # Embedding tables are counted as active by the cards and are not read.
    active = facts.weights.active(facts.experts) / (facts.bits / 8) / 1e9

    assert active == pytest.approx(billions, rel=0.06)


def test_a_smaller_precision_is_computed_and_said_to_be() -> None:
    model = load("llama-3-70b")
    assert model.config is not None

    fp8 = in_precision(model.facts, model.config, "fp8")
    int4 = in_precision(model.facts, model.config, "int4")

    # Published repositories of the model: FP8 72.7 GB, AWQ 39.8 GB.
    assert fp8.weights.total == pytest.approx(72.7e9, rel=0.01)
    assert int4.weights.total == pytest.approx(39.8e9, rel=0.01)
    assert not fp8.published
    assert fp8.token_bytes == model.facts.token_bytes
    with pytest.raises(Unreadable, match="'fp16' is not a precision that can be planned: use fp8, int4"):
        in_precision(model.facts, model.config, "fp16")


SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({}, [(4, None)]),
        ({"model_type": "mistral", "sliding_window": 64}, [(4, 64)]),
        ({"model_type": "mistral", "sliding_window": None}, [(4, None)]),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, [(4, None)]),
        ({"model_type": "gemma2", "sliding_window": 64}, [(2, None), (2, 64)]),
        ({"sliding_window": 64, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, [(1, None), (3, 64)]),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, [(1, None)]),
        ({"full_attention_interval": 2}, [(2, None)]),
    ],
)
def test_which_layers_keep_how_much(change: dict[str, Any], windows: list[tuple[int, int | None]]) -> None:
    facts = facts_of("small", SMALL | change)

    assert [(group.count, group.window) for group in facts.attention] == windows


def test_layers_without_a_cache_are_named() -> None:
    facts = facts_of("small", SMALL | {"full_attention_interval": 4})

    assert facts.token_bytes == 1 * 2 * (16 + 16) * 2
    assert facts.notes == ("the state of 3 layers with linear attention: it does not grow with the context",)


@pytest.mark.parametrize(
    ("quantised", "precision", "bits"),
    [
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "awq", "bits": 4}, "int4-awq", 4),
        ({"quant_method": "gptq", "bits": 8}, "int8-gptq", 8),
        ({"quant_method": "mxfp4"}, "mxfp4", 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
            "int4-compressed-tensors",
            4,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4-bitsandbytes", 4),
    ],
)
def test_precisions_of_repositories(quantised: dict[str, Any], precision: str, bits: int) -> None:
    facts = facts_of("small", SMALL | {"quantization_config": quantised})

    assert facts.precision == precision
    assert int(facts.bits) == bits


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "config.json has no num_hidden_layers"),
        (SMALL | {"hidden_size": "64"}, "hidden_size is '64': a whole number is expected"),
        (SMALL | {"torch_dtype": "complex64"}, "the dtype 'complex64' is not known"),
        (SMALL | {"quantization_config": {"quant_method": "new"}}, "the bits of its quantization_config"),
    ],
)
def test_what_is_wrong_with_a_config_is_said(config: dict[str, Any], said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        facts_of("small", config)


def test_headers_of_the_files_outweigh_the_config() -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [10], "data_offsets": [0, 20]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]},
    }

    tensors = sum_of([header, header])

    assert tensors.by_dtype == {"BF16": 40, "F32": 8}
    assert facts_of("small", SMALL, tensors=tensors).weights.total == 48
    with pytest.raises(Unreadable, match="entry 'a' has no data_offsets"):
        sum_of([{"a": {"dtype": "BF16"}}])
    with pytest.raises(Unreadable, match=r"has no metadata\.total_size"):
        facts_of("small", SMALL, index={"weight_map": {}})


LLAMA_4 = {
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 202048,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_experts_per_tok": 1,
    "max_position_embeddings": 1048576,
}
SEES = {"hidden_size": 1408, "num_hidden_layers": 34, "intermediate_size": 5632, "patch_size": 14}


def shaped(layers: int, hidden: int, wide: int, heads: int, kv_heads: int, words: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": words,
        "max_position_embeddings": 32768,
        **more,
    }


@pytest.mark.parametrize(
    ("config", "weights"),
    # Counts as repositories publish them.
    [
        (shaped(28, 3584, 18944, 28, 4, 152064, model_type="qwen2"), 7_615_616_512),
        (shaped(32, 4096, 14336, 32, 8, 32000, model_type="mistral"), 7_241_732_096),
        (shaped(32, 3072, 8192, 32, 32, 32064, model_type="phi3"), 3_821_079_552),
        (shaped(42, 3584, 14336, 16, 8, 256000, model_type="gemma2"), 9_241_705_984),
        (
            shaped(48, 2048, 6144, 32, 4, 151936, head_dim=128, moe_intermediate_size=768, num_experts=128),
            30_532_122_624,
        ),
        (
            shaped(46, 4096, 10944, 96, 8, 151552, head_dim=128, moe_intermediate_size=1408, n_routed_experts=128)
            | {"n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1},
            110_468_824_832,
        ),
        (
            shaped(61, 7168, 18432, 64, 64, 163840, moe_intermediate_size=2048, n_routed_experts=384)
            | {"n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536}
            | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
            1_026_408_232_448,
        ),
        (
            {"text_config": LLAMA_4 | {"num_local_experts": 16, "interleave_moe_layer_step": 1}, "vision_config": SEES},
            108_641_793_536,
        ),
        (
            {
                "text_config": LLAMA_4 | {"num_local_experts": 128, "interleave_moe_layer_step": 2},
                "vision_config": SEES,
            },
            401_583_781_376,
        ),
    ],
    ids=[
        *("qwen2.5-7b", "mistral-7b", "phi-3-mini", "gemma-2-9b", "qwen3-30b-a3b", "glm-4.5-air", "kimi-k2"),
        *("llama-4-scout", "llama-4-maverick"),
    ],
)
def test_weights_of_many_families_are_counted_within_a_thousandth(config: dict[str, Any], weights: int) -> None:
    assert facts_of("model", config).parameters == pytest.approx(weights, rel=0.001)


KEYS = [
    *("model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "intermediate_size", "max_position_embeddings", "sliding_window", "layer_types"),
    *("sliding_window_pattern", "full_attention_interval", "num_experts", "num_experts_per_tok", "mlp_only_layers"),
    *("first_k_dense_replace", "decoder_sparse_step", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "torch_dtype"),
    *("quantization_config", "text_config", "vision_config", "num_nextn_predict_layers", "tie_word_embeddings"),
]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3)), max_size=3),
    st.dictionaries(
        st.sampled_from(["quant_method", "bits", "config_groups", "hidden_size", "patch_size"]), st.integers()
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), ODD, min_size=1, max_size=4))
def test_odd_configs_are_read_or_refused_and_never_crash(change: dict[str, Any]) -> None:
    with contextlib.suppress(Unreadable):
        facts_of("odd", SMALL | change)
