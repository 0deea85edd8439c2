"""Writes the corpus: ``python -m tests.unit.gateway.core.protocols.record``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.gateway.core.faults import Fault
from services.gateway.core.json.fields import Translated
from services.gateway.core.protocols.anthropic_messages import (
    chat_to_message,
    chat_to_messages,
    message_to_chat,
    messages_to_chat,
)
from services.gateway.core.protocols.openai_responses import (
    chat_to_response,
    chat_to_responses,
    response_to_chat,
    responses_to_chat,
)

from . import engines
from .conversations import CHAT, MESSAGES, RESPONSES, Json, clock

DATA = Path(__file__).parents[4] / "data" / "conversations"
TOKEN = "t1"
CREATED = engines.CREATED


def asked(translate: Callable[[], Translated]) -> Json:
    """The engine's request and the warnings, or what was wrong."""
    try:
        done = translate()
    except Fault as fault:
        return {"refused": fault.message, "param": fault.param}
    return {"body": json.loads(done.encoded()), **({"warnings": done.warnings} if done.warnings else {})}


def events(stream: bytes) -> list[str]:
    assert stream.endswith(b"\n\n")
    return stream.decode()[:-2].split("\n\n")


def of_messages(request: Json, answer: Json) -> Json:
    shape = chat_to_message.shape_of(request, TOKEN)
    chat = asked(lambda: messages_to_chat.request(request))
    return {
        "chat": chat,
        "chat, thinking passed": asked(lambda: messages_to_chat.request(request, "pass")),
        "chat, thinking dropped": asked(lambda: messages_to_chat.request(request, "drop")),
        "messages again": asked(
            lambda: chat_to_messages.request(without_engine_fields(messages_to_chat.request(request, "pass").body), 1)
        ),
        "whole": json.loads(chat_to_message.message(engines.chat_whole(answer), shape)),
        "stream": events(chat_to_message.MessageEvents(shape).feed(engines.chat_stream(answer))),
    }


def without_engine_fields(chat: Json) -> Json:
    """What only engines take; a backend that speaks Messages would be refused them."""
    own = ("continue_final_message", "add_generation_prompt", "chat_template_kwargs", "min_p")
    return {name: value for name, value in chat.items() if name not in own}


def of_responses(request: Json, answer: Json) -> Json:
    shape = chat_to_response.shape_of(request, TOKEN, clock)
    return {
        "chat": asked(lambda: responses_to_chat.request(request)),
        "whole": json.loads(chat_to_response.response(engines.chat_whole(answer), shape)),
        "stream": events(chat_to_response.ResponseEvents(shape).feed(engines.chat_stream(answer))),
    }


def of_chat(request: Json, answer: Json) -> Json:
    from_messages = message_to_chat.ChatOfMessageEvents("chatcmpl-1", CREATED)
    from_responses = response_to_chat.ChatOfResponseEvents("chatcmpl-1")
    return {
        "messages": asked(lambda: chat_to_messages.request(request, 4096)),
        "responses": asked(lambda: chat_to_responses.request(request)),
        "whole of a Message": json.loads(message_to_chat.chat(engines.message_whole(answer), "chatcmpl-1", CREATED)),
        "stream of a Message": events(from_messages.feed(engines.message_stream(answer))),
        "whole of a Response": json.loads(response_to_chat.chat(engines.response_whole(answer), "chatcmpl-1")),
        "stream of a Response": events(from_responses.feed(engines.response_stream(answer))),
    }


FAMILIES: dict[str, tuple[dict[str, tuple[Json, Json]], Callable[[Json, Json], Json]]] = {
    "messages": (MESSAGES, of_messages),
    "responses": (RESPONSES, of_responses),
    "chat": (CHAT, of_chat),
}


def conversation(family: str, name: str) -> Json:
    conversations, golden = FAMILIES[family]
    request, answer = conversations[name]
    return {"client": family, "request": request, "answer": answer, "golden": golden(request, answer)}


def all_names() -> list[tuple[str, str]]:
    return [(family, name) for family, (conversations, _) in FAMILIES.items() for name in conversations]


def path_of(family: str, name: str) -> Path:
    return DATA / f"{family}.{name}.json"


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
    for family, name in all_names():
        path_of(family, name).write_text(written(conversation(family, name)), encoding="utf-8")


if __name__ == "__main__":
    main()
