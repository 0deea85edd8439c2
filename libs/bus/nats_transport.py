"""The bus over NATS JetStream."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import Service

from .nats_answers import NO_MESSAGE, UNREACHABLE, ApiRefused, meaning
from .nats_connection import NatsConnection
from .nats_reader import PullReader
from .nats_watch import Watch
from .supervision import supervise
from .transport import (
    START_LAST,
    START_NEW,
    Answerer,
    BusAway,
    Expectation,
    Extent,
    Full,
    Headers,
    Link,
    Progress,
    RawMessage,
    Reader,
    Reply,
    Room,
    Start,
    Stop,
    TooLarge,
)

log = logging.getLogger("llmgw.bus")

PROBED = "KV_desired"
"""A stream every identity may ask about."""
UNHEARD_NS = 3 * 10**9
"""Replicas of a stream hear each other once a second."""
ELSEWHERE = "503"
"""The error code of an answer that another instance may give."""
HEADERS_BYTES = 16 * 1024
"""Left for headers: the server counts them too, and closes the connection of who sends more than it takes."""


class NatsTransport(NatsConnection):
    """All that the bus needs of NATS, over one connection under one identity."""

    def __init__(self, client: Client, link: Link, identity: str, inbox_prefix: str, id_key: bytes) -> None:
        super().__init__(client, link, identity, inbox_prefix, id_key)
        self._services: dict[str, Service] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._watch = Watch(client, lambda: self.extent(PROBED))
        self._watching = supervise(
            lambda: self._watch.run(self._fail), name="the watch over the bus connection", fail=self._fail
        )

    def _fail(self, why: str) -> None:
        self.on_failure(why)

    def _measure(self, subject: str, payload: bytes) -> None:
        """Raises TooLarge."""
        limit = self.client.max_payload - HEADERS_BYTES
        if len(payload) > limit:
            raise TooLarge(f"{subject}: the message has {len(payload)} bytes, {limit} at most")

    async def publish(self, subject: str, payload: bytes, headers: Headers | None = None) -> None:
        if not self.connected:
            raise BusAway("not connected to the bus")
        self._measure(subject, payload)
        try:
            await self.client.publish(subject, payload, headers=dict(headers) if headers else None)
        except UNREACHABLE as error:
            raise BusAway(str(error) or type(error).__name__) from None

    async def store(
        self, subject: str, payload: bytes, headers: Headers, expect: Expectation | None = None, timeout_s: float = 2.0
    ) -> int:
        sent = dict(headers)  # nats-py changes the dict it is given
        if expect is not None:
            sent["Nats-Expected-Last-Subject-Sequence"] = str(expect.sequence)
            if expect.subject is not None:
                sent["Nats-Expected-Last-Subject-Sequence-Subject"] = expect.subject
        if not self.connected:
            raise BusAway("not connected to the bus")
        self._measure(subject, payload)
        answer = await self._call(subject, payload, sent, timeout_s)
        return int(answer["seq"])

    async def _call(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """One JetStream API request. Raises what ``nats_answers`` makes of the answer."""
        try:
            message = await self.client.request(subject, payload, timeout=timeout_s, headers=headers)
            answer: dict[str, Any] = json.loads(message.data)
            if "error" in answer:
                raise meaning(subject, answer["error"])
        except UNREACHABLE as error:
            self._watch.unanswered()
            raise BusAway(f"{subject}: {str(error) or type(error).__name__}") from None
        except BusAway as why:
            if not isinstance(why, Full):
                self._watch.unanswered()
            raise
        self._watch.answered()
        return answer

    async def api(self, call: str, request: Any = None) -> dict[str, Any]:
        """A JetStream API call, e.g. ``STREAM.INFO.EVENTS``. Raises BusAway, ApiRefused."""
        return await self._call(f"$JS.API.{call}", b"" if request is None else json.dumps(request).encode())

    async def last(self, stream: str, subject: str) -> RawMessage | None:
        return await self._stored(stream, {"last_by_subj": subject})

    async def last_here(self, stream: str, subject: str) -> RawMessage | None:
        asked = f"$JS.API.DIRECT.GET.{stream}.{subject}"
        try:
            message = await self.client.request(asked, b"", timeout=2)
        except UNREACHABLE as error:
            raise BusAway(f"{asked}: {str(error) or type(error).__name__}") from None
        headers = message.headers or {}
        if headers.get("Status"):
            return None
        at = datetime.fromisoformat(headers["Nats-Time-Stamp"])
        return RawMessage(subject, message.data, headers, int(headers["Nats-Sequence"]), at)

    async def message(self, stream: str, sequence: int) -> RawMessage | None:
        return await self._stored(stream, {"seq": sequence})

    async def extent(self, stream: str) -> Extent:
        info = await self.api(f"STREAM.INFO.{stream}")
        if "cluster" in info and not info["cluster"].get("leader"):
            # A server cut off from the others says what it has, which may be less than was stored.
            raise BusAway(f"{stream} has no leader now")
        replicas = info.get("cluster", {}).get("replicas") or ()
        heard = 1 + sum(
            1 for replica in replicas if not replica.get("offline") and replica.get("active", 0) < UNHEARD_NS
        )
        if 2 * heard <= 1 + len(replicas):
            # Cut off from the others it goes on calling itself leader for a while, and may be behind them.
            raise BusAway(f"the leader of {stream} hears {heard - 1} of its {len(replicas)} replicas")
        return Extent(str(info["created"]), int(info["state"]["last_seq"]), 1 + len(replicas))

    async def _stored(self, stream: str, request: dict[str, Any]) -> RawMessage | None:
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", request)
        except ApiRefused as error:
            if error.code in NO_MESSAGE:
                return None
            raise
        return _from_stored(answer["message"])

    async def read(self, stream: str, subjects: Sequence[str], start: Start) -> Reader:
        name = f"{self.identity}-{os.urandom(6).hex()}"
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 60 * 10**9,
            "replay_policy": "instant",
        }
        if start == START_NEW:
            config["deliver_policy"] = "new"
        elif start == START_LAST:
            config["deliver_policy"] = "last_per_subject"
        elif start == 0:
            config["deliver_policy"] = "all"
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": int(start) + 1}
        call = f"CONSUMER.CREATE.{stream}.{name}"
        if len(subjects) == 1:
            config["filter_subject"] = subjects[0]
            call += f".{subjects[0]}"
        elif subjects:
            config["filter_subjects"] = list(subjects)
        answer = await self.api(call, {"stream_name": stream, "config": config, "action": "create"})
        reader = PullReader(self, stream, name, batch=512, ordered=True)
        reader.pending = int(answer.get("num_pending", 0))
        await reader.open()
        return reader

    async def pull(self, stream: str, durable: str, batch: int) -> Reader:
        if not self.connected:
            raise BusAway(f"{durable} cannot be pulled: not connected")
        reader = PullReader(self, stream, durable, batch=batch, ordered=False)
        await reader.open()
        return reader

    async def progress(self, stream: str, durable: str) -> Progress:
        try:
            info = await self.api(f"CONSUMER.INFO.{stream}.{durable}")
        except ApiRefused as error:
            raise BusAway(f"{durable} cannot be looked at: {error}") from None
        handed_out = int(info["delivered"]["stream_seq"])
        # With nothing open everything was dealt with, though the floor may stand before a message that is gone.
        return Progress(int(info["ack_floor"]["stream_seq"]) if info["num_ack_pending"] else handed_out, handed_out)

    async def room(self, stream: str) -> Room:
        info = await self.api(f"STREAM.INFO.{stream}")
        state = info["state"]
        return Room(state["bytes"], info["config"]["max_bytes"], state["first_seq"], state["last_seq"])

    async def drop(self, stream: str, before: int) -> None:
        await self.api(f"STREAM.PURGE.{stream}", {"seq": before})

    async def subscribe(self, subject: str, handler: Callable[[RawMessage], Awaitable[None]]) -> Stop:
        async def on_message(message: Msg) -> None:
            try:
                await handler(
                    RawMessage(message.subject, message.data, message.headers or {}, reply=message.reply or "")
                )
            except Exception:
                log.exception("a subscriber to %s failed", subject)

        subscription = await self.client.subscribe(subject, cb=on_message)
        await self._flush()

        async def stop() -> None:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

        return stop

    async def request(self, subject: str, payload: bytes, headers: Headers, timeout_s: float) -> Reply:
        try:
            message = await self.client.request(subject, payload, timeout=timeout_s, headers=dict(headers))
        except UNREACHABLE as error:
            raise BusAway(str(error) or type(error).__name__) from None
        about = message.headers or {}
        elsewhere = about.get("Nats-Service-Error-Code") == ELSEWHERE
        return Reply(message.data, about.get("Nats-Service-Error"), elsewhere)

    async def serve(self, name: str, version: str, endpoints: Mapping[str, Answerer]) -> Stop:
        service = self._services.get(name)
        if service is None:
            service = await add_service(self.client, name=name, version=version, description=f"llmgw {name}")
            self._services[name] = service

        def wrap(answerer: Answerer) -> Callable[[Request], Awaitable[None]]:
            async def respond(request: Request) -> None:
                reply = await answerer(request.data)
                try:
                    if reply.error is None:
                        await request.respond(reply.payload)
                    else:
                        code = ELSEWHERE if reply.elsewhere else "400"
                        await request.respond_error(code, reply.error.replace("\n", " ")[:1000], reply.payload)
                except nats.errors.MaxPayloadError:
                    log.error("an answer on %s is too large to send: %d bytes", request.subject, len(reply.payload))
                    await request.respond_error("400", "the answer is too large to be sent")

            async def handle(request: Request) -> None:
                # nats-py hands out no further question before this returns.
                task = asyncio.create_task(respond(request), name=f"answer on {request.subject}")
                self._answering.add(task)
                task.add_done_callback(self._answered)

            return handle

        for subject, answerer in endpoints.items():
            await service.add_endpoint(name=subject.rsplit(".", 1)[-1], subject=subject, handler=wrap(answerer))

        await self._flush()

        async def stop() -> None:
            if self._services.pop(name, None) is not None:
                with suppress(nats.errors.Error):
                    await service.stop()

        return stop

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s was not sent: %s", task.get_name(), str(error) or type(error).__name__)

    async def _flush(self) -> None:
        """Until the server has seen a subscription, others may find nobody there."""
        with suppress(*UNREACHABLE):
            await self.client.flush(timeout=2)

    async def close(self) -> None:
        self._link.connected = False
        self._watching.cancel()
        for task in list(self._answering):
            task.cancel()
        for reader in list(self.readers):
            await reader.close()
        with suppress(Exception):
            await asyncio.wait_for(self.client.flush(timeout=2), 3)
        with suppress(Exception):
            await asyncio.wait_for(self.client.close(), 5)


def _from_stored(stored: Mapping[str, Any]) -> RawMessage:
    raw_headers = base64.b64decode(stored["hdrs"]) if stored.get("hdrs") else b""
    headers: dict[str, str] = {}
    for line in raw_headers.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode().strip()] = value.decode().strip()
    return RawMessage(
        subject=stored["subject"],
        payload=base64.b64decode(stored["data"]) if stored.get("data") else b"",
        headers=headers,
        sequence=int(stored["seq"]),
        time=datetime.fromisoformat(stored["time"]),
    )
