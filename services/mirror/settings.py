"""Settings of the mirror."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from libs.runtime.settings import CommonSettings


class MirrorSettings(CommonSettings, frozen=True, kw_only=True):
    host: Annotated[str, Meta(description="Address files are served at; 0.0.0.0: every address of the machine.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65535, description="Port files are served at; 0: a free one.")] = 8081
    public_url: Annotated[
        str | None,
        Meta(description="How nodes reach it, http://host:port; none: made of host (or host name) and port."),
    ] = None
