"""Weights brought to this machine: one download a file, however many shards ask for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple, ParamSpec, TypeVar

import msgspec
from prometheus_client import Counter

from libs.events.library import WeightFile
from libs.events.machine import WeightsHere
from libs.events.sources import hub_source
from libs.events.views import WeightsWanted
from libs.tasks import end
from services.nodeagent.adapters.weights import download
from services.nodeagent.adapters.weights.download import Mirror, MirrorFailed, Origin
from services.nodeagent.adapters.weights.hub import HUGGING_FACE, Hub, Repository
from services.nodeagent.adapters.weights.store import Rejected, Store
from services.nodeagent.core.shard import weights as rules

log = logging.getLogger(__name__)

DAMAGED = Counter("llmgw_node_damaged_files_total", "Files that came in damaged, by who sent some of it.", ["origin"])

Used = Mapping[str, tuple[WeightsWanted, ...]]
"""Shard id to the weights it uses."""

P = ParamSpec("P")
T = TypeVar("T")

_MAX_DOWNLOADS = 4
"""More at once do not make a disk or a network faster."""

_ROUNDS_WITHOUT = 3
"""Every mirror said three times that it does not have the file: it is not merely late."""

_NAMED = 5
"""Versions that might make room for another."""

_PAUSE_S = 1.0
"""Between two rounds over the mirrors."""
_HUB_PAUSE_MOST_S = 30.0
"""A hub is everybody's: one that does not answer is asked at ever longer intervals, up to this."""


class Fetched:
    """The result: where the version's files are, and how many bytes had to come over the network."""

    def __init__(self, folder: Path, fetched_bytes: int) -> None:
        self.folder = folder
        self.fetched_bytes = fetched_bytes


class Standing(NamedTuple):
    """How far a version's files are. ``phase`` is ``checking`` while nothing of them comes over the network."""

    phase: Literal["fetching", "checking"]
    done_bytes: int
    total_bytes: int


