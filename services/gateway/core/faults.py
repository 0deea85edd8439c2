"""Every reason for which a request is not answered.

A ``Fault`` is raised anywhere on the way of a request and written once, by the router; ``core.errors`` puts it into the
client's protocol. Types and codes are OpenAI's, so that its SDK raises the exception a program expects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from libs.events.budget import Period, money

KNOWN_MODELS_NAMED = 20
"""How many model names an error lists: enough to see a typing mistake, short enough to read."""


class Fault(Exception):
    """A request that is not answered.

    ``status`` is the HTTP status, ``kind`` the envelope's ``type``, ``code`` is for programs and ``message``
    a sentence a person can act on. ``param`` names the field that is wrong. ``retry_after_s`` is only set
    where trying again may help.
    """

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = tuple(headers)


# who may


def no_key() -> Fault:
    """401: no key was sent."""
    return Fault(
        401,
        "invalid_api_key",
        "No API key was sent. Send yours in the header 'Authorization: Bearer sk-llmgw-...'.",
    )


def wrong_key() -> Fault:
    """401: the key is unknown, revoked or expired."""
    return Fault(
        401,
        "invalid_api_key",
        "This API key is not valid here: it is unknown, revoked or expired. Ask your administrator for a new one.",
    )


def too_many_wrong_keys(retry_after_s: float) -> Fault:
    """429: too many wrong keys came from this address."""
    return Fault(
        429,
        "too_many_unknown_keys",
        "This API key is not valid here, and too many that are not were sent from your address. Correct the key; "
        "a valid one is answered at once.",
        retry_after_s=retry_after_s,
    )


def keys_unknown() -> Fault:
    """503: the key is not known, and the list of keys is not current."""
    return Fault(
        503,
        "keys_unavailable",
        "The gateway has no current list of keys and does not know this one. Try again in a few seconds.",
        kind="server_error",
        retry_after_s=2,
    )


def role_missing(role: str, roles: Iterable[str]) -> Fault:
    """403: the key lacks the role the path is for."""
    return Fault(
        403,
        "role_missing",
        f"This key may not do this: it needs the role '{role}' and has {', '.join(sorted(roles)) or 'none'}.",
        kind="permission_error",
    )


# what was asked


def no_route(method: str, path: str) -> Fault:
    """404: there is no such path."""
    return Fault(404, "unknown_url", f"There is no {method} {path} here. Chat is POST /v1/chat/completions.")


def wrong_method(method: str, path: str, allowed: Iterable[str]) -> Fault:
    """405: the path takes other methods."""
    allow = ", ".join(sorted(allowed))
    return Fault(
        405, "method_not_allowed", f"{path} takes {allow}, not {method}.", headers=[(b"allow", allow.encode())]
    )


def bad_body(message: str, param: str | None = None, code: str | None = None) -> Fault:
    """400: the body is not what the path takes; ``param`` names the field."""
    return Fault(400, code, message, param=param)


def too_deep() -> Fault:
    """400: objects and arrays are nested too deeply to be read."""
    return bad_body("The body is nested too deeply: send fewer objects and arrays inside one another.")


def body_too_large(limit_bytes: int) -> Fault:
    """413: the body is longer than the gateway takes."""
    return Fault(413, "request_too_large", f"The body is over the limit of {limit_bytes} bytes; send a smaller one.")


def encoding_not_taken(encoding: str) -> Fault:
    """415: the body is compressed."""
    return Fault(
        415,
        "unsupported_content_encoding",
        f"A body with content-encoding '{encoding}' is not taken; send it as plain JSON.",
    )


def unknown_model(model: str, known: Iterable[str]) -> Fault:
    """404: ``known`` are the models the key may use."""
    names = sorted(known)
    listed = ", ".join(names[:KNOWN_MODELS_NAMED])
    more = f" and {len(names) - KNOWN_MODELS_NAMED} more" if len(names) > KNOWN_MODELS_NAMED else ""
    have = f"this key can use: {listed}{more}" if names else "this key can use no model yet"
    return Fault(404, "model_not_found", f"The model '{model}' does not exist or is not open to this key; {have}.")


def capability_missing(model: str, wanted: str, capabilities: Iterable[str]) -> Fault:
    """400: the model does not do what the path is for."""
    return Fault(
        400,
        "unsupported_model",
        f"The model '{model}' does not do {wanted}; it does {', '.join(sorted(capabilities)) or 'nothing'}.",
        param="model",
    )


def media_not_taken(model: str, what: str, at: str) -> Fault:
    """400: ``at`` is the field that holds ``what``, which is no text."""
    return Fault(
        400,
        "unsupported_content",
        f"The model '{model}' reads text only, and {at} holds {what}. Leave it out, or ask a model that has the "
        "capability 'vision'.",
        param=at,
    )


def input_too_long(at: str, tokens: int, limit: int) -> Fault:
    """400: one input of several is longer than the model's context; figures are tokens."""
    return Fault(
        400,
        "context_length_exceeded",
        f"{at} has {tokens} tokens, and the model reads at most {limit} of one input; send it in shorter pieces.",
        param=at,
    )


