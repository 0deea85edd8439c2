"""Facts about the machine, from the kernel. Each is read by itself, so that one that fails takes no other with it."""

from __future__ import annotations

import math
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from libs.events.machine import Filesystem
from services.nodeagent.core.machine import hardware

from .host_access import HostAccess

_NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "glusterfs", "9p", "wekafs", "orangefs"}
)
_STORAGE_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "bcachefs"})
_UNLIMITED = 1 << 60
"""Control groups of version 1 write a limit near 2^63 where there is none."""


def operating_system() -> str:
    """``Debian GNU/Linux 12 (bookworm)``."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME") or platform.system()
    except OSError:
        return platform.system()


def _control_groups(controller: str) -> Iterator[Path]:
    """The folders of the control groups this process is in, innermost first, for either version."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = Path("/sys/fs/cgroup")
        elif controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") / controller
        else:
            continue
        # Inside a container the path is the host's; what is mounted is then the container's own group.
        folder = root / path.lstrip("/")
        while not folder.is_dir() and folder != root:
            folder = folder.parent
        while True:
            yield folder
            if folder == root:
                break
            folder = folder.parent


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
        return None if text == "max" else int(text)
    except (OSError, ValueError, IndexError):
        return None


def cpu_count() -> int:
    """Whole CPUs this process may use: its affinity, and what its control groups allow. Of 1.5 one is whole: a core
    that is reserved must be there."""
    quota = cpu_quota()
    count = len(os.sched_getaffinity(0))
    return count if quota is None else max(1, math.floor(quota))


def cpu_quota() -> float | None:
    """CPUs' time its control groups allow it, where that is less than all it may run on; None: no less."""
    count = len(os.sched_getaffinity(0))
    allowed = min(_quotas(), default=math.inf)
    return allowed if allowed < count else None


def _quotas() -> Iterator[float]:
    """Of each control group that has one, of either version."""
    for folder in _control_groups("cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota = str(_number(folder / "cpu.cfs_quota_us") or "max")
            period = str(_number(folder / "cpu.cfs_period_us") or 100_000)
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            yield round(int(quota) / int(period), 2)


def memory_total_mb() -> int:
    """What processes here may use at most: the machine's memory or the tightest control group's limit."""
    limits = [limit for limit, _ in _memory_limits()]
    return min([psutil.virtual_memory().total, *limits]) // 2**20


def memory_available_mb() -> int:
    """What could be taken now without swapping, as the kernel estimates it, within the control groups' limits."""
    left = [limit - used for limit, used in _memory_limits()]
    return max(0, min([psutil.virtual_memory().available, *left])) // 2**20


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of each limited control group, bytes. File pages the kernel would drop do not count as used."""
    for folder in _control_groups("memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is None or used is None or limit >= _UNLIMITED:
                continue
            yield limit, max(0, used - _droppable(folder))


def _droppable(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split() for line in lines if line.count(" ") == 1)
    return int(values.get("total_inactive_file") or values.get("inactive_file") or 0)


def cpu_flags(host: HostAccess) -> tuple[str, ...]:
    """The vector extensions of the CPU."""
    return hardware.vector_flags(host.text("/proc/cpuinfo") or "")


def address_towards(bus_url: str) -> str:
    """The machine's own address on the route to the bus. Nothing is sent to find it."""
    first = bus_url.split(",")[0].strip()
    parts = urlsplit(first if "//" in first else f"nats://{first}")
    try:
        addresses = socket.getaddrinfo(parts.hostname or "127.0.0.1", parts.port or 4222, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = addresses[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The network interface that holds an address; None when none does."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    return None


def filesystems(always: Path) -> tuple[Filesystem, ...]:
    """One entry for each filesystem that stores things, however many folders of it are mounted; ``always``'s own
    is among them whatever its kind."""
    by_device: dict[str, Filesystem] = {}
    parts = sorted(psutil.disk_partitions(all=True), key=lambda part: len(part.mountpoint))
    home = max(
        (part for part in parts if _under(always, part.mountpoint)), key=lambda part: len(part.mountpoint), default=None
    )
    for part in parts:
        kind = part.fstype.removeprefix("fuse.")
        shared = kind in _NETWORK_FILESYSTEMS
        if part is not home and not shared and kind not in _STORAGE_FILESYSTEMS:
            continue
        try:
            device = str(os.stat(part.mountpoint).st_dev) if part.device in ("overlay", "none") else part.device
            total = psutil.disk_usage(part.mountpoint).total // 2**20
        except OSError:
            continue
        if total and Path(part.mountpoint).is_dir() and device not in by_device:
            by_device[device] = Filesystem(path=part.mountpoint, device=part.device, total_mb=total, shared=shared)
    return tuple(sorted(by_device.values(), key=lambda filesystem: filesystem.path))


def _under(path: Path, mountpoint: str) -> bool:
    return path.resolve().is_relative_to(mountpoint)


def free_for_weights_mb(data_dir: Path) -> int | None:
    """What could still be written where the agent keeps weights: a folder that may be a mount of its own, or that may
    not be made yet. None: it does not answer."""
    folder = data_dir / "weights"
    existing = next((parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()), Path("/"))
    return free_mb((str(existing),)).get(str(existing))


def free_mb(paths: tuple[str, ...]) -> dict[str, int]:
    """What ordinary users could still write on each filesystem; one that does not answer is left out."""
    free = {}
    for path in paths:
        try:
            free[path] = psutil.disk_usage(path).free // 2**20
        except OSError:
            continue
    return free
