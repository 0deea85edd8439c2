"""Settings of the guard."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from libs.runtime.settings import CommonSettings


class GuardSettings(CommonSettings, frozen=True, kw_only=True):
    threads: Annotated[
        int, Meta(ge=1, le=64, description="Threads that look through texts; more than there are cores help nobody.")
    ] = 2
