"""How fast this machine reads its memory: what generating on the CPU is bound by."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import psutil

from .host_access import HostAccess

_CPUS = "/sys/devices/system/cpu"
_LEAST_BYTES = 64 * 2**20
_MAX_BYTES = 8 * 2**30
"""Eight times the caches of the largest machines with two sockets."""

_PASSES = 3


class MemoryRate(msgspec.Struct, frozen=True):
    """MB/s read, by all cores together and by one alone."""

    all_cores: int
    one_core: int


def cache_bytes(host: HostAccess) -> int:
    """The last-level caches together; 32 MB when the kernel does not say."""
    sizes: dict[str, int] = {}
    for cpu in host.names(_CPUS):
        folder = f"{_CPUS}/{cpu}/cache/index3"
        size, shared = host.text(f"{folder}/size"), host.text(f"{folder}/shared_cpu_list")
        if cpu[3:].isdigit() and size is not None and shared is not None and size[:-1].isdigit():
            sizes[shared] = int(size[:-1]) * {"K": 2**10, "M": 2**20}.get(size[-1], 1)
    return sum(sizes.values()) or 32 * 2**20


def measure(host: HostAccess, cores: int) -> MemoryRate | None:
    """The best of a few passes over a buffer of eight times the caches; None when a quarter of the free memory is
    less than that. Takes every core for some tenths of a second."""
    wanted = max(_LEAST_BYTES, 8 * cache_bytes(host))
    if wanted > min(psutil.virtual_memory().available // 4, _MAX_BYTES):
        return None
    libc = ctypes.CDLL(None, use_errno=False)
    libc.memchr.restype = ctypes.c_void_p
    libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    with mmap.mmap(-1, wanted) as buffer:
        view = (ctypes.c_char * wanted).from_buffer(buffer)
        start = ctypes.addressof(view)
        # Untouched pages are all one page of zeros, which the cache holds.
        ctypes.memset(start, 1, wanted)

        def read(first: int, length: int) -> None:
            # Looking for a byte that is not there reads everything; the interpreter is let go of meanwhile.
            libc.memchr(start + first, 2, length)

        part = wanted // cores
        with ThreadPoolExecutor(cores) as threads:
            together = min(
                _timed(lambda: list(threads.map(lambda n: read(n * part, part), range(cores)))) for _ in range(_PASSES)
            )
        alone = min(_timed(lambda: read(0, wanted)) for _ in range(_PASSES))
        del view
    return MemoryRate(_rounded(part * cores / together), _rounded(wanted / alone))


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _rounded(bytes_a_second: float) -> int:
    """To a tenth of a GB/s: the machine's description must not change with every breath."""
    return round(bytes_a_second / 1e8) * 100
