"""A fine-tuning is asked for under its own name, and answered where it is loaded."""

from __future__ import annotations

from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import Client, World, endpoint


async def test_a_request_goes_where_the_fine_tuning_is_loaded(
    world: World, gateway: Client, sim_engine: SimEngine
) -> None:
    # An engine that has it answers to its name; the other refuses the name, as engines do.
    tuned = world.engine("tuned", model="law")
    loaded = endpoint(tuned, loras=("law",))
    await world.route(endpoint(sim_engine), loaded, loras=("law",), aliases=("default",))

    async def known() -> bool:
        return (await gateway.chat(model="law")).status == 200

    await eventually(known)
    for _ in range(6):
        response = await gateway.chat(model="law")
        assert response.status == 200, response.error
        record = await world.record(response.request_id)
        assert (record.model, record.replica_id) == ("law", loaded.replica_id)
    listed = (await gateway.send("GET", "/v1/models")).json["data"]
    assert {model["id"] for model in listed} == {"sim", "law"}

    await world.route(sim_engine, loras=("law",))
    await eventually(lambda: _code(gateway, "no_endpoint"))
    await world.route(sim_engine)
    await eventually(lambda: _code(gateway, "model_not_found"))


async def _code(gateway: Client, code: str) -> bool:
    response = await gateway.chat(model="law")
    return response.status != 200 and response.error["code"] == code
