"""The mirror: decides on the library while it leads, hands out its copies always."""

from __future__ import annotations

import asyncio
import logging
import socket

from libs.bus import Authority, Bus, Misconfigured, OwnedView, Snapshot
from libs.events import Event
from libs.events.library import MirrorServing
from libs.events.views import LibraryEntry
from libs.runtime.clock import utc_now
from libs.tasks import end

from . import core
from .adapters.http import FileServer
from .adapters.store import Store, StoreTaken
from .core.state import ANNOUNCED_EVERY, State, decide, entries, evolve, retirements
from .imports import Imports
from .library import Library
from .questions import Questions
from .scrub import Scrubber
from .settings import MirrorSettings

log = logging.getLogger("llmgw.mirror")

SUBJECTS = ("llmgw.evt.library.>", "llmgw.evt.mirror.>", "llmgw.evt.model.>")
LOOK_AGAIN_S = 60.0
"""How often a mirror looks whether the log still has its address."""
EVERYWHERE = ("", "0.0.0.0", "::")


class Mirror:
    """The service. ``Authority`` decides on the library, ``FileServer`` hands out what is in the store."""

    def __init__(self, settings: MirrorSettings, bus: Bus) -> None:
        self._settings = settings
        self._bus = bus
        self._store = Store(settings.data_dir)
        self._library = Library(self._store, lambda: self._authority.state)
        self._scrubber = Scrubber(self._store, self._library, self._others)
        self._imports = Imports(
            bus,
            settings.instance,
            self._library,
            lambda: self._authority.state,
            lambda: self._authority.leading,
            lambda: self._authority.poke(),
        )
        self._view = OwnedView(bus.view("library", LibraryEntry))
        self._files: FileServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._announced = False
        self._authority: Authority[State] = Authority(
            bus,
            "mirror",
            settings.instance,
            subjects=SUBJECTS,
            initial=State(),
            evolve=self._fold,
            decide=decide,
            react=lambda state, now: [*self._imports.due(state), *retirements(state, now)],
            on_change=self._publish,
            questions=Questions(lambda: self._authority.state, self._library).handlers,
            on_known=self._open,
            problems=self.not_ready,
            owns=("library", "mirror"),
            snapshot=Snapshot(settings.data_dir / "snapshot.json", State, core),
        )

    @property
    def url(self) -> str:
        """How nodes reach it."""
        if self._settings.public_url:
            return self._settings.public_url.rstrip("/")
        host = self._settings.host
        port = self._files.port if self._files else self._settings.port
        return f"http://{socket.gethostname() if host in EVERYWHERE else host}:{port}"

    def _others(self) -> list[str]:
        """Addresses of the other mirrors."""
        mirrors = self._authority.state.mirrors
        return [mirrors[mirror_id].url for mirror_id in sorted(mirrors) if mirror_id != self._settings.instance]

    async def start(self) -> None:
        """Serve files, then follow the log. Raises Misconfigured where another mirror uses the store, PortTaken."""
        try:
            await asyncio.to_thread(self._store.open)
        except StoreTaken as why:
            raise Misconfigured(str(why)) from None
        self._files = FileServer(
            self._settings.host,
            self._settings.port,
            self._store,
            lambda: self._library.served,
            damaged=lambda file: self._scrubber.damaged(file, "somebody who fetched it"),
        )
        self._files.start()
        log.info("files are served at %s", self.url)
        await self._authority.start()

    async def _open(self) -> None:
        # Not before the log is read: files of versions added later would look like files nobody has.
        self._library.changed()
        self._tasks = [
            self._bus.background("the library's keeper", self._library.run),
            self._bus.background("the mirror's address", self._announce),
            self._bus.background("the mirror's imports", self._imports.run),
            self._bus.background("the store's reader", self._scrubber.scrub),
            self._bus.background("the store's mender", self._scrubber.repair),
        ]

    async def stop(self) -> None:
        self._imports.stop()
        self._scrubber.stop()
        await self._authority.stop()
        await end(*self._tasks)
        self._library.stop()
        if self._files is not None:
            await asyncio.to_thread(self._files.stop)
        self._store.close()

    def not_ready(self) -> list[str]:
        reasons = self._authority.not_ready()
        if not self._announced:
            reasons.append("its address is not on the log yet")
        return reasons + self._library.served.missing()

    def _fold(self, state: State, event: Event, position: int) -> State:
        self._library.changed()
        return evolve(state, event, position)

    async def _publish(self, state: State, position: int) -> None:
        # First served, then announced.
        await self._library.reconcile()
        await self._view.become(entries(state), state.election)

    async def _announce(self) -> None:
        """Put the address on the log when it is not what the log says already, and once a day."""
        mirror_id = self._settings.instance
        while True:
            known = self._authority.state.mirrors.get(mirror_id)
            if known is None or known.url != self.url or utc_now() - known.at >= ANNOUNCED_EVERY:
                serving = MirrorServing(at=utc_now(), mirror_id=mirror_id, url=self.url)
                # Named after what it replaces: said twice it is one event, said again after another it is a new one.
                await self._bus.append(serving, cause=f"{mirror_id}:serving:{known.position if known else 0}")
            self._announced = True
            await asyncio.sleep(LOOK_AGAIN_S)


def build(settings: MirrorSettings, bus: Bus) -> Mirror:
    """The service, not started."""
    return Mirror(settings, bus)
