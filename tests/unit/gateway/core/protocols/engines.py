"""Answers as engines of each protocol send them, whole and streamed, made from the pieces of ``conversations``.

Written from the protocols' references and not with the code under test.
"""

from __future__ import annotations

import json
from typing import Any

from .conversations import Json

CREATED = 1_700_000_000
PIECE = 5
"""Characters of text in one delta."""


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def cut(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def kind_of(piece: Json) -> str:
    return next(kind for kind in ("text", "thinking", "refusal", "name") if kind in piece)


# chat


def chat_usage(answer: Json) -> Json:
    usage = answer["usage"]
    out = {"prompt_tokens": usage["prompt"], "completion_tokens": usage["completion"]}
    out["total_tokens"] = usage["prompt"] + usage["completion"]
    if usage["cached"]:
        out["prompt_tokens_details"] = {"cached_tokens": usage["cached"]}
    if usage["reasoning"]:
        out["completion_tokens_details"] = {"reasoning_tokens": usage["reasoning"]}
    return out


def chat_whole(answer: Json) -> bytes:
    message: Json = {"role": "assistant", "content": None}
    for piece in answer["pieces"]:
        match kind_of(piece):
            case "text":
                message["content"] = (message["content"] or "") + piece["text"]
            case "thinking":
                message["reasoning_content"] = piece["thinking"]
            case "refusal":
                message["refusal"] = piece["refusal"]
            case _:
                function = {"name": piece["name"], "arguments": piece["arguments"]}
                calls = message.setdefault("tool_calls", [])
                calls.append({"id": piece["id"], "type": "function", "function": function})
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": answer["finish"],
        "stop_reason": answer.get("stop_reason"),
    }
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": CREATED, "model": "m", "choices": [choice]}
    return dumped(body | {"usage": chat_usage(answer)}).encode()


def chat_chunks(answer: Json) -> list[Json]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED, "model": "m"}

    def chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}

    chunks = [chunk({"role": "assistant", "content": ""})]
    calls = 0
    for piece in answer["pieces"]:
        match kind_of(piece):
            case "name":
                opener = {"index": calls, "id": piece["id"], "type": "function"}
                chunks.append(chunk({"tool_calls": [opener | {"function": {"name": piece["name"], "arguments": ""}}]}))
                for part in cut(piece["arguments"]):
                    chunks.append(chunk({"tool_calls": [{"index": calls, "function": {"arguments": part}}]}))
                calls += 1
            case kind:
                field = {"text": "content", "thinking": "reasoning_content"}.get(kind, kind)
                chunks += [chunk({field: part}) for part in cut(piece[kind])]
    chunks.append(chunk({}, answer["finish"], stop_reason=answer.get("stop_reason")))
    return [*chunks, {**head, "choices": [], "usage": chat_usage(answer)}]


def chat_stream(answer: Json) -> bytes:
    return "".join(f"data: {dumped(chunk)}\n\n" for chunk in chat_chunks(answer)).encode() + b"data: [DONE]\n\n"


# messages

STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def message_usage(answer: Json) -> Json:
    usage = answer["usage"]
    return {
        "input_tokens": usage["prompt"] - usage["cached"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage["cached"],
        "output_tokens": usage["completion"],
    }


def message_blocks(answer: Json) -> list[Json]:
    blocks: list[Json] = []
    for piece in answer["pieces"]:
        match kind_of(piece):
            case "name":
                value = json.loads(piece["arguments"] or "{}")
                blocks.append({"type": "tool_use", "id": piece["id"], "name": piece["name"], "input": value})
            case "thinking":
                blocks.append({"type": "thinking", "thinking": piece["thinking"], "signature": "EqQBsigned=="})
            case kind:
                blocks.append({"type": "text", "text": piece[kind]})
    return blocks


def message(answer: Json, content: list[Json], stop: str | None, usage: Json) -> Json:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content}
    return head | {"stop_reason": stop, "stop_sequence": None, "usage": usage}


def message_whole(answer: Json) -> bytes:
    stop = STOPS[answer["finish"]]
    return dumped(message(answer, message_blocks(answer), stop, message_usage(answer))).encode()


def event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {dumped({'type': kind, **fields})}\n\n"


