"""How many bytes weights take in the types files hold them in."""

from __future__ import annotations

import msgspec


class Type(msgspec.Struct, frozen=True):
    """A ggml type: so many elements together take so many bytes."""

    name: str
    block: int
    size: int


GGML: dict[int, Type] = {
    0: Type("F32", 1, 4),
    1: Type("F16", 1, 2),
    2: Type("Q4_0", 32, 18),
    3: Type("Q4_1", 32, 20),
    6: Type("Q5_0", 32, 22),
    7: Type("Q5_1", 32, 24),
    8: Type("Q8_0", 32, 34),
    9: Type("Q8_1", 32, 36),
    10: Type("Q2_K", 256, 84),
    11: Type("Q3_K", 256, 110),
    12: Type("Q4_K", 256, 144),
    13: Type("Q5_K", 256, 176),
    14: Type("Q6_K", 256, 210),
    15: Type("Q8_K", 256, 292),
    16: Type("IQ2_XXS", 256, 66),
    17: Type("IQ2_XS", 256, 74),
    18: Type("IQ3_XXS", 256, 98),
    19: Type("IQ1_S", 256, 50),
    20: Type("IQ4_NL", 32, 18),
    21: Type("IQ3_S", 256, 110),
    22: Type("IQ2_S", 256, 82),
    23: Type("IQ4_XS", 256, 136),
    24: Type("I8", 1, 1),
    25: Type("I16", 1, 2),
    26: Type("I32", 1, 4),
    27: Type("I64", 1, 8),
    28: Type("F64", 1, 8),
    29: Type("IQ1_M", 256, 56),
    30: Type("BF16", 1, 2),
    34: Type("TQ1_0", 256, 54),
    35: Type("TQ2_0", 256, 66),
    39: Type("MXFP4", 32, 17),
    40: Type("NVFP4", 64, 36),
    41: Type("Q1_0", 128, 18),
    42: Type("Q2_0", 64, 18),
}
"""By their number in a GGUF file. From ``ggml.h`` and ``ggml-common.h``; a test compares it with the library itself."""

REPACKED = frozenset({"Q4_0", "Q4_K", "IQ4_NL"})
"""Types llama.cpp repacks for CPUs with AVX2."""

FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
}
"""``general.file_type`` of a GGUF file: what its makers call the mixture of types. From ``llama.h``."""


class Precision(msgspec.Struct, frozen=True):
    """How a safetensors repository holds its linear layers; everything else stays in 16 bits."""

    name: str
    bits: float
    """Of a weight with its share of the scales."""
    experts_only: bool = False
    capability: tuple[int, int] = (0, 0)
    """Compute capability a card must have to hold it."""


SIXTEEN = {
    "bfloat16": Precision("bf16", 16, capability=(8, 0)),
    "float16": Precision("fp16", 16),
    "float32": Precision("fp32", 32),
}
FP8 = Precision("fp8", 8 + 32 / (128 * 128), capability=(7, 5))
"""One 32-bit scale for a block of 128 x 128. Older cards keep the weights so and compute in 16 bits (vLLM's Marlin)."""
INT4 = Precision("int4", 4 + 20 / 128, capability=(7, 5))
"""AWQ and GPTQ: a 16-bit scale and a 4-bit zero for every 128 weights."""
MXFP4 = Precision("mxfp4", 4.25, experts_only=True, capability=(8, 0))
"""An 8-bit scale for every 32 weights; in the repositories that use it only experts are held so."""
NVFP4 = Precision("nvfp4", 4.5, capability=(8, 0))
"""An 8-bit scale for every 16 weights. Older cards keep the weights so, as of FP8."""

NATIVE: dict[str, tuple[int, int]] = {"fp8": (8, 9), "nvfp4": (10, 0)}
"""Precision to the compute capability from which cards compute in it."""

SMALLER = {"fp8": FP8, "int4": INT4}
"""What ``--precision`` can ask for besides what the files are in."""
