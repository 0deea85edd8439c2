"""A guard dies with checks in its hands."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from libs.bus import Bus, BusSettings, connect
from libs.events import decode_as
from libs.events.commands import DefinePolicy
from libs.events.policy import Check, InputRules, PolicySpec, SecretsRule, Segment, Verdict
from libs.events.questions import ListPolicies, PoliciesAnswer
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.guard.app import build
from services.guard.settings import GuardSettings

AWS_KEY = "AKIA" + "IOSFODNN7EXAMPLE"
GUARD = """
import sys
from pathlib import Path
from libs.runtime.run import serve
from services.guard.app import build
from services.guard.settings import GuardSettings
sys.exit(serve("guard", GuardSettings(nats_url=sys.argv[1], data_dir=Path(sys.argv[2]), instance="g-1"), build))
"""


async def test_what_a_killed_guard_held_is_judged_by_another_within_seconds(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    """Given two guards and one of them hanging, when checks come and it is killed, then every check has its verdict."""
    verdicts: dict[str, Verdict] = {}

    async def hear(payload: bytes) -> None:
        verdict = decode_as(Verdict, payload)
        verdicts[verdict.check_id] = verdict

    inbox = await bus.inbox(hear)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GUARD, nats_server.url, str(tmp_path)), stderr=asyncio.subprocess.DEVNULL
    )
    own = await connect(BusSettings(url=nats_server.url, identity="guard"))
    second = build(GuardSettings(data_dir=tmp_path, instance="g-2"), own)
    try:
        await eventually(lambda: bus.ask(ListPolicies(), PoliciesAnswer, timeout_s=0.5), 20)
        spec = PolicySpec(name="strict", mode="enforce", input=InputRules(secrets=SecretsRule()))
        assert (await bus.command(DefinePolicy(spec=spec))).status == "done"
        await second.start()
        await eventually(lambda: second.not_ready() == [])
        child.send_signal(signal.SIGSTOP)
        for number in range(40):
            check = Check(
                gateway_id="gw-1",
                check_id=f"c{number}",
                request_id=f"req-{number}",
                project="a/b/c",
                policies=("strict",),
                segments=(Segment(path="/messages/0/content", text=AWS_KEY),),
                reply=inbox,
            )
            await bus.tell(check)
        child.kill()
        started = time.monotonic()
        await eventually(lambda: len(verdicts) == 40, 8)
        assert time.monotonic() - started < 5
        assert not any(verdict.allow for verdict in verdicts.values())
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await second.stop()
        await own.close()
