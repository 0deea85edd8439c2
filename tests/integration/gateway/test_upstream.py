"""What an engine sees of a request, and a client of an engine's answer: on every route, streamed, and tried again."""

from __future__ import annotations

import asyncio
import copy
import http.client
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from libs.bus import Bus
from libs.events.views import Route
from libs.runtime.secrets import engine_key
from libs.testing import eventually
from services.gateway.settings import GatewaySettings

from .conftest import AT, KEY, Client, World
from .recorder import FAULTS, IN_STREAMS, OWN_HEADERS, Recorder
from .test_protocols import GENERATING, PATHS, asked

FLEET_SECRET = "ab" * 32
PRIVATE = (
    "x-api-key: sk-private-key",
    "cookie: session=private",
    "proxy-authorization: Basic private",
    "x-forwarded-for: 1.2.3.4",
    "forwarded: for=private",
    "x-real-ip: 1.2.3.4",
    "origin: https://private",
    "referer: https://private",
    "user-agent: private",
    "accept-encoding: gzip, br, private",
    "accept-language: private",
    "openai-organization: private",
    "anthropic-version: private",
    "anthropic-beta: private",
    "if-none-match: private",
    "range: bytes=0-1",
    "x-request-id: private",
    "x-other: private",
    # Hop by hop (RFC 9110, section 7.6.1), and one that the client names as such.
    "connection: keep-alive, x-hop",
    "x-hop: private",
    "keep-alive: timeout=private",
    "te: trailers",
    "trailer: private",
    "upgrade: h2c",
)
OURS = {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length", "authorization"}
OURS |= {"x-request-id", "traceparent", "tracestate", "x-tenant"}
"""All that an engine is ever sent; the last is let through by the settings of these tests."""
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TO_CLIENTS = {"content-type", "content-length", "transfer-encoding", "x-request-id", "request-id", "x-llmgw-warning"}
IN_STREAMS_TO_CLIENTS = {"cache-control", "x-accel-buffering"}
CASES = [
    (path, stream, fault)
    for path in PATHS
    for stream in ((False, True) if path in GENERATING else (False,))
    for fault in FAULTS
    if stream or fault not in IN_STREAMS
]


@pytest.fixture
async def recorder(world: World) -> Recorder:
    recorder = Recorder()
    await recorder.start(world._stack)
    return recorder


@pytest.fixture
async def gateway(world: World, recorder: Recorder, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    """Knows a model for each case, so that no breaker has seen another's faults."""
    secret = world.directory / "fleet.secret"
    secret.write_text(FLEET_SECRET)
    routes = world.bus.view("routes", Route)
    for n in range(len(CASES)):
        route = Route(
            model=f"m{n}",
            aliases=(f"alias-{n}",),
            context_length=4096,
            created_at=AT,
            endpoints=recorder.endpoints(f"r{n}"),
            position=n + 1,
        )
        await routes.put(route.model, route)
    gateway = await world.gateway(
        await connect_as("gateway"), fleet_secret=f"file:{secret}", forward_headers=("x-tenant",)
    )

    async def knows_all() -> bool:
        return f"m{len(CASES) - 1}" in (await gateway.send("GET", "/v1/models")).body.decode()

    await eventually(knows_all)
    return gateway


async def test_heads_are_ours_in_both_directions(gateway: Client, recorder: Recorder) -> None:
    retried = 0
    for n, (path, stream, fault) in enumerate(CASES):
        recorder.fault, before = fault, len(recorder.heard)
        body = asked(path, model=f"m{n}") | ({"stream": True} if stream else {})
        headers = (*PRIVATE, f"traceparent: {TRACE}", "tracestate: a=1", "x-tenant: let-through")
        response = await gateway.send("POST", path, body, headers=headers)
        assert response.status == 200, (path, stream, fault, response.body)
        heard = recorder.heard[before:]
        assert len(heard) == (1 if fault == "none" else 2), (path, stream, fault)
        retried += len({one.endpoint for one in heard}) == 2
        for one in heard:
            names = [name for name, _ in one.headers]
            assert set(names) <= OURS
            assert len(set(names)) == len(names)
            said = dict(one.headers)
            assert said["host"] == f"127.0.0.1:{recorder.ports[one.endpoint]}"
            key = engine_key(bytes.fromhex(FLEET_SECRET), f"r{n}-{one.endpoint}", 1)
            assert said["authorization"] == f"Bearer {key}"
            assert said["x-request-id"] == response.request_id
            assert (said["traceparent"], said["tracestate"], said["x-tenant"]) == (TRACE, "a=1", "let-through")
            assert (said["accept-encoding"], said["content-type"]) == ("identity", "application/json")
            assert int(said["content-length"]) == len(one.body)
            everything = repr(one)
            assert "private" not in everything
            assert KEY not in everything
        assert len({one.body for one in heard}) == 1, "another endpoint is asked the same"
        allowed = TO_CLIENTS | (IN_STREAMS_TO_CLIENTS if stream else set())
        assert set(response.headers) <= allowed, (path, response.headers)
        assert not [value for value in response.headers.values() if value.startswith("engine-")]
    assert retried == sum(fault != "none" for *_, fault in CASES)


async def test_an_error_has_none_of_the_engines_headers(gateway: Client, recorder: Recorder) -> None:
    """Both endpoints refuse; how long to wait is said by the gateway."""
    for n, path in enumerate(PATHS):
        for status in ("400", "429", "500"):
            recorder.fault = status  # type: ignore[assignment]
            recorder._begun = _Nothing()
            response = await gateway.send("POST", path, asked(path, model=f"m{n}"), headers=PRIVATE)
            assert response.status >= 400
            assert set(response.headers) <= TO_CLIENTS | {"retry-after"}
            assert not set(response.headers.values()) & set(OWN_HEADERS.values())


class _Nothing(set[str | None]):
    """Holds nothing, whatever is put into it."""

    def add(self, element: str | None) -> None:
        return


def test_what_may_never_be_forwarded_cannot_be_set(tmp_path: Path) -> None:
    for name in ("authorization", "X-Api-Key", "cookie", "host", "content-length", "connection", "te", "x-request-id"):
        with pytest.raises(ValueError, match=name.lower()):
            GatewaySettings(data_dir=tmp_path, forward_headers=("x-fine", name))
    for name in ("a b", "a:", "", "ä"):
        with pytest.raises(ValueError, match="not the name of a header"):
            GatewaySettings(data_dir=tmp_path, forward_headers=(name,))
    fine = GatewaySettings(data_dir=tmp_path, forward_headers=("x-fine", "openai-beta"))
    assert fine.forward_headers == ("x-fine", "openai-beta")


# bodies

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([10**40, -(10**25), 2**63, 2**64, 1e22, 5e-324, 1.7976931348623157e308])
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=12
)
READ = {
    *("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "messages", "prompt", "input"),
    *("query", "documents", "temperature", "top_p", "min_p", "top_k", "n", "stop", "seed", "presence_penalty"),
    *("frequency_penalty", "logprobs", "top_logprobs", "logit_bias", "tools", "tool_choice", "parallel_tool_calls"),
    *("response_format", "reasoning_effort", "user", "content", "tokens", "encoding_format", "dimensions", "top_n"),
    *("return_documents", "n_probs"),
}
"""What has a meaning for the gateway: never made up here."""
UNKNOWN = st.lists(
    st.tuples(TEXT.filter(lambda name: name not in READ), VALUES), max_size=4, unique_by=lambda field: field[0]
)
SAME = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/tokenize", "/detokenize")
"""Routes whose engines speak what their clients speak."""
OPTIONS = st.none() | st.fixed_dictionaries({}, optional={"include_usage": st.booleans() | st.none(), "x": VALUES})


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, str]:
    """A route and the text of a body for it: fields in any order, with what no gateway knows."""
    path = draw(st.sampled_from(SAME))
    known = copy.deepcopy(asked(path, model=draw(st.sampled_from(["m0", "alias-0"]))))
    if path in GENERATING:
        if draw(st.booleans()):
            known["stream"] = draw(st.booleans() | st.none())
        if draw(st.booleans()):
            known["stream_options"] = draw(OPTIONS)
        if path == "/v1/chat/completions":
            known["messages"][0] |= dict(draw(UNKNOWN)) | {"role": "user", "content": draw(TEXT)}
    fields = draw(st.permutations([*known.items(), *draw(UNKNOWN)]))
    ascii_only, separators = draw(st.booleans()), draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]))

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only, separators=separators)

    return path, "{" + separators[0].join(f"{text(n)}{separators[1]}{text(v)}" for n, v in fields) + "}"