def message_stream(answer: Json) -> bytes:
    usage = message_usage(answer)
    out = [event("message_start", message=message(answer, [], None, usage | {"output_tokens": 1})), event("ping")]
    for index, block in enumerate(message_blocks(answer)):
        match block["type"]:
            case "text":
                empty, deltas = (
                    {"type": "text", "text": ""},
                    [("text_delta", "text", part) for part in cut(block["text"])],
                )
            case "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [("thinking_delta", "thinking", part) for part in cut(block["thinking"])]
                deltas.append(("signature_delta", "signature", block["signature"]))
            case _:
                empty = block | {"input": {}}
                deltas = [("input_json_delta", "partial_json", part) for part in ["", *cut(dumped(block["input"]))]]
        out.append(event("content_block_start", index=index, content_block=empty))
        for kind, field, part in deltas:
            out.append(event("content_block_delta", index=index, delta={"type": kind, field: part}))
        out.append(event("content_block_stop", index=index))
    end = {"stop_reason": STOPS[answer["finish"]], "stop_sequence": None}
    out.append(event("message_delta", delta=end, usage={"output_tokens": usage["output_tokens"]}))
    return ("".join(out) + event("message_stop")).encode()


# responses


def response_usage(answer: Json) -> Json:
    usage = answer["usage"]
    return {
        "input_tokens": usage["prompt"],
        "input_tokens_details": {"cached_tokens": usage["cached"]},
        "output_tokens": usage["completion"],
        "output_tokens_details": {"reasoning_tokens": usage["reasoning"]},
        "total_tokens": usage["prompt"] + usage["completion"],
    }


def response_items(answer: Json) -> list[Json]:
    items: list[Json] = []
    for index, piece in enumerate(answer["pieces"]):
        match kind_of(piece):
            case "name":
                item = {"type": "function_call", "id": f"fc_{index}", "call_id": piece["id"], "name": piece["name"]}
                items.append(item | {"arguments": piece["arguments"], "status": "completed"})
            case "thinking":
                part = {"type": "summary_text", "text": piece["thinking"]}
                items.append({"type": "reasoning", "id": f"rs_{index}", "summary": [part]})
            case kind:
                part = {"type": "refusal", "refusal": piece[kind]}
                if kind == "text":
                    part = {"type": "output_text", "text": piece[kind], "annotations": []}
                item = {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "completed"}
                items.append(item | {"content": [part]})
    return items


def response(answer: Json, items: list[Json], status: str) -> Json:
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer["finish"])
    done = status != "in_progress"
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": CREATED,
        "model": "m",
        "status": ("incomplete" if reason else "completed") if done else status,
        "incomplete_details": {"reason": reason} if done and reason else None,
        "error": None,
        "output": items,
        "usage": response_usage(answer) if done else None,
    }


def response_whole(answer: Json) -> bytes:
    return dumped(response(answer, response_items(answer), "completed")).encode()


def response_stream(answer: Json) -> bytes:
    out: list[str] = []

    def add(kind: str, **fields: Any) -> None:
        out.append(event(kind, sequence_number=len(out), **fields))

    add("response.created", response=response(answer, [], "in_progress"))
    add("response.in_progress", response=response(answer, [], "in_progress"))
    items = response_items(answer)
    for index, item in enumerate(items):
        at = {"output_index": index, "item_id": item["id"]}
        match item["type"]:
            case "function_call":
                add("response.output_item.added", output_index=index, item=item | {"arguments": ""})
                for part in cut(item["arguments"]):
                    add("response.function_call_arguments.delta", **at, delta=part)
                add("response.function_call_arguments.done", **at, arguments=item["arguments"])
            case "reasoning":
                add("response.output_item.added", output_index=index, item=item | {"summary": []})
                text = item["summary"][0]["text"]
                add(
                    "response.reasoning_summary_part.added",
                    **at,
                    summary_index=0,
                    part={"type": "summary_text", "text": ""},
                )
                for part in cut(text):
                    add("response.reasoning_summary_text.delta", **at, summary_index=0, delta=part)
                add("response.reasoning_summary_text.done", **at, summary_index=0, text=text)
            case _:
                add("response.output_item.added", output_index=index, item=item | {"content": []})
                content = item["content"][0]
                kind = "refusal" if content["type"] == "refusal" else "text"
                name = "response.refusal" if kind == "refusal" else "response.output_text"
                for part in cut(content[kind]):
                    add(f"{name}.delta", **at, content_index=0, delta=part)
                add(f"{name}.done", **at, content_index=0, **{kind: content[kind]})
        add("response.output_item.done", output_index=index, item=item)
    whole = response(answer, items, "completed")
    add(f"response.{whole['status']}", response=whole)
    return "".join(out).encode()
