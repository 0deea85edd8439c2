"""Headers of real GGUF files, made by hand: ``python -m tests.data.models.gguf_headers FOLDER`` writes them.

Shapes and types are those of the published files; vocabularies are as long and hold short words. No tensors follow.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TYPES = {"F32": 0, "Q5_0": 6, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}

Tensors = list[tuple[str, tuple[int, ...], str]]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, value: object) -> bytes:
    """One metadata value; lists hold texts, floats or integers."""
    if isinstance(value, bool):
        return text(key) + struct.pack("<IB", BOOL, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", U32, value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", F32, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    assert isinstance(value, list)
    if value and isinstance(value[0], str):
        return text(key) + struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(text, value))
    if value and isinstance(value[0], float):
        return text(key) + struct.pack(f"<IIQ{len(value)}f", ARRAY, F32, len(value), *value)
    return text(key) + struct.pack(f"<IIQ{len(value)}I", ARRAY, U32, len(value), *value)


def header(metadata: dict[str, object], tensors: Tensors) -> bytes:
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    out += [entry(key, value) for key, value in metadata.items()]
    for name, shape, kind in tensors:
        out.append(text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        out.append(struct.pack("<IQ", TYPES[kind], 0))
    return b"".join(out)


def more_bits(layer: int, layers: int) -> bool:
    """The layers to which the K_M mixtures give more bits."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def words(number: int) -> list[str]:
    return [f"w{i}" for i in range(number)]


def qwen2_5_0_5b() -> bytes:
    """Qwen2.5-0.5B-Instruct Q4_K_M: 462.96 MiB of tensors. Rows of 896 fit no block of 256, so most are Q5_0."""
    layers, hidden, keys, wide, vocabulary = 24, 896, 128, 4864, 151936
    tensors: Tensors = [
        ("output.weight", (hidden, vocabulary), "Q8_0"),
        ("token_embd.weight", (hidden, vocabulary), "Q5_0"),
        ("output_norm.weight", (hidden,), "F32"),
    ]
    for i in range(layers):
        better = more_bits(i, layers)
        tensors += [
            (f"blk.{i}.attn_norm.weight", (hidden,), "F32"),
            (f"blk.{i}.ffn_norm.weight", (hidden,), "F32"),
            (f"blk.{i}.attn_q.weight", (hidden, hidden), "Q5_0"),
            (f"blk.{i}.attn_k.weight", (hidden, keys), "Q5_0"),
            (f"blk.{i}.attn_v.weight", (hidden, keys), "Q8_0" if better else "Q5_0"),
            (f"blk.{i}.attn_output.weight", (hidden, hidden), "Q5_0"),
            (f"blk.{i}.attn_q.bias", (hidden,), "F32"),
            (f"blk.{i}.attn_k.bias", (keys,), "F32"),
            (f"blk.{i}.attn_v.bias", (keys,), "F32"),
            (f"blk.{i}.ffn_gate.weight", (hidden, wide), "Q5_0"),
            (f"blk.{i}.ffn_up.weight", (hidden, wide), "Q5_0"),
            (f"blk.{i}.ffn_down.weight", (wide, hidden), "Q6_K" if better else "Q4_K"),
        ]
    metadata: dict[str, object] = {
        "general.architecture": "qwen2",
        "general.name": "qwen2.5-0.5b-instruct",
        "general.file_type": 15,
        "qwen2.block_count": layers,
        "qwen2.context_length": 32768,
        "qwen2.embedding_length": hidden,
        "qwen2.feed_forward_length": wide,
        "qwen2.attention.head_count": 14,
        "qwen2.attention.head_count_kv": 2,
        "qwen2.rope.freq_base": 1000000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": words(vocabulary),
        "tokenizer.ggml.token_type": [1] * vocabulary,
        "tokenizer.ggml.add_bos_token": False,
    }
    return header(metadata, tensors)


def gemma_3_270m() -> bytes:
    """Gemma 3 270M Q4_K_M, the model of the demonstration: 235.16 MiB of tensors."""
    layers, hidden, wide, vocabulary = 18, 640, 2048, 262144
    tensors: Tensors = [
        ("output_norm.weight", (hidden,), "F32"),
        ("token_embd.weight", (hidden, vocabulary), "Q8_0"),
    ]
    for i in range(layers):
        better = more_bits(i, layers)
        norms = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
        tensors += [(f"blk.{i}.{name}.weight", (hidden,), "F32") for name in norms]
        tensors += [
            (f"blk.{i}.attn_k_norm.weight", (256,), "F32"),
            (f"blk.{i}.attn_q_norm.weight", (256,), "F32"),
            (f"blk.{i}.attn_k.weight", (hidden, 256), "Q5_0"),
            (f"blk.{i}.attn_q.weight", (hidden, 1024), "Q5_0"),
            (f"blk.{i}.attn_v.weight", (hidden, 256), "Q8_0" if better else "Q5_0"),
            (f"blk.{i}.attn_output.weight", (1024, hidden), "Q4_K"),
            (f"blk.{i}.ffn_gate.weight", (hidden, wide), "Q5_0"),
            (f"blk.{i}.ffn_up.weight", (hidden, wide), "Q5_0"),
            (f"blk.{i}.ffn_down.weight", (wide, hidden), "Q6_K" if better else "Q4_K"),
        ]
    metadata: dict[str, object] = {
        "general.architecture": "gemma3",
        "general.name": "Gemma 3 270m",
        "general.file_type": 15,
        "gemma3.block_count": layers,
        "gemma3.context_length": 32768,
        "gemma3.embedding_length": hidden,
        "gemma3.feed_forward_length": wide,
        "gemma3.attention.head_count": 4,
        "gemma3.attention.head_count_kv": 1,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.value_length": 256,
        "gemma3.attention.sliding_window": 512,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words(vocabulary),
        "tokenizer.ggml.scores": [0.0] * vocabulary,
        "tokenizer.ggml.token_type": [1] * vocabulary,
    }
    return header(metadata, tensors)


FILES: dict[str, Callable[[], bytes]] = {
    "qwen2.5-0.5b-q4_k_m.gguf": qwen2_5_0_5b,
    "gemma-3-270m-q4_k_m.gguf": gemma_3_270m,
}


def write(folder: Path) -> None:
    """Every header as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in FILES.items():
        (folder / name).write_bytes(made())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
