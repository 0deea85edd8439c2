"""Settings of the scheduler."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from libs.runtime.settings import CommonSettings


class SchedulerSettings(CommonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beside those all services have."""

    fleet_secret: Annotated[
        str | None,
        Meta(
            description="Secret engine keys are made from, the gateways' too: file:PATH or env:NAME (32 bytes, hex); "
            "none: engines ask for no key."
        ),
    ] = None
    starts_at_once: Annotated[
        int,
        Meta(
            ge=0,
            description="Replicas that may be starting at any moment; 0: a quarter of the machines, 32 at least. "
            "Fewer where machines, mirrors or the network are weak.",
        ),
    ] = 0
    retire_lost_after_days: Annotated[
        float,
        Meta(
            ge=0,
            description="Days after which a lost machine is known no more, unless it is lent, drained or cordoned; "
            "0: it is known until `llmgw node retire`. It joins anew when its agent is back.",
        ),
    ] = 30.0
