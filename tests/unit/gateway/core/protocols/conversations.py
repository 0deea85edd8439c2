"""The corpus of conversations: what clients send and what models answer, in every protocol.

``python -m tests.unit.gateway.core.protocols.record`` writes each to ``tests/data/conversations`` together with what
the gateway makes of it; the tests compare. A change of a golden file is a change of behaviour and is read as one.
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def clock() -> float:
    """When an answer is complete."""
    return 1_700_000_002.5


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CACHE = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather in a city.", "input_schema": SCHEMA}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
WEATHER_F = {"type": "function", "name": "weather", "description": "The weather in a city.", "parameters": SCHEMA}
WEATHER_C = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city.", "parameters": SCHEMA},
}
SIGNED = {"type": "thinking", "thinking": "Paris, then.", "signature": "EqQBCkYIBhgCKkBsigned=="}


def text(value: str, **more: Any) -> Json:
    return {"type": "text", "text": value, **more}


def image(data: str = PIXEL, **more: Any) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}, **more}


def use(call_id: str, name: str, value: Json, **more: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": value, **more}


def result(call_id: str, content: Any = None, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, **({} if content is None else {"content": content}), **more}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> Json:
    return {"role": "assistant", "content": content, **more}


def call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# what models answer: pieces in order, whatever the protocol


def answer(*pieces: Any, finish: str = "stop", prompt: int = 12, cached: int = 0, **more: Any) -> Json:
    """Pieces: a text, ``{"thinking": …}``, ``{"refusal": …}`` or ``{"id", "name", "arguments"}``."""
    usage = {"prompt": prompt, "cached": cached, "completion": 7, "reasoning": 0}
    listed = [{"text": piece} if isinstance(piece, str) else piece for piece in pieces]
    for piece in listed:
        if "thinking" in piece:
            usage["reasoning"] = 3
    return {"pieces": listed, "finish": finish, "usage": usage, **more}


def tool(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "name": name, "arguments": arguments}


HELLO = answer("Hello! How can I help?")
CALLS = answer(tool("call_1", "weather", '{"city": "Paris"}'), finish="tool_calls")
TWO_CALLS = answer(
    "Both.",
    tool("call_1", "weather", '{"city": "Paris"}'),
    tool("call_2", "weather", '{"city": "Köln"}'),
    finish="tool_calls",
)


def _messages(messages: list[Json], **more: Any) -> Json:
    return {"model": "m", "max_tokens": 100, "messages": messages, **more}


HI = [user("Hi")]
ASKED = [
    user("What is the weather in Paris?"),
    assistant([text("Let me look."), use("toolu_1", "weather", {"city": "Paris"})]),
]

MESSAGES: dict[str, tuple[Json, Json]] = {
    "plain": (_messages(HI), HELLO),
    "turns": (_messages([user("Hi"), assistant("Hello"), user("And now?")], temperature=0.5, top_p=0.9), HELLO),
    "sampling": (_messages(HI, temperature=0, top_k=40, stop_sequences=["END", "\n\n"]), answer("Hm", finish="length")),
    "engine-fields": (_messages(HI, min_p=0.1, seed=7, chat_template_kwargs={"a": 1}), HELLO),
    "system-text": (_messages(HI, system="Be brief."), HELLO),
    "system-array": (_messages(HI, system=[text("Be brief."), text("Be kind.")]), HELLO),
    "system-one-of-array": (_messages(HI, system=[text("Be brief.")]), HELLO),
    "system-cached": (
        _messages(HI, system=[text("Long."), text("Longer.", cache_control=CACHE)]),
        answer("k", cached=8),
    ),
    "cached-turn": (
        _messages([user([text("Much."), text("More.", cache_control=CACHE), text("?")])]),
        answer("k", cached=12),
    ),
    "cached-tool": (_messages(HI, tools=[WEATHER, CLOCK | {"cache_control": CACHE}]), HELLO),
    "cached-ttl": (_messages([user([text("a", cache_control=CACHE | {"ttl": "1h"})])]), HELLO),
    "image": (_messages([user([image(), text("What is it?")])]), answer("A pixel.")),
    "image-url": (
        _messages(
            [user([{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, text("?")])]
        ),
        answer("A cat."),
    ),
    "image-cached": (_messages([user([image(cache_control=CACHE), text("?")])]), answer("A pixel.")),
    "images-two": (_messages([user([text("First:"), image(), text("Second:"), image()])]), answer("Alike.")),
    "document-text": (
        _messages(
            [
                user(
                    [
                        {
                            "type": "document",
                            "title": "Note",
                            "source": {"type": "text", "media_type": "text/plain", "data": "Words."},
                        },
                        text("Sum up."),
                    ]
                )
            ]
        ),
        answer("Words."),
    ),
    "document-pdf": (
        _messages(
            [
                user(
                    [
                        {
                            "type": "document",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                        },
                        text("?"),
                    ]
                )
            ]
        ),
        answer("Empty."),
    ),
    "tools": (_messages([user("Weather?")], tools=[WEATHER], tool_choice={"type": "auto"}), CALLS),
    "tools-parallel": (_messages([user("Paris and Köln?")], tools=[WEATHER]), TWO_CALLS),
    "tools-not-parallel": (
        _messages([user("?")], tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True}),
        CALLS,
    ),
    "tool-forced": (
        _messages([user("?")], tools=[WEATHER, CLOCK], tool_choice={"type": "tool", "name": "clock"}),
        answer(tool("c", "clock", ""), finish="tool_calls"),
    ),
    "tools-forbidden": (_messages([user("?")], tools=[WEATHER], tool_choice={"type": "none"}), HELLO),
    "tool-strict": (_messages([user("?")], tools=[WEATHER | {"strict": True, "type": "custom"}]), CALLS),
    "tool-called-as-stop": (
        _messages([user("?")], tools=[WEATHER]),
        answer("I look.", tool("x", "weather", '{"city":"Rome"}'), finish="stop"),
    ),
    "tool-cut": (
        _messages([user("?")], tools=[WEATHER]),
        answer(tool("x", "weather", '{"city": "Rome", "days": [1, 2'), finish="length"),
    ),
    "result-text": (_messages([*ASKED, user([result("toolu_1", "18 °C")])], tools=[WEATHER]), answer("It is mild.")),
    "result-list": (
        _messages([*ASKED, user([result("toolu_1", [text("18 °C"), text("dry")])])], tools=[WEATHER]),
        answer("Mild."),
    ),
    "result-image": (
        _messages([*ASKED, user([result("toolu_1", [text("A map:"), image()])])], tools=[WEATHER]),
        answer("Sunny."),
    ),
    "result-error": (
        _messages([*ASKED, user([result("toolu_1", "no such city", is_error=True)])], tools=[WEATHER]),
        answer("Sorry."),
    ),
    "result-error-list": (
        _messages([*ASKED, user([result("toolu_1", [text("timeout")], is_error=True)])]),
        answer("Sorry."),
    ),
    "result-none": (_messages([*ASKED, user([result("toolu_1")])], tools=[WEATHER]), answer("Nothing.")),
    "result-cached": (
        _messages([*ASKED, user([result("toolu_1", "18 °C", cache_control=CACHE)])]),
        answer("Mild.", cached=6),
    ),
    "result-then-text": (
        _messages([*ASKED, user([result("toolu_1", "18 °C"), text("And Rome?")])], tools=[WEATHER]),
        CALLS,
    ),
    "results-parallel": (
        _messages(
            [
                user("Paris and Köln?"),
                assistant([use("t1", "weather", {"city": "Paris"}), use("t2", "weather", {"city": "Köln"})]),
                user([result("t1", "18"), result("t2", "11")]),
            ]
        ),
        answer("18 and 11."),
    ),
    "thinking": (
        _messages([user("Think.")], thinking={"type": "enabled", "budget_tokens": 2048}),
        answer({"thinking": "Let me see. "}, "42."),
    ),
    "thinking-adaptive": (
        _messages([user("Think.")], thinking={"type": "adaptive"}, output_config={"effort": "max"}),
        answer({"thinking": "Hm."}, "42."),
    ),
    "thinking-hidden": (_messages([user("Think.")]), answer({"thinking": "Secret."}, "42.")),
    "thinking-off": (_messages([user("?")], thinking={"type": "disabled"}), HELLO),
    "thinking-then-tool": (
        _messages([user("?")], tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 20000}),
        answer({"thinking": "I must look."}, tool("c1", "weather", '{"city":"Oslo"}'), finish="tool_calls"),
    ),
    "thinking-returned": (
        _messages(
            [
                user("?"),
                assistant([SIGNED, text("I look."), use("t1", "weather", {"city": "Paris"})]),
                user([result("t1", "18")]),
            ],
            tools=[WEATHER],
            thinking={"type": "enabled", "budget_tokens": 8000},
        ),
        answer({"thinking": "18, so mild."}, "Mild."),
    ),
    "thinking-redacted": (
        _messages(
            [user("?"), assistant([{"type": "redacted_thinking", "data": "EmwKAhgB"}, text("Yes.")]), user("Why?")]
        ),
        answer("Because."),
    ),
    "thinking-unsigned": (
        _messages(
            [
                user("?"),
                assistant([{"type": "thinking", "thinking": "Ours.", "signature": "bGxtZ3c="}, text("Yes.")]),
                user("Why?"),
            ]
        ),
        answer("Because."),
    ),
    "refusal": (_messages([user("Do harm.")]), answer({"refusal": "I will not."})),
    "refusal-filtered": (_messages([user("Do harm.")]), answer("I", finish="content_filter")),
    "stop-sequence": (_messages(HI, stop_sequences=["END"]), answer("The ", stop_reason="END")),
    "prefill": (_messages([user("Haiku"), assistant("Winter ")]), answer("night")),
    "empty-answer": (_messages(HI), answer()),
    "empty-content": (_messages([user([]), assistant(""), user("?")]), HELLO),
    "unicode": (_messages([user('\u0000\u2028 🏳️‍🌈 \ud7ff e\u0301 "q" \\ /')]), answer('🧑‍🚀 "ok" \\n \u2029 é')),
    "huge-arguments": (
        _messages([user("?")], tools=[WEATHER]),
        answer(tool("c", "weather", json.dumps({"city": "x" * 5000, "n": list(range(300))})), finish="tool_calls"),
    ),
    "numbers": (
        _messages(
            [
                *ASKED[:1],
                assistant(
                    [use("t", "weather", {"a": 12345678901234567890, "b": 0.1, "c": 1e30, "d": None, "e": [True, {}]})]
                ),
                user([result("t", "ok")]),
            ]
        ),
        HELLO,
    ),
    "json-schema": (
        _messages([user("City?")], output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
        answer('{"city":"Paris"}'),
    ),
    "json-schema-beta": (
        _messages([user("City?")], output_format={"type": "json_schema", "schema": SCHEMA}),
        answer('{"city":"Paris"}'),
    ),
    "user-id": (_messages(HI, metadata={"user_id": "u-1"}), HELLO),
    "client-tools": (
        _messages(
            HI,
            tools=[
                {"type": "bash_20250124", "name": "bash"},
                {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9},
                {"type": "text_editor_20250124", "name": "str_replace_editor", "cache_control": CACHE},
                {"type": "memory_20250818", "name": "memory"},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
            ],
            tool_choice={"type": "tool", "name": "bash"},
        ),
        answer(tool("c1", "bash", '{"command": "ls"}'), finish="tool_calls"),
    ),
    "system-in-the-middle": (
        _messages(
            [
                user("Hi"),
                {"role": "system", "content": [text("It is noon.", cache_control=CACHE)]},
                assistant("Hello"),
                {"role": "system", "content": "Be brief."},
                user("?"),
            ],
            system="Be kind.",
        ),
        HELLO,
    ),
    "tools-changed": (
        _messages(
            [
                user("Hi"),
                {
                    "role": "system",
                    "content": [
                        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": CLOCK}},
                        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "weather"}},
                    ],
                },
                assistant([use("t1", "ToolSearch", {"query": "weather"})]),
                user([result("t1", [{"type": "tool_reference", "tool_name": "weather"}])]),
            ],
            tools=[WEATHER | {"defer_loading": True}],
        ),
        CALLS,
    ),
    "ran-at-anthropic": (
        _messages(
            [
                user(
                    [
                        {"type": "compaction", "content": "We talked of Paris."},
                        {
                            "type": "search_result",
                            "source": "https://example.com",
                            "title": "Paris",
                            "content": [text("A city.")],
                        },
                    ]
                ),
                assistant(
                    [
                        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
                        {
                            "type": "web_search_tool_result",
                            "tool_use_id": "s1",
                            "content": [{"type": "web_search_result", "title": "T", "encrypted_content": "gAAA"}],
                        },
                        text("Found."),
                    ]
                ),
                user("And?"),
            ]
        ),
        HELLO,
    ),
    "hints": (_messages(HI, service_tier="auto", context_management={"edits": []}, cache_control=CACHE), HELLO),
    "citations": (
        _messages(
            [
                user("?"),
                assistant([text("Cited.", citations=[{"type": "char_location", "cited_text": "x"}])]),
                user("?"),
            ]
        ),
        HELLO,
    ),
    "text-after-tools": (
        _messages([user("?")], tools=[WEATHER]),
        answer(tool("c", "weather", "{}"), "And so.", finish="tool_calls"),
    ),
}


def _responses(given: Any, **more: Any) -> Json:
    return {"model": "m", "input": given, **more}


def said(role: str, content: Any) -> Json:
    return {"role": role, "content": content}


CALLED = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Paris"}'}
CALLED_TOO = {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": '{"city":"Köln"}'}
GIVEN = {"type": "function_call_output", "call_id": "call_1", "output": "18 °C"}

RESPONSES: dict[str, tuple[Json, Json]] = {
    "plain": (_responses("Hi"), HELLO),
    "instructions": (_responses("Hi", instructions="Be brief."), HELLO),
    "instructions-and-developer": (
        _responses([said("developer", "Be kind."), said("user", "Hi")], instructions="Be brief."),
        HELLO,
    ),
    "turns": (
        _responses(
            [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "msg_1",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
                },
                said("user", "And now?"),
            ]
        ),
        HELLO,
    ),
    "sampling": (
        _responses("Hi", temperature=0.2, top_p=0.8, max_output_tokens=20, user="u-1"),
        answer("Hm", finish="length"),
    ),
    "engine-fields": (_responses("Hi", min_p=0.1, top_k=5), HELLO),
    "image": (
        _responses(
            [
                said(
                    "user",
                    [
                        {"type": "input_text", "text": "?"},
                        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "low"},
                    ],
                )
            ]
        ),
        answer("A pixel."),
    ),
    "file": (
        _responses(
            [
                said(
                    "user",
                    [{"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}],
                )
            ]
        ),
        answer("Empty."),
    ),
    "tools": (_responses("Weather?", tools=[WEATHER_F], tool_choice="auto"), CALLS),
    "tools-parallel": (_responses("Both?", tools=[WEATHER_F], parallel_tool_calls=True), TWO_CALLS),
    "tool-forced": (
        _responses("?", tools=[WEATHER_F | {"strict": True}], tool_choice={"type": "function", "name": "weather"}),
        CALLS,
    ),
    "tools-required": (_responses("?", tools=[WEATHER_F], tool_choice="required", parallel_tool_calls=False), CALLS),
    "tool-cut": (_responses("?", tools=[WEATHER_F]), answer(tool("x", "weather", '{"city": "Ro'), finish="length")),
    "outputs": (_responses([said("user", "?"), CALLED, GIVEN], tools=[WEATHER_F]), answer("Mild.")),
    "outputs-parallel": (
        _responses([said("user", "?"), CALLED, CALLED_TOO, GIVEN, GIVEN | {"call_id": "call_2", "output": "11"}]),
        answer("18 and 11."),
    ),
    "output-list": (
        _responses(
            [
                said("user", "?"),
                CALLED,
                GIVEN
                | {
                    "output": [
                        {"type": "input_text", "text": "18"},
                        {"type": "input_image", "image_url": "https://example.com/m.png"},
                    ]
                },
            ]
        ),
        answer("Mild."),
    ),
    "text-and-call": (_responses([said("user", "?"), said("assistant", "I look."), CALLED, GIVEN]), answer("Mild.")),
    "reasoning": (_responses("?", reasoning={"effort": "low"}), answer({"thinking": "Hm. "}, "42.")),
    "reasoning-summary": (
        _responses("?", reasoning={"effort": "high", "summary": "auto"}),
        answer({"thinking": "Hm. "}, "42."),
    ),
    "reasoning-then-tool": (
        _responses("?", tools=[WEATHER_F], reasoning={"summary": "auto"}),
        answer({"thinking": "Look."}, tool("c1", "weather", '{"city":"Oslo"}'), finish="tool_calls"),
    ),
    "reasoning-returned": (
        _responses(
            [
                said("user", "?"),
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "I must look."}],
                },
                CALLED,
                GIVEN,
            ]
        ),
        answer("Mild."),
    ),
    "summary-returned": (
        _responses(
            [
                said("user", "?"),
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "A"}, {"type": "summary_text", "text": "B"}],
                },
                said("assistant", "Yes."),
                said("user", "Why?"),
            ]
        ),
        answer("So."),
    ),
    "reasoning-encrypted": (
        _responses(
            [
                said("user", "?"),
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
                said("assistant", "Yes."),
                said("user", "Why?"),
            ]
        ),
        answer("So."),
    ),
    "two-assistant-turns": (
        _responses(
            [said("user", "?"), CALLED, said("assistant", "Wait."), CALLED_TOO, GIVEN, GIVEN | {"call_id": "call_2"}]
        ),
        answer("So."),
    ),
    "json-schema": (
        _responses("City?", text={"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}),
        answer('{"city":"Paris"}'),
    ),
    "json-object": (
        _responses("City?", text={"format": {"type": "json_object"}, "verbosity": "low"}),
        answer('{"city":"Paris"}'),
    ),
    "refusal": (_responses("Do harm."), answer({"refusal": "I will not."})),
    "filtered": (_responses("Do harm."), answer("I", finish="content_filter")),
    "refusal-returned": (
        _responses(
            [said("user", "?"), said("assistant", [{"type": "refusal", "refusal": "No."}]), said("user", "Why?")]
        ),
        answer("So."),
    ),
    "empty-answer": (_responses("Hi"), answer()),
    "unicode": (_responses('🏳️‍🌈 \u2028 \\ "'), answer('é 🧑‍🚀 \u2029 "')),
    "hints": (
        _responses(
            "Hi",
            store=True,
            truncation="auto",
            include=["reasoning.encrypted_content"],
            service_tier="auto",
            metadata={"a": "b"},
            background=False,
        ),
        HELLO,
    ),
    "tool-called-as-stop": (
        _responses("?", tools=[WEATHER_F]),
        answer(tool("x", "weather", '{"city":"Rome"}'), finish="stop"),
    ),
    "huge-arguments": (
        _responses("?", tools=[WEATHER_F]),
        answer(tool("c", "weather", json.dumps({"city": "y" * 5000})), finish="tool_calls"),
    ),
}

SPAWN = {"type": "function", "name": "spawn", "description": "Start an agent.", "parameters": SCHEMA}
AGENTS = {
    "type": "namespace",
    "name": "agents_v1",
    "description": "Agents.",
    "tools": [SPAWN, {"type": "custom", "name": "say"}],
}
PATCH = {"type": "custom", "name": "patch", "description": "Change files.", "format": {"type": "text"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
LONG = "a_namespace_of_a_server_with_a_rather_long_name"
RESPONSES |= {
    "namespace": (
        _responses(
            "Start one.",
            tools=[WEATHER_F, AGENTS, {"type": "web_search", "external_web_access": False}],
            parallel_tool_calls=True,
        ),
        answer(
            tool("c1", "agents_v1__spawn", '{"city": "Paris"}'),
            tool("c2", "agents_v1__say", '{"input": "go"}'),
            tool("c3", "weather", '{"city": "Rome"}'),
            finish="tool_calls",
        ),
    ),
    "namespace-long": (
        _responses(
            [
                said("user", "?"),
                {"type": "function_call", "call_id": "c0", "namespace": "gone", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c0", "output": "no"},
                CALLED | {"namespace": LONG, "name": "find_all_of_them"},
                GIVEN,
            ],
            tools=[
                {"type": "namespace", "name": LONG, "description": "", "tools": [SPAWN | {"name": "find_all_of_them"}]},
                SPAWN | {"name": "a__b"},
                {"type": "namespace", "name": "a", "description": "", "tools": [SPAWN | {"name": "b"}]},
                {"type": "namespace", "name": "mcp.x", "description": "", "tools": [SPAWN | {"name": "b"}]},
            ],
        ),
        answer(
            tool("c1", "a_namespace_of_a_server_with_a_rather_long_name__find_a_5e272d50", "{}"), finish="tool_calls"
        ),
    ),
    "custom": (
        _responses("Change it.", tools=[PATCH, PATCH | {"name": "made", "format": GRAMMAR}]),
        answer(tool("c1", "patch", '{"input": "*** Begin\\n\\"x\\""}'), tool("c2", "made", "aaa"), finish="tool_calls"),
    ),
    "custom-chosen": (
        _responses("Change it.", tools=[PATCH, WEATHER_F], tool_choice={"type": "custom", "name": "patch"}),
        answer(tool("c1", "patch", '{"input": "x"}'), finish="tool_calls"),
    ),
    "shells": (
        _responses("List.", tools=[{"type": "local_shell"}, {"type": "shell", "environment": {"type": "local"}}]),
        answer(
            tool("c1", "local_shell", '{"command": ["ls", "-l"], "timeout_ms": 1000}'),
            tool("c2", "shell", '{"commands": ["ls", "pwd"]}'),
            tool("c3", "shell", '{"cmd": "ls"}'),
            finish="tool_calls",
        ),
    ),
    "apply-patch": (
        _responses("Change.", tools=[{"type": "apply_patch"}], tool_choice={"type": "apply_patch"}),
        answer(
            tool("c1", "apply_patch", '{"type": "update_file", "path": "a.txt", "diff": "@@\\n-a\\n+b"}'),
            tool("c2", "apply_patch", '{"type": "delete_file", "path": "b.txt"}'),
            finish="tool_calls",
        ),
    ),
    "tool-search": (
        _responses(
            [
                said("user", "?"),
                {"type": "additional_tools", "role": "developer", "tools": [SPAWN]},
                {"type": "tool_search_call", "call_id": "c0", "execution": "client", "arguments": {"query": "weather"}},
                {"type": "tool_search_output", "call_id": "c0", "execution": "client", "tools": [WEATHER_F, AGENTS]},
            ],
            tools=[{"type": "tool_search", "execution": "client", "parameters": SCHEMA}],
        ),
        answer(tool("c1", "tool_search", '{"query": "more"}'), finish="tool_calls"),
    ),
    "allowed-tools": (
        _responses(
            "?",
            tools=[WEATHER_F, SPAWN, PATCH, AGENTS],
            tool_choice={
                "type": "allowed_tools",
                "mode": "required",
                "tools": [
                    {"type": "function", "name": "weather"},
                    {"type": "custom", "name": "patch"},
                    {"type": "namespace", "name": "agents_v1"},
                    {"type": "mcp", "server_label": "x"},
                ],
            },
        ),
        CALLS,
    ),
    "calls-of-all-kinds": (
        _responses(
            [
                said("user", "?"),
                {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
                {
                    "type": "local_shell_call",
                    "id": "c2",
                    "call_id": None,
                    "status": "completed",
                    "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None},
                },
                {"type": "local_shell_call_output", "id": "c2", "output": "a.txt"},
                {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}},
                {
                    "type": "shell_call_output",
                    "call_id": "c3",
                    "output": [
                        {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                        {"stdout": "", "stderr": "slow", "outcome": {"type": "timeout"}},
                    ],
                },
                {
                    "type": "apply_patch_call",
                    "call_id": "c4",
                    "status": "completed",
                    "operation": {"type": "delete_file", "path": "b.txt"},
                },
                {"type": "apply_patch_call_output", "call_id": "c4", "status": "failed", "output": "not there"},
                {
                    "type": "web_search_call",
                    "id": "ws",
                    "status": "completed",
                    "action": {"type": "search", "query": "q"},
                },
                {"type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": "{}", "output": "7"},
                {"type": "compaction", "encrypted_content": "gAAA"},
                said("assistant", "Done."),
                said("user", "And?"),
            ],
            tools=[PATCH, {"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}],
        ),
        answer("So."),
    ),
    "system-parts": (
        _responses(
            [
                said("developer", [{"type": "input_text", "text": "Be brief."}]),
                said(
                    "developer",
                    [{"type": "input_text", "text": "Be kind."}, {"type": "input_text", "text": "Be right."}],
                ),
                said("user", "Hi"),
            ]
        ),
        HELLO,
    ),
    "custom-cut": (
        _responses("Change it.", tools=[PATCH]),
        answer(tool("c1", "patch", '{"input": "*** Beg'), finish="length"),
    ),
}


def _chat(messages: list[Json], **more: Any) -> Json:
    return {"model": "m", "messages": messages, **more}


CHAT: dict[str, tuple[Json, Json]] = {
    "plain": (_chat(HI), HELLO),
    "system-and-developer": (_chat([said("system", "Brief."), said("developer", "Kind."), user("Hi")]), HELLO),
    "system-later": (_chat([user("Hi"), said("system", "Brief."), user("And?")]), HELLO),
    "limits": (_chat(HI, max_completion_tokens=9, temperature=0.3), answer("Hm", finish="length")),
    "images": (
        _chat(
            [
                user(
                    [
                        text("?"),
                        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                        {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "high"}},
                    ]
                )
            ]
        ),
        answer("Two."),
    ),
    "tools": (_chat([user("?")], tools=[WEATHER_C], tool_choice="auto"), CALLS),
    "tools-parallel": (_chat([user("?")], tools=[WEATHER_C]), TWO_CALLS),
    "tools-not-parallel": (_chat([user("?")], tools=[WEATHER_C], parallel_tool_calls=False), CALLS),
    "tool-forced": (
        _chat([user("?")], tools=[WEATHER_C], tool_choice={"type": "function", "function": {"name": "weather"}}),
        CALLS,
    ),
    "results": (
        _chat(
            [
                user("?"),
                assistant(
                    "Both.",
                    tool_calls=[call("c1", "weather", '{"city":"Paris"}'), call("c2", "weather", '{"city":"Köln"}')],
                ),
                {"role": "tool", "tool_call_id": "c1", "content": "18"},
                {"role": "tool", "tool_call_id": "c2", "content": [text("11")]},
                user("So?"),
            ],
            tools=[WEATHER_C],
        ),
        answer("18 and 11."),
    ),
    "cached": (
        _chat(
            [said("system", [text("Long.", cache_control=CACHE)]), user([text("a", cache_control=CACHE), text("b")])]
        ),
        answer("k", cached=5),
    ),
    "thinking": (_chat([user("?")], reasoning_effort="high"), answer({"thinking": "Hm. "}, "42.")),
    "thinking-off": (_chat([user("?")], reasoning_effort="none"), HELLO),
    "thinking-unsigned": (_chat([user("?"), assistant("Yes.", reasoning_content="Mine."), user("Why?")]), HELLO),
    "json-schema": (
        _chat(
            [user("?")],
            response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA, "strict": True}},
        ),
        answer('{"city":"Paris"}'),
    ),
    "refusal-returned": (_chat([user("?"), assistant(None, refusal="No."), user("Why?")]), HELLO),
    "refusal": (_chat([user("Do harm.")]), answer("I", finish="content_filter")),
    "hints": (_chat(HI, seed=1, user="u-1", n=1, stream_options={"include_usage": True}), HELLO),
    "empty-answer": (_chat(HI), answer()),
    "no-arguments": (
        _chat(
            [
                user("?"),
                assistant("", tool_calls=[call("c1", "clock", "")]),
                {"role": "tool", "tool_call_id": "c1", "content": ""},
            ]
        ),
        answer(tool("c2", "clock", "{}"), finish="tool_calls"),
    ),
    "unicode": (_chat([user('🏳️‍🌈 \u2028 \\ "')]), answer('é 🧑‍🚀 \u2029 "')),
}