class _Job:
    """One file being fetched for whoever waits for it."""

    def __init__(self) -> None:
        self.comes = False
        """Over the network, at the moment; else what is here of it is being read."""
        self.cancelled = threading.Event()
        self._given_up = asyncio.Event()
        self.done_bytes = 0
        self.waiting = 0
        self.task: asyncio.Task[int] | None = None

    def give_up(self) -> None:
        self.cancelled.set()
        self._given_up.set()

    async def pause(self) -> None:
        """Wait before the next round. Raises Cancelled when the job is given up meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._given_up.wait(), _PAUSE_S)
        if self.cancelled.is_set():
            raise download.Cancelled


class Fetching:
    """Owns the store. ``progress`` shows what is under way, for telemetry."""

    def __init__(self, root: Path, hub: Hub = HUGGING_FACE) -> None:
        self._store = Store(root)
        self._hub = hub
        self._listing = asyncio.Lock()
        """Held while a hub is asked which files a commit has: its answer is kept for whoever asks next."""
        self._jobs: dict[str, _Job] = {}
        self._under_way: dict[str, tuple[WeightsWanted, int]] = {}
        self._threads = ThreadPoolExecutor(_MAX_DOWNLOADS, thread_name_prefix="fetch")
        self._doubts: set[asyncio.Task[None]] = set()
        """Mirrors being told that what came from them was damaged."""
        self._quiet = asyncio.Event()
        """Nothing is being removed."""
        self._quiet.set()
        self.complete: tuple[WeightsHere, ...] = ()
        """Versions that are here as a whole."""

    async def look(self) -> None:
        """See what an earlier agent left, and finish what it was removing."""
        await asyncio.to_thread(self._store.finish_removals, frozenset[str]())
        self.complete = await asyncio.to_thread(self._store.complete)

    async def listed(self, weights: WeightsWanted) -> WeightsWanted:
        """Weights from a hub with their files and sums: as an earlier agent learned them, or asked there until it
        answers. Raises Rejected."""
        name, version = weights.name, weights.version
        async with self._listing:
            files = await self._in_thread(self._store.listing, name, version)
            pause_s = _PAUSE_S
            while files is None:
                try:
                    files_found = await self._in_thread(self._repository(weights).listing, self._store.put)
                    files = tuple(files_found)
                    await self._in_thread(self._store.keep_listing, name, version, files)
                except MirrorFailed as error:
                    if error.lasting:
                        raise Rejected(str(error)) from None
                    log.warning("a hub failed", extra={"weights": name, "reason": str(error)})
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _HUB_PAUSE_MOST_S)
                except OSError as error:
                    where = error.filename or "the disk"
                    raise Rejected(f"the weights could not be written to {where}: {error.strerror}") from None
        return msgspec.structs.replace(weights, files=files)

    def _repository(self, weights: WeightsWanted) -> Repository:
        source = hub_source(weights.source)
        assert source is not None
        return Repository(self._hub, source)

    def _origins(self, weights: WeightsWanted) -> tuple[Origin, ...]:
        if weights.source:
            return (self._repository(weights),)
        return tuple(Mirror(url) for url in weights.mirrors)

    async def ensure(
        self, weights: WeightsWanted, advanced: Callable[[], None], pickles_allowed: bool = False
    ) -> Fetched:
        """The folder with every file of ``weights``, each with the right sum.

        ``advanced`` is called whenever bytes moved. Raises Rejected with a sentence, and retries mirrors that do not
        answer for as long as the caller waits.
        """
        refusal = rules.refusal(weights, pickles_allowed)
        if refusal is not None:
            raise Rejected(refusal)
        files = {file.sha256: file for file in weights.files}
        name = f"{weights.name}@{weights.version}"
        others = self._under_way.get(name, (weights, 0))[1]
        self._under_way[name] = (weights, others + 1)
        try:
            await self._quiet.wait()
            # All of it at once: a model of many files would fill the disk with those that still fit.
            self._refuse_beyond_disk(await self._in_thread(self._store.lacking_bytes, files.values()))
            counts = await asyncio.gather(
                *(self._file(file, self._origins(weights), advanced, pickles_allowed) for file in files.values())
            )
            folder = await self._in_thread(self._store.link, weights)
            self.complete = await asyncio.to_thread(self._store.complete)
        except OSError as error:
            raise Rejected(
                f"the weights could not be written to {error.filename or 'the disk'}: {error.strerror}"
            ) from None
        finally:
            left = self._under_way[name][1] - 1
            if left:
                self._under_way[name] = (weights, left)
            else:
                del self._under_way[name]
        return Fetched(folder, sum(counts))

    def holds(self, name: str, version: str) -> bool:
        """Whether anything of a version is here under its name."""
        return self._store.holds(name, version)

    def stays(self, name: str, version: str, running: Used, wanted: Used) -> str | None:
        """Why a version is not removed, or None; the arguments as for ``remove``."""
        refusal = rules.removal_refusal(
            name, version, running=_named(running), wanted=_named(wanted), fetching=self._under_way
        )
        if refusal is None and not self.holds(name, version):
            versions = ", ".join(version_here.weights for version_here in self.complete) or "none"
            return f"there are no weights {name}@{version} on this machine; there are: {versions}"
        return refusal

    async def remove(self, name: str, version: str, running: Used, wanted: Used) -> int:
        """Remove a version nobody uses; bytes that became free. ``running``, ``wanted``: by shard id.

        Raises Rejected with the reason why it stays.
        """
        while not self._quiet.is_set():
            await self._quiet.wait()
        why = self.stays(name, version, running, wanted)
        if why is not None:
            raise Rejected(why)
        used = [weights for lists in (*running.values(), *wanted.values()) for weights in lists]
        used += [weights for weights, _ in self._under_way.values()]
        keep = frozenset(file.sha256 for weights in used for file in weights.files)
        # From here on whoever wants weights waits: what is there when it looks is there when it has linked it.
        self._quiet.clear()
        try:
            return await asyncio.to_thread(self._store.remove, name, version, keep)
        except OSError as error:
            raise Rejected(f"{error.filename or name} could not be removed: {error.strerror}") from None
        finally:
            self.complete = await asyncio.to_thread(self._store.complete)
            self._quiet.set()

    def progress(self) -> dict[str, str]:
        """Versions being fetched: ``name@version`` to ``done/total bytes``."""
        standings = {name: self._standing(weights) for name, (weights, _) in self._under_way.items()}
        return {name: f"{standing.done_bytes}/{standing.total_bytes} bytes" for name, standing in standings.items()}

    def standing(self, weights: WeightsWanted) -> Standing | None:
        """How far a version is; None when nobody is waiting for it."""
        under_way = self._under_way.get(f"{weights.name}@{weights.version}")
        return self._standing(under_way[0]) if under_way is not None else None

    def _standing(self, weights: WeightsWanted) -> Standing:
        files = {file.sha256: file.size_bytes for file in weights.files}
        jobs = [self._jobs[sha256] for sha256 in files if sha256 in self._jobs]
        done = sum(self._jobs[s].done_bytes if s in self._jobs else size for s, size in files.items())
        return Standing("fetching" if any(job.comes for job in jobs) else "checking", done, sum(files.values()))

    async def close(self) -> None:
        """Stop downloads; what has come in stays."""
        for job in self._jobs.values():
            job.give_up()
        await end(*self._doubts)
        jobs = [job.task for job in self._jobs.values() if job.task is not None]
        await asyncio.gather(*jobs, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def _file(
        self, file: WeightFile, origins: tuple[Origin, ...], advanced: Callable[[], None], pickles_allowed: bool
    ) -> int:
        """Bytes fetched for this caller; 0 for one who only waited for another's download or found it here."""
        job = self._jobs.get(file.sha256)
        while job is not None and job.cancelled.is_set():
            # Given up a moment ago: its thread lets go of the part first.
            assert job.task is not None
            await asyncio.wait([job.task])
            job = self._jobs.get(file.sha256)
        first = job is None
        if job is None:
            job = self._jobs[file.sha256] = _Job()
            job.task = asyncio.create_task(self._bring(job, file, origins, pickles_allowed))
            job.task.add_done_callback(_looked_at)
        assert job.task is not None
        job.waiting += 1
        try:
            seen = job.done_bytes
            while not job.task.done():
                await asyncio.wait([job.task], timeout=0.5)
                if job.done_bytes != seen:
                    seen = job.done_bytes
                    advanced()
            fetched = job.task.result()
            if not pickles_allowed and await self._in_thread(self._store.suspicious, file):
                # Another model, which may have them, brought it here.
                raise Rejected(f"{file.path} is a pickle inside, which runs code when it is loaded")
            return fetched if first else 0
        finally:
            job.waiting -= 1
            if not job.waiting:
                job.give_up()

    async def _bring(self, job: _Job, file: WeightFile, origins: tuple[Origin, ...], pickles_allowed: bool) -> int:
        def progress(done: int) -> None:
            job.done_bytes = done

        try:
            if await self._in_thread(self._store.has, file, progress):
                return 0
            if not origins:
                raise Rejected(f"{file.path} is not on this machine and no mirror was named to fetch it from")
            held = await self._in_thread(self._store.size_of_part, file.sha256)
            self._refuse_beyond_disk(file.size_bytes - held)
            with download.Part(self._store, file, pickles_allowed) as part:
                return await self._from_any(job, part, origins, progress)
        except download.Cancelled:
            raise asyncio.CancelledError from None
        finally:
            del self._jobs[file.sha256]

    def _refuse_beyond_disk(self, more_bytes: int) -> None:
        """Raises Rejected, with what takes the room."""
        full = self._store.room_for(more_bytes) if more_bytes else None
        if full is not None:
            largest = sorted(self.complete, key=lambda version: version.size_bytes, reverse=True)[:_NAMED]
            there = ", ".join(f"{version.weights} ({version.size_bytes // 2**20} MB)" for version in largest)
            raise Rejected(f"{full}; here are {there}: what nobody uses can be removed" if there else full)

    async def _from_any(
        self, job: _Job, part: download.Part, origins: tuple[Origin, ...], progress: Callable[[int], None]
    ) -> int:
        await self._in_thread(part.resume, progress, job.cancelled)
        without = 0
        mismatches = 0
        while True:
            absent = []
            for origin in origins:
                job.comes = True
                try:
                    return await self._in_thread(download.fetch, part, origin, progress, job.cancelled)
                except MirrorFailed as error:
                    log.warning("a mirror failed", extra={"file": part.file.path, "reason": str(error)})
                    if error.lasting:
                        absent.append(str(error))
                except Rejected as problem:
                    # Another mirror's copy or a second try may be right: a part may have been damaged at rest.
                    mismatches += 1
                    if isinstance(problem, download.Damaged):
                        self._attribute(problem, part.file)
                    if mismatches > 1:
                        raise
                    job.done_bytes = 0
            without = without + 1 if len(absent) == len(origins) else 0
            if without >= _ROUNDS_WITHOUT:
                raise Rejected("; ".join(absent))
            await job.pause()

    def _attribute(self, damaged: download.Damaged, file: WeightFile) -> None:
        """Say whose copy it was, to people and to whoever has it."""
        log.error("what came in is damaged", extra={"file": file.path, "reason": str(damaged)})
        for origin in damaged.origins:
            DAMAGED.labels(str(origin)).inc()
            asking = asyncio.create_task(self._in_thread(origin.doubt, file), name=f"doubting {origin}")
            self._doubts.add(asking)
            asking.add_done_callback(self._doubts.discard)

    async def _in_thread(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*arguments, **named))


def _named(used: Used) -> dict[str, list[str]]:
    return {
        shard_id: [f"{weights_used.name}@{weights_used.version}" for weights_used in weights]
        for shard_id, weights in used.items()
    }


def _looked_at(task: asyncio.Task[int]) -> None:
    """A failure nobody waits for any more is not an error of the program."""
    if not task.cancelled():
        task.exception()
