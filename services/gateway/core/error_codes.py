"""What every error code means and what to do about it: the table of ``docs/errors.md``."""

from __future__ import annotations

from typing import NamedTuple


class ErrorCode(NamedTuple):
    """One ``code`` of an error answer, for whoever gets it."""

    when: str
    what_to_do: str


ERROR_CODES = {
    # who may
    "invalid_api_key": ErrorCode(
        "no key was sent, or one that is unknown, revoked or expired",
        "send a key that is valid, in `Authorization: Bearer`",
    ),
    "too_many_unknown_keys": ErrorCode(
        "too many wrong keys came from one address (`unknown_keys_per_minute`); valid ones are answered all the same",
        "correct the key; `retry-after` says when to try",
    ),
    "keys_unavailable": ErrorCode(
        "the gateway has not read the list of keys yet, or cannot hear the bus, and does not know this one",
        "try again; when it goes on: `llmgw status`",
    ),
    "role_missing": ErrorCode(
        "the path is for another role than the key has", "use a key made with `llmgw key create --role`"
    ),
    # what was asked
    "unknown_url": ErrorCode("there is no such path", "look at the [paths there are](clients.md#what-there-is)"),
    "method_not_allowed": ErrorCode("the path does not take this method", "use one that the header `allow` names"),
    "invalid_json": ErrorCode("the body is not JSON", "send one JSON object"),
    "invalid_type": ErrorCode(
        "a field has another type or value than it may", "`param` names the field, the message what is expected"
    ),
    "empty_array": ErrorCode("`messages` is empty", "send at least one message"),
    "missing_required_parameter": ErrorCode("a field that must be there is not", "send the field `param` names"),
    "unsupported_parameter": ErrorCode(
        "the field asks for what an engine cannot be asked for",
        "leave out the field `param` names, or send what the message says",
    ),
    "duplicate_field": ErrorCode("an object of the body has a field twice", "send the field the message names once"),
    "request_too_large": ErrorCode(
        "the body is longer than `max_body_bytes`, or has more text than a policy can judge", "send less"
    ),
    "unsupported_content_encoding": ErrorCode("the body is compressed", "send plain JSON"),
    "model_not_found": ErrorCode(
        "there is no such model, or it is not open to this key", "use a model the message names"
    ),
    "unsupported_model": ErrorCode(
        "the model does not do what the path is for", "use a model that has the capability the message names"
    ),
    "unsupported_content": ErrorCode(
        "the model reads text only, and the request holds something else",
        "leave it out, or use a model with the capability `vision`",
    ),
    "context_length_exceeded": ErrorCode(
        "the prompt, or prompt and answer together, are longer than the context; of embeddings, one input is",
        "send less, or ask for fewer tokens; the message has the figures",
    ),
    "max_tokens_too_large": ErrorCode(
        "more tokens are asked for than the model answers with", "ask for as many as the message says"
    ),
    # limits and rules
    "rate_limit_exceeded": ErrorCode(
        "the key, or a level above it, is over its requests or tokens a minute; `type` says which",
        "wait as `retry-after` says; `x-ratelimit-*` tell how much is left",
    ),
    "budget_exceeded": ErrorCode(
        "a budget has no room for what the request may cost ([budgets](clients.md#budgets)); SDKs do not retry it",
        "ask for fewer tokens (`max_tokens`), or ask an administrator for more",
    ),
    "content_policy": ErrorCode(
        "a rule refused the request, or token ids were sent where a rule must read text",
        "remove what the rule forbids; the message names rule and policy, never the text",
    ),
    "policy_missing": ErrorCode(
        "the key's allowance names a policy that is not defined", "define it, or take its name off the allowance"
    ),
    "guard_unavailable": ErrorCode(
        "a policy must see the request first, and no verdict came in `verdict_timeout_s`",
        "try again; when it goes on, see whether a guard runs: `llmgw status`",
    ),
    # what is behind
    "no_endpoint": ErrorCode(
        "no engine serves the model now", "try again after `retry-after`; `llmgw explain MODEL` says what it waits for"
    ),
    "model_stopped": ErrorCode(
        "an administrator stopped the model; SDKs do not retry it", "`llmgw model start MODEL` starts it"
    ),
    "system_stopped": ErrorCode(
        "an administrator stopped every model; SDKs do not retry it", "`llmgw system start` starts them"
    ),
    "model_not_ready": ErrorCode(
        "the model runs on demand and did not start within `wake_wait_s`",
        "try again in a minute; `llmgw explain MODEL` says what it waits for",
    ),
    "too_many_waiting": ErrorCode(
        "the model runs on demand, and `wake_waiting` requests wait for it already", "try again in a moment"
    ),
    "gateway_busy": ErrorCode(
        "the gateway has as many requests as it takes, counts as many limits and budgets as it can, or stood still "
        "and is hearing what others used meanwhile; the message says which",
        "try again; when it goes on, add gateways",
    ),
    "metering_unavailable": ErrorCode(
        "what is used cannot be written down: the spool is full, or its disk is",
        "make room, or bring the bus back ([troubleshooting](troubleshooting.md))",
    ),
    "gateway_stopping": ErrorCode("the gateway is being stopped", "try again; another one answers"),
    "deadline_exceeded": ErrorCode(
        "no answer within `deadline_s`", "ask for fewer tokens or for a stream, or try again"
    ),
    "upstream_stalled": ErrorCode("the engine sent nothing for `stall_s`", "try again"),
    "upstream_overloaded": ErrorCode("every engine that was asked says it is overloaded", "try again in a moment"),
    "upstream_error": ErrorCode(
        "every engine that was asked failed, stopped in the middle, or answered what cannot be passed on",
        "try again; when it goes on, `llmgw model logs MODEL` and the request id",
    ),
    "internal_error": ErrorCode(
        "the gateway failed, and wrote down why", "tell an administrator the request id; it is in the gateway's log"
    ),
    # administration over HTTP
    "bus_unavailable": ErrorCode("the cluster's bus is away", "try again; when it goes on: `llmgw status`"),
    "not_answered": ErrorCode("nobody answered the question in time", "see who runs: `llmgw status`"),
}
"""Code to its meaning. A test holds them against the codes that faults are made with."""
