"""Settings of the gateway."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from libs.runtime.settings import CommonSettings

from .core.http.cors import Origins

NEVER_FORWARDED = frozenset(
    {
        # credentials, and what browsers keep
        *("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "cookie2"),
        # of one connection (RFC 9110, section 7.6.1)
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        # the gateway's own
        *("host", "user-agent", "accept", "accept-encoding", "content-type", "content-length", "content-encoding"),
        *("expect", "x-request-id", "traceparent", "tracestate"),
    }
)
"""Headers of a client's that no setting sends to an engine."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _meaning(text: str) -> Meta:
    return Meta(description=text)


class GatewaySettings(CommonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[str, _meaning("Address clients connect to; 0.0.0.0 for every interface.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port clients connect to; 0: a free one.")] = 8080
    workers: Annotated[
        int, Meta(ge=1, le=64, description="Processes that answer, each a gateway of its own to the cluster.")
    ] = 2
    fleet_secret: Annotated[
        str | None,
        _meaning(
            "Secret engine keys are made from, file:PATH or env:NAME (32 bytes, hex); none: engines ask for no key."
        ),
    ] = None
    max_body_bytes: Annotated[int, Meta(ge=1024, description="Longest request body that is taken.")] = 20 * 1024 * 1024
    deadline_s: Annotated[
        float,
        Meta(
            gt=0,
            description="How long a client waits for the first token, or for a whole answer at once: counted from its "
            "arrival, for all engines that are asked together.",
        ),
    ] = 600.0
    stall_s: Annotated[float, Meta(gt=0, description="How long an engine may send nothing before it is given up.")] = (
        300.0
    )
    connect_timeout_s: Annotated[float, Meta(gt=0, description="How long connecting to an engine may take.")] = 2.0
    attempts: Annotated[
        int,
        Meta(
            ge=1,
            le=10,
            description="Endpoints of one model asked for one request, while nothing reached the client.",
        ),
    ] = 3
    wake_wait_s: Annotated[
        float, Meta(gt=0, description="How long a request waits for a model on demand to start; 503 after that.")
    ] = 300.0
    wake_waiting: Annotated[
        int, Meta(ge=1, le=4096, description="Requests that may wait in a worker for models on demand; 503 to more.")
    ] = 256
    verdict_timeout_s: Annotated[
        float, Meta(gt=0, description="How long a request waits for the guard's verdict, where a policy enforces.")
    ] = 3.0
    spool_max_bytes: Annotated[
        int, Meta(ge=1024 * 1024, description="Usage kept per worker while the bus is away; then nothing is answered.")
    ] = 1024 * 1024 * 1024
    shorten_answers: Annotated[
        bool,
        _meaning(
            "Messages and Responses that ask for more tokens than there is room for get as many as there are, with a "
            "warning; false: 400."
        ),
    ] = True
    forward_headers: Annotated[
        tuple[str, ...], _meaning("Client headers passed on to engines, in lower case; credentials never are.")
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        _meaning("Addresses and networks of proxies before the gateway, whose X-Forwarded-For is believed."),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        _meaning("Origins whose pages may use the gateway from a browser, as https://chat.example; '*' for all."),
    ] = ()
    unknown_keys_per_minute: Annotated[
        int,
        Meta(ge=1, description="Wrong keys taken from one address; more are told to wait, valid ones never."),
    ] = 60
    stream_keep_alive_s: Annotated[
        float,
        Meta(gt=0, description="A stream that is silent for so long gets a comment line, which keeps it open."),
    ] = 15.0
    keep_alive_s: Annotated[int, Meta(ge=1, description="How long an idle client connection is kept.")] = 75

    def __post_init__(self) -> None:
        Origins(self.cors_origins)
        for name in self.forward_headers:
            if _HEADER.fullmatch(name) is None:
                raise ValueError(f"forward_headers: {name!r} is not the name of a header")
            if name.lower() in NEVER_FORWARDED:
                raise ValueError(
                    f"forward_headers: {name.lower()} never goes to engines, because it is a credential, belongs to "
                    "one connection only, or is the gateway's own; leave it out"
                )

    def worker_directory(self, index: int) -> Path:
        """Where a worker has its state; the first is 1."""
        return self.data_dir / str(index)
