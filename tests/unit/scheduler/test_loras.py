"""Fine-tunings beside a model: loaded with it, asked for by their own names, replaced when there are newer ones."""

from __future__ import annotations

import msgspec

from libs.events.commands import WakeModel
from libs.events.model import Adapter, ModelSpec, Scaling
from libs.events.replica import ReplicaDraining
from services.scheduler.core.views.desired import wanted_on
from services.scheduler.core.views.routes import route

from .harness import World, cpu_profile, model_spec


def spec(*names: str) -> ModelSpec:
    loras = tuple(Adapter(name=name, source=f"library:{name}") for name in names)
    return model_spec("m", 1, cpu_profile(), source="library:w", loras=loras)


def world() -> World:
    made = World()
    made.machine("a")
    made.mirror()
    made.weights("w", "v1")
    return made


def test_they_are_loaded_with_it_and_told_to_gateways() -> None:
    here = world()
    here.weights("law", "v1")
    here.define(spec("law"))
    here.settle()
    [wanted] = wanted_on(here.state, "a")
    assert [(lora.name, lora.weights.name, lora.weights.version) for lora in wanted.loras] == [("law", "law", "v1")]
    assert wanted.loras[0].weights.mirrors == ("http://mirror-1:9",)
    told = route(here.state, here.model())
    assert told.loras == ("law",)
    assert [endpoint.loras for endpoint in told.endpoints] == [("law",)]


def test_without_one_of_them_nothing_is_started_and_it_is_said_which() -> None:
    here = world()
    here.define(spec("law"))
    here.settle()
    unplaced = here.model().unplaced
    assert unplaced is not None
    assert "the library has no law for the adapter law" in unplaced.summary
    here.weights("law", "v1")
    here.settle()
    assert len(here.replicas("m", "ready")) == 1


def test_a_newer_one_replaces_what_runs_one_by_one() -> None:
    here = world()
    here.weights("law", "v1")
    here.define(spec("law"))
    here.settle()
    [old] = here.replicas("m", "ready")
    here.weights("law", "v2")
    here.settle(30)
    [new] = here.replicas("m")
    assert (new.phase, new.loras) == ("ready", {"law": "law@v2"})
    assert new.replica_id != old.replica_id
    reasons = [event.reason for event in here.events(ReplicaDraining)]
    assert reasons == ["law@v2 replaces law@v1 as the adapter law"]


def test_while_one_is_added_requests_for_it_go_where_it_is_loaded() -> None:
    here = world()
    here.weights("law", "v1")
    here.define(spec())
    here.settle()
    here.machines["a"].stuck.add("m")
    here.define(spec("law"))
    here.settle()
    told = route(here.state, here.model())
    assert told.loras == ("law",)
    assert [endpoint.loras for endpoint in told.endpoints] == [()]


def test_a_model_asleep_is_woken_by_the_name_of_one() -> None:
    here = world()
    here.weights("law", "v1")
    here.define(msgspec.structs.replace(spec("law"), scaling=Scaling(on_demand=True)))
    here.settle()
    assert here.replicas() == []
    here.command(WakeModel(model="law"))
    here.settle()
    assert len(here.replicas("m", "ready")) == 1
