"""A scheduler whose log was gone on with by a newer one, which knows more values of an enumeration."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from libs.bus import AskFailed, Bus
from libs.events import encode, subject_of, tag_of
from libs.events.commands import DefineModel, ScaleModel
from libs.events.model import AntiAffinity, ModelDefined, Scaling
from libs.events.questions import ListModels, ModelsAnswer, SchedulerStanding, Standing
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.unit.scheduler.harness import cpu_profile, model_spec

from .agent import scheduler, started


async def _defined_by_a_newer_scheduler(bus: Bus, name: str) -> int:
    """A definition with a value of ``anti_affinity.within`` that this version does not know."""
    spec = msgspec.structs.replace(model_spec(name, 1, cpu_profile()), anti_affinity=(AntiAffinity(within="rack"),))
    event = ModelDefined(at=datetime.now(UTC), model=name, spec=spec, fingerprint="f")
    payload = encode(event).replace(b'"within":"rack"', b'"within":"hall"')
    assert payload != encode(event)
    headers = {"Nats-Msg-Id": "of-a-newer-scheduler", "Llmgw-Type": tag_of(event)}
    return await bus.transport.store(subject_of(event), payload, headers)


async def test_an_older_leader_that_meets_a_new_value_steps_down_and_folds_nothing_beyond(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    async with scheduler(nats_server, tmp_path) as service:
        await eventually(lambda: service.authority.leading)
        await bus.command(DefineModel(spec=model_spec("m", 1, cpu_profile())))
        sequence = await _defined_by_a_newer_scheduler(bus, "n")
        await eventually(lambda: not service.authority.leading)
        before = service.authority.state.hash()
        [why] = service.not_ready()
        assert f"evt.model.n.defined at {sequence}, which this version cannot read" in why
        assert "Invalid enum value 'hall'" in why

        refused = await bus.command(ScaleModel(model="m", scaling=Scaling(min=2)), timeout_s=5)
        assert (refused.status, "Invalid enum value 'hall'" in refused.message) == ("refused", True)
        with pytest.raises(AskFailed, match="Invalid enum value 'hall'"):
            await bus.ask(ListModels(), ModelsAnswer, timeout_s=1)
        standing = await bus.ask(SchedulerStanding(), Standing)
        assert (standing.leads, standing.position, standing.problems) == (False, sequence - 1, (why,))

        defined = ModelDefined(at=datetime.now(UTC), model="o", spec=model_spec("o", 1, cpu_profile()), fingerprint="f")
        await bus.append(defined, cause="of-a-newer-scheduler")
        assert (await bus.ask(SchedulerStanding(), Standing)).position == sequence - 1
        assert service.authority.state.hash() == before

    async with started(nats_server, tmp_path) as again:
        await eventually(lambda: bool(again.not_ready()) and again.authority.caught_up)
        assert (again.authority.leading, again.authority.state.hash()) == (False, before)
