"""What a model must be able to do to answer a request."""

from __future__ import annotations

from services.gateway.cluster.views import ServedModel
from services.gateway.core import faults
from services.gateway.core.faults import Fault

from .request import InferenceRequest


def check(request: InferenceRequest, served: ServedModel) -> None:
    """That the model can do what is asked. Raises Fault (400) naming what it cannot."""
    operation, route = request.operation, served.route
    if operation.capability is not None and route.capabilities and operation.capability not in route.capabilities:
        raise faults.capability_missing(route.model, operation.capability, route.capabilities)
    for field, tokens in request.parsed.limits():
        if tokens > served.max_tokens:
            name = operation.limit_field or field if field == "max_tokens" else field
            raise faults.too_many_tokens(name, tokens, served.max_tokens, route.model, operation.protocol)
    if request.media is not None and route.capabilities and "vision" not in route.capabilities:
        at, what = request.media
        raise faults.media_not_taken(route.model, what, at)


def may_answer(request: InferenceRequest, served: ServedModel) -> bool:
    """Whether another model may and can answer in the place of the one asked for."""
    try:
        check(request, served)
    except Fault:
        return False
    return served.open_to(request.key)
