"""The OpenAPI document of what is answered here, made from the structs requests are read into.

Bodies are open: a field that is not named here travels to the engine. Where a route reads its body without a struct
because it translates it, the struct that stands here says what it takes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from services.gateway.core.errors import Protocol, protocol_of
from services.gateway.core.protocols.operations import OPERATIONS, Operation
from services.gateway.core.request.body import ParsedRequest
from services.gateway.core.request.messages import ChatMessage

Json = dict[str, Any]
_Limit = Annotated[int, Meta(ge=0)]
_Text = str | list[str | int | list[int]]
_REFERENCE = "#/components/schemas/{name}"


def _struct(name: str, of: type[msgspec.Struct], given: dict[str, Any]) -> type[msgspec.Struct]:
    """The struct ``of`` with the types ``given``, its other unread values left out."""
    listed: list[Any] = [(field, kind) for field, kind in given.items() if field not in _optional(of)]
    for field in msgspec.structs.fields(of):
        kind = given.get(field.name, field.type)
        if kind is msgspec.Raw or any(field.name == name for name, *_ in listed):
            continue
        listed.append((field.name, kind) if field.required else (field.name, kind, None))
    return msgspec.defstruct(name, listed, kw_only=True)


def _optional(of: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(of) if not field.required and field.type is not msgspec.Raw}


class Part(msgspec.Struct):
    type: str
    text: str | None = None


Message = msgspec.defstruct(
    "Message",
    [
        ("role", str),
        ("content", str | list[str | Part] | None, None),
        *((f.name, f.type, None) for f in msgspec.structs.fields(ChatMessage) if f.name not in ("role", "content")),
    ],
)
ChatRequest = _struct("ChatRequest", ParsedRequest, {"messages": Annotated[list[Message], Meta(min_length=1)]})  # type: ignore[valid-type]
CompletionRequest = _struct("CompletionRequest", ParsedRequest, {"prompt": _Text})


class Block(msgspec.Struct):
    type: str
    text: str | None = None
    source: Json | None = None
    id: str | None = None
    name: str | None = None
    input: Json | None = None
    tool_use_id: str | None = None


class Turn(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(msgspec.Struct):
    """One of the client's own has a schema, those with a type have none."""

    type: str | None = None
    name: str | None = None
    input_schema: Json | None = None
    description: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    model: str
    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: Json | None = None
    thinking: Json | None = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: _Limit
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    metadata: Json | None = None
    output_config: Json | None = None


class ResponsesTool(msgspec.Struct):
    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    model: str
    input: str | Annotated[list[Json], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: _Limit | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    text: Json | None = None
    reasoning: Json | None = None
    metadata: Json | None = None
    store: bool | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    model: str
    input: _Text
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None


class Document(msgspec.Struct):
    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    model: str
    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """llama.cpp reads ``content``, vLLM ``prompt`` or ``messages``."""

    model: str
    content: str | None = None
    prompt: str | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str
    tokens: list[int]


class Tagged(msgspec.Struct):
    """A command or a question of the contracts: ``type`` is its tag, the rest its fields."""

    type: str


class ErrorBody(msgspec.Struct, forbid_unknown_fields=True):
    message: Annotated[str, Meta(min_length=1)]
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct, forbid_unknown_fields=True):
    error: ErrorBody


class AnthropicErrorBody(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    message: Annotated[str, Meta(min_length=1)]


class AnthropicError(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["error"]
    error: AnthropicErrorBody
    request_id: str


ERRORS: dict[Protocol, type[msgspec.Struct]] = {"openai": OpenAIError, "anthropic": AnthropicError}
BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/embeddings": EmbeddingsRequest,
    "/v1/rerank": RerankRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_ADMIN = {
    "/api/v1/commands": ("Log a command and wait for its outcome", ("200", "202", "422", "502")),
    "/api/v1/questions": ("Ask a question", ("200",)),
}
_READ = {
    "/v1/models": "The models a key may use",
    "/v1/models/{model}": "One model",
    "/health": "Whether the process runs",
    "/ready": "Whether requests can be answered",
    "/api/openapi.json": "This document",
}
_OPEN = ("/health", "/ready", "/api/openapi.json")
"""Answered without a key."""


def document(version: str) -> bytes:
    """The document, as JSON."""
    types: list[type[msgspec.Struct]] = [*BODIES.values(), Tagged, *ERRORS.values()]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    named = dict(zip(types, schemas, strict=True))
    paths: Json = {operation.path: {"post": _inference(operation, named)} for operation in OPERATIONS}
    for path, (summary, statuses) in _ADMIN.items():
        answers = {status: _json("The outcome, or the answer", {}) for status in statuses}
        paths[path] = {"post": _operation(path, summary, named, answers, Tagged)}
    for path, summary in _READ.items():
        answers = {"200": _json("The answer", {"type": "object"})}
        if path == "/ready":
            answers["503"] = answers["200"]
        operation = _operation(path, summary, named, answers, None)
        if "{model}" in path:
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[path] = {"get": operation}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "llmgw", "version": version},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }
    )


def _inference(operation: Operation, named: dict[type[msgspec.Struct], Json]) -> Json:
    body = BODIES[operation.path]
    answer = _json("The answer, or the events of it", {"type": "object"})
    if any(field.name == "stream" for field in msgspec.structs.fields(body)):
        answer["content"]["text/event-stream"] = {"schema": {}}
    return _operation(
        operation.path, operation.telemetry_name.replace("_", " ").capitalize(), named, {"200": answer}, body
    )


def _operation(
    path: str,
    summary: str,
    named: dict[type[msgspec.Struct], Json],
    answers: Json,
    body: type[msgspec.Struct] | None,
) -> Json:
    answers = {**answers, "default": _json("An error, in the protocol of the path", named[ERRORS[protocol_of(path)]])}
    operation: Json = {"summary": summary, "operationId": path.strip("/").replace("/", "_"), "responses": answers}
    operation["security"] = [] if path in _OPEN else [{"bearer": []}, {"x-api-key": []}]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": named[body]}}}
    return operation


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