def exact(text: str | bytes) -> Any:
    """JSON with its numbers as they are written and its fields in order."""
    return json.loads(text, parse_float=str, parse_int=str, object_pairs_hook=lambda pairs: list(dict(pairs).items()))


def expected(path: str, sent: dict[str, Any]) -> dict[str, Any]:
    """The documented edits: the model's own name, usage asked for in streams, no nulls where engines choke on them."""
    wanted = {**sent, "model": "m0"}
    if path in GENERATING and sent.get("stream") == True:  # noqa: E712 - a text is not True
        options = sent.get("stream_options")
        if not (options and dict(options).get("include_usage") is True):
            wanted["stream_options"] = list({**dict(options or []), "include_usage": True}.items())
    if path in ("/v1/embeddings", "/v1/rerank"):
        wanted = {name: value for name, value in wanted.items() if value is not None}
    return wanted


@pytest.mark.timeout(900)
@pytest.mark.parametrize("examples", [150, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_a_body_arrives_as_it_was_sent(gateway: Client, recorder: Recorder, examples: int) -> None:
    def all_of_them() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(bodies())
        def arrives(case: tuple[str, str]) -> None:
            path, text = case
            recorder.heard.clear()
            headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
            connection.request("POST", path, text.encode(), headers)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, (text, said)
            (heard,) = recorder.heard
            sent = dict(exact(text))
            wanted = expected(path, sent)
            arrived = dict(exact(heard.body))
            assert arrived == wanted
            order = [name for name in arrived if name in sent]
            assert order == [name for name in sent if name in arrived], "fields keep their order"
            if wanted == sent:
                assert heard.body == text.encode(), "what is not edited is not written anew"

        try:
            arrives()
        finally:
            connection.close()

    await asyncio.to_thread(all_of_them)
