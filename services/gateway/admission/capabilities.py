"""What a model must be able to do to answer a request."""

from __future__ import annotations

from libs.events.views import KeyView
from services.gateway.cluster.views import ServedModel
from services.gateway.core import faults
from services.gateway.core.faults import Fault
from services.gateway.core.protocols.operations import Operation
from services.gateway.core.request.body import ParsedRequest
from services.gateway.http.router import may_use

Media = tuple[str, str]
"""Where in a request something stands that is no text, and what it is."""


def check(asked: ParsedRequest, media: Media | None, served: ServedModel, kind: Operation) -> None:
    """That the model can do what is asked. Raises Fault naming what it cannot."""
    route = served.route
    if kind.capability is not None and route.capabilities and kind.capability not in route.capabilities:
        raise faults.capability_missing(route.model, kind.capability, route.capabilities)
    for field, value in asked.limits():
        if value > served.max_tokens:
            raise faults.too_many_tokens(
                (kind.limit if field == "max_tokens" else None) or field,
                value,
                served.max_tokens,
                route.model,
                kind.protocol,
            )
    if media is not None and route.capabilities and "vision" not in route.capabilities:
        raise faults.media_not_taken(route.model, media[1], media[0])


def suits(key: KeyView, asked: ParsedRequest, media: Media | None, other: ServedModel, kind: Operation) -> bool:
    """Whether another model may and can answer in the place of the one asked for."""
    try:
        check(asked, media, other, kind)
    except Fault:
        return False
    return may_use(key, other)
