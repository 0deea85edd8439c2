"""What is answered to requests made from our own OpenAPI document, the right ones and the wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from libs.bus import Bus
from libs.testing.engine import SimEngine
from services.gateway.core.kinds import COMPLETIONS

from .conftest import ADMIN, Client, World

CHECKS = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.route(sim_engine, capabilities=(), context_length=32_000, max_output_tokens=64)
    return await world.gateway(await connect_as("gateway"))


async def document(gateway: Client) -> dict[str, Any]:
    response = await gateway.send("GET", "/api/openapi.json", key=None)
    assert response.status == 200
    return msgspec.json.decode(response.body)  # type: ignore[no-any-return]


async def test_every_route_is_in_it(gateway: Client) -> None:
    paths = (await document(gateway))["paths"]
    assert gateway.service is not None
    table = gateway.service._door._table
    assert set(paths) == {*table, "/v1/models/{model}"}
    for path, methods in table.items():
        assert {method.lower() for method in methods} == set(paths[path])
    assert {kind.path for kind in COMPLETIONS} <= set(paths)


def told(gateway: Client, described: dict[str, Any], examples: int) -> None:
    """``examples`` requests to every operation. No answer is a 500, each is what the document says."""
    schema = schemathesis.openapi.from_dict(described)
    session = requests.Session()
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in MODES)))
        def answered(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict) and not isinstance(case.body.get("model"), int | list | dict):
                case.body["model"] = "sim"
            headers = {"authorization": f"Bearer {ADMIN}"}
            url = f"http://127.0.0.1:{gateway.port}"
            response = case.call(base_url=url, session=session, headers=headers, timeout=20)
            assert response.status_code != 500, (case.path, case.body, response.text)
            case.validate_response(response, checks=CHECKS)

        answered()
    session.close()


async def test_no_answer_is_none_of_those_described(gateway: Client) -> None:
    await asyncio.to_thread(told, gateway, await document(gateway), 10)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
async def test_no_answer_of_a_hundred_thousand_is_none_of_those_described(gateway: Client) -> None:
    described = await document(gateway)
    await asyncio.to_thread(told, gateway, described, 100_000 // len(described["paths"]) + 1)