def too_many_tokens(field: str, asked: int, limit: int, model: str, protocol: str) -> Fault:
    """To Anthropic's clients in the words they know."""
    message = f"{field} is {asked}, and '{model}' answers with at most {limit} tokens; ask for {limit} or fewer."
    if protocol == "anthropic.messages":
        message = f"{field}: {asked} > {limit}, which is the maximum allowed number of output tokens for this model"
    return Fault(400, "max_tokens_too_large", message, param=field)


# limits and rules


def over_rate(whose: str, limit: int, unit: str, retry_after_s: float, headers: Iterable[tuple[bytes, bytes]]) -> Fault:
    """429: ``unit`` is ``requests`` or ``tokens``, ``limit`` so many a minute."""
    return Fault(
        429,
        "rate_limit_exceeded",
        f"{whose} has used its {limit} {unit} a minute; try again in {max(1, round(retry_after_s))} s.",
        kind=unit,
        retry_after_s=retry_after_s,
        headers=headers,
    )


_A_PERIOD: dict[Period, str] = {"day": "a day", "week": "a week", "month": "a month", "total": "in all"}


def over_budget(level: str, amount_micros: int, period: Period, left_micros: int, needed_micros: int) -> Fault:
    """Not 429: clients would try again and again. Figures are in the cluster's currency."""
    whose = "This key" if level.startswith("key ") else f"The {level}"
    budget = f"its budget of {money(amount_micros)} {_A_PERIOD[period]}"
    if left_micros > 0:
        message = (
            f"{whose} has {money(left_micros)} left of {budget}, and this request may cost {money(needed_micros)}. "
            "Ask for fewer tokens, or ask your administrator for more."
        )
    else:
        message = f"{whose} has spent {budget}. Ask your administrator for more."
    return Fault(402, "budget_exceeded", message, kind="insufficient_quota", headers=[NOT_AGAIN])


def refused_by_policy(rule: str, policy: str | None) -> Fault:
    """Names the rule, never what it matched."""
    named = f" of the policy '{policy}'" if policy else ""
    return Fault(
        400,
        "content_policy",
        f"The request was refused by the rule '{rule}'{named}. Remove what it forbids and send it again.",
    )


def no_such_policy(policy: str) -> Fault:
    """503: a policy that must judge the request is not defined."""
    return Fault(
        503,
        "policy_missing",
        f"The rules of the policy '{policy}' hold for this key, and there is no policy of that name, so nothing may "
        "pass. Ask your administrator to define it, or to take its name off the key's project.",
        kind="server_error",
        retry_after_s=5,
    )


def not_judged() -> Fault:
    """503: a policy must judge the request, and no verdict came."""
    return Fault(
        503,
        "guard_unavailable",
        "A policy that applies to this key must see the request first, and no verdict came in time. Try again.",
        kind="server_error",
        retry_after_s=2,
    )


def not_judgeable(param: str) -> Fault:
    """400: ``param`` holds token ids, which no policy can read."""
    return Fault(
        400,
        "content_policy",
        f"A policy that applies to this key must read the request: send '{param}' as text, not as token ids.",
        param=param,
    )


def too_long_to_judge() -> Fault:
    """413: a policy must judge the request, and there is more text in it than one check may have."""
    return Fault(
        413,
        "request_too_large",
        "A policy that applies to this key must read the request, and there is more text in it than can be judged; "
        "send less.",
    )


# what is behind


def no_endpoint(model: str, retry_after_s: float) -> Fault:
    """503: no endpoint of the model may be asked now."""
    return Fault(
        503,
        "no_endpoint",
        f"No engine serves '{model}' now; one may be starting. Try again in {max(1, round(retry_after_s))} s.",
        kind="server_error",
        retry_after_s=retry_after_s,
    )


NOT_AGAIN = (b"x-should-retry", b"false")
"""Says to OpenAI's and Anthropic's clients that trying again by themselves is no use."""


def stopped(model: str, code: Literal["system_stopped", "model_stopped"], reason: str) -> Fault:
    """503: an administrator stopped the model or all of them; ``reason`` is theirs and stands in the message."""
    what = "The system" if code == "system_stopped" else f"The model '{model}'"
    because = f": {reason.strip().rstrip('.')}" if reason.strip() else ""
    return Fault(
        503,
        code,
        f"{what} was stopped by an administrator{because}. It answers again when it is started; ask them when.",
        kind="server_error",
        headers=[NOT_AGAIN],
    )


