"""Sentences of what was used."""

from __future__ import annotations

from libs.events import usage

from .registry import says
from .words import count, seconds


@says(usage.UsageBatch)
def _usage_batch(event: usage.UsageBatch) -> str:
    if len(event.records) == 1:
        record = event.records[0]
        how = "streamed" if record.stream else "answered"
        first = f", first token after {record.first_token_ms:.0f} ms" if record.first_token_ms is not None else ""
        if record.status == "ok":
            return (
                f"{record.model} {how} {record.request_id} for {record.project}: {record.prompt_tokens} prompt and "
                f"{record.completion_tokens} completion tokens in {seconds(record.duration_ms)}{first}"
            )
        return (
            f"{record.request_id} for {record.project} ended as {record.status} (HTTP {record.http_status}) at "
            f"{record.model_asked}: {record.prompt_tokens} prompt and {record.completion_tokens} completion tokens"
        )
    ok = sum(record.status == "ok" for record in event.records)
    tokens = sum(record.completion_tokens for record in event.records)
    prompts = sum(record.prompt_tokens for record in event.records)
    finished = count(len(event.records), "request")
    return (
        f"gateway {event.gateway_id} finished {finished}, {ok} of them well: {prompts} prompt and "
        f"{tokens} completion tokens"
    )
