"""MIG instances in place of the card they are carved from."""

from __future__ import annotations

import msgspec

from libs.events.machine import Gpu, MigInstance

from .hardware import gpu_class


def carved(whole: Gpu, mig: MigInstance, uuid: str, memory_total_mb: int) -> Gpu:
    """The instance. It has its own memory and no NVLink; bus, ECC and class name are the card's."""
    return msgspec.structs.replace(
        whole,
        index=1000 + 100 * whole.index + mig.device,
        uuid=uuid,
        name=f"{whole.name} MIG {mig.profile}",
        gpu_class=gpu_class(whole.name, whole.memory_total_mb, mig.profile),
        memory_total_mb=memory_total_mb,
        mig=mig,
        nvlink=None,
        nvlink_domain=None,
        nvlink_peers=(),
    )
