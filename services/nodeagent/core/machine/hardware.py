"""Names derived from what the hardware says of itself."""

from __future__ import annotations

import re

import msgspec

# Board names as NVML gives them carry vendor, bus and memory around the one word people use for the card.
_NOISE = re.compile(
    r"\b(nvidia|tesla|quadro|geforce|graphics|device|gpu|pcie|sxm\d?|hbm\d?e?|nvl|\d+\s?gb|mig\b.*)\b", re.IGNORECASE
)
_SIZES_GB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 120, 128, 141, 144, 180, 192, 288)


def gpu_class(name: str, memory_total_mb: int, mig_profile: str | None = None) -> str:
    """``h100-80g`` for ``NVIDIA H100 80GB HBM3``; with a MIG profile ``a100-80g-mig-3g.40gb``.

    ``memory_total_mb`` is the whole card's. Drivers report a little less than what is printed on the box, so
    the size is the smallest usual one from there up to 8 % more.
    """
    words = re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", name.lower())).strip("-") or "gpu"
    gigabytes = memory_total_mb / 1024
    size = next((usual for usual in _SIZES_GB if usual >= gigabytes and usual <= gigabytes * 1.08), round(gigabytes))
    derived = f"{words}-{size}g"
    return f"{derived}-mig-{mig_profile}" if mig_profile else derived


class MainMemory(msgspec.Struct, frozen=True):
    """MB of the machine's memory."""

    total_mb: int
    used_mb: int


def main_memory(meminfo: str) -> MainMemory | None:
    """What ``/proc/meminfo`` says; None when it does not."""
    mb_by_name = {name: int(kb) // 1024 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE)}
    if "MemTotal" not in mb_by_name:
        return None
    return MainMemory(
        mb_by_name["MemTotal"], mb_by_name["MemTotal"] - mb_by_name.get("MemAvailable", mb_by_name["MemTotal"])
    )


VECTOR_FLAGS = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""What CPU inference is fast or slow by, in the kernel's spelling."""


def vector_flags(cpuinfo: str) -> tuple[str, ...]:
    """The vector extensions ``/proc/cpuinfo`` names, in the order of ``VECTOR_FLAGS``."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    present = set(match.group(1).split()) if match else set()
    return tuple(flag for flag in VECTOR_FLAGS if flag in present)


def cpu_problems(arch: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """What is wrong with this CPU, as sentences."""
    if arch in ("x86_64", "amd64") and "avx2" not in flags:
        return (
            "the CPU shows no AVX2, so inference on it is several times slower than it could be; in a virtual machine "
            "set its CPU type to 'host' (or x86-64-v3)",
        )
    return ()
