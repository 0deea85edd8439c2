"""The environment every engine gets."""

from __future__ import annotations

from libs.engines import traits_of
from libs.events.views import ShardWanted

from .base import Engine, Place, cores_for

THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


def environment(wanted: ShardWanted, engine: Engine, key: str | None, place: Place) -> dict[str, str]:
    """What an engine's environment holds besides the agent's own few variables. What a profile sets comes first: it
    never overrules what the agent sets."""
    env = dict(wanted.env)
    if wanted.devices:
        # By UUID and in bus order: indexes change with the driver's mood and with CUDA's idea of speed.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(wanted.devices)
    else:
        env["CUDA_VISIBLE_DEVICES"] = ""
    env["PYTHONUNBUFFERED"] = "1"
    # Libraries start a thread for every core they see, whatever a control group or the profile leaves them.
    threads = str(cores_for(wanted, place.cpu_count))
    for pool in THREAD_POOLS:
        env.setdefault(pool, threads)
    env |= _collectives(wanted, place)
    env |= engine.environment(wanted, place)
    key_variable = traits_of(wanted.engine).key_variable
    if key is not None and key_variable is not None:
        env[key_variable] = key
    return env


def _collectives(wanted: ShardWanted, place: Place) -> dict[str, str]:
    """Which ways the ranks of a replica talk to each other over."""
    if len(wanted.devices) <= 1 and wanted.ranks <= 1:
        return {}
    env = {}
    if place.interface is not None:
        # "=": exactly this one and not every interface whose name begins so.
        env["NCCL_SOCKET_IFNAME"] = f"={place.interface}"
        env["GLOO_SOCKET_IFNAME"] = place.interface
    if wanted.ranks <= 1:
        return env
    if wanted.nics:
        # Only the fabric's own: a rank that tries an adapter of another fabric hangs in its first collective.
        env["NCCL_IB_HCA"] = "=" + ",".join(wanted.nics)
        roce = [port.gid_index for port in place.ports if port.nic in wanted.nics and port.gid_index is not None]
        if roce:
            env["NCCL_IB_GID_INDEX"] = str(roce[0])
    else:
        env["NCCL_IB_DISABLE"] = "1"
    if wanted.nvlink_domain is not None:
        env["NCCL_MNNVL_ENABLE"] = "1"
    return env
