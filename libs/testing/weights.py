"""Files that are weights as far as anybody looks who does not load them."""

from __future__ import annotations

import json
import struct


def gguf(content: bytes = b"") -> bytes:
    """A sound GGUF file of version 3 without metadata and tensors, with something behind its header."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + content


def safetensors(content: bytes = b"") -> bytes:
    """A sound safetensors file with one tensor of bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}}).encode()
    return struct.pack("<Q", len(header)) + header + content