def not_started(model: str, waited_s: float) -> Fault:
    """503: a model on demand was not ready in time."""
    return Fault(
        503,
        "model_not_ready",
        f"The model '{model}' runs on demand and was not ready within {waited_s:g} s; it is still being started, or "
        "waits for room. Try again in a minute; when it goes on, ask your administrator why it does not start.",
        kind="server_error",
        retry_after_s=60,
    )


def too_many_waiting(model: str, limit: int) -> Fault:
    """503: as many requests wait for models on demand as may."""
    return Fault(
        503,
        "too_many_waiting",
        f"The model '{model}' runs on demand and is not ready, and {limit} requests already wait, as many as may. "
        "Try again in a moment.",
        kind="server_error",
        retry_after_s=10,
    )


def busy(limit: int) -> Fault:
    """503: as many requests are in flight as one worker takes."""
    return Fault(
        503,
        "gateway_busy",
        f"The gateway already works on {limit} requests, as many as it takes. Try again in a moment.",
        kind="server_error",
        retry_after_s=1,
    )


def too_many_names() -> Fault:
    """503: the table the workers share is full."""
    return Fault(
        503,
        "gateway_busy",
        "More limits and budgets are in use at this gateway than it can count together. Try again in a moment, and "
        "tell your administrator: it needs more gateways.",
        kind="server_error",
        retry_after_s=5,
    )


def catching_up() -> Fault:
    """503: this gateway stood still and hears first what was used meanwhile."""
    return Fault(
        503,
        "gateway_busy",
        "This gateway stood still for a while and is hearing what others have used of limits and budgets meanwhile. "
        "Try again in a moment.",
        kind="server_error",
        retry_after_s=1,
    )


def not_metered() -> Fault:
    """503: usage cannot be written down."""
    return Fault(
        503,
        "metering_unavailable",
        "The gateway cannot write down what is used and answers nothing until it can. Try again in a few seconds.",
        kind="server_error",
        retry_after_s=5,
        # A new connection goes to a worker that can.
        headers=[(b"connection", b"close")],
    )


def deadline(seconds: float) -> Fault:
    """504: no engine had answered in time."""
    return Fault(
        504,
        "deadline_exceeded",
        f"The engine did not answer within {seconds:g} s. Ask for fewer tokens, or try again.",
        kind="server_error",
    )


def stalled(seconds: float) -> Fault:
    """504: the engine began to answer and then sent nothing."""
    return Fault(
        504, "upstream_stalled", f"The engine sent nothing for {seconds:g} s and was given up.", kind="server_error"
    )


def stopping() -> Fault:
    """503: this gateway is being stopped."""
    return Fault(
        503,
        "gateway_stopping",
        "This gateway is being stopped and could not wait for the end of the answer. Try again.",
        kind="server_error",
        retry_after_s=1,
    )


def upstream_broken() -> Fault:
    """502: the engine failed after a part of its answer was passed on."""
    return Fault(
        502,
        "upstream_error",
        "The engine stopped before the answer was complete. What arrived so far is all there is; try again.",
        kind="server_error",
    )


def upstream_failed(status: int | None) -> Fault:
    """The last engine that was tried failed. What it said of itself is in its own log, and no client's matter."""
    if status in (429, 503):
        return Fault(
            503,
            "upstream_overloaded",
            "The engine is overloaded. Try again in a moment.",
            kind="server_error",
            retry_after_s=2,
        )
    status_text = f" with status {status}" if status is not None else ""
    return Fault(
        502,
        "upstream_error",
        f"The engine failed{status_text}. Try again; when it goes on, tell your administrator the request id.",
        kind="server_error",
    )


def upstream_odd() -> Fault:
    """502: the engine's answer cannot be passed on."""
    return Fault(
        502,
        "upstream_error",
        "The engine's answer cannot be passed on: it is not in its protocol, or longer than any answer is. Try again; "
        "when it goes on, tell your administrator the request id.",
        kind="server_error",
    )


def refused_unsaid(status: int) -> Fault:
    """The engine refused the request with this status, in words that are not the client's business."""
    return Fault(
        status,
        None,
        "The engine refused this request and gave no reason that can be passed on; check the types of its fields.",
    )


# the gateway itself


def internal() -> Fault:
    """500: a fault of the gateway's own."""
    return Fault(
        500,
        "internal_error",
        "The gateway failed on this request and wrote down why; tell your administrator the request id.",
        kind="server_error",
    )


def bus_unavailable(why: str) -> Fault:
    """503: the bus is away, over which the admin API works."""
    return Fault(503, "bus_unavailable", f"The cluster's bus is away: {why}.", kind="server_error", retry_after_s=5)


def not_answered(why: str) -> Fault:
    """A question nobody answered."""
    return Fault(502, "not_answered", why, kind="server_error")
