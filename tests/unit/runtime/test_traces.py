from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace

from libs.runtime import traces

PARENT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


def test_a_context_that_came_in_goes_out_though_nothing_is_recorded() -> None:
    out: dict[str, str] = {}
    with traces.span("handle", PARENT, "consumer"):
        traces.inject(out)
        assert traces.trace_id() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert out == PARENT
    assert traces.trace_id() is None


def test_without_context_nothing_is_added() -> None:
    out: dict[str, str] = {}
    with traces.span("handle", {}) as span:
        span.set_attribute("a", 1)
        traces.inject(out)
    assert out == {}
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_exceptions_pass_and_the_context_ends() -> None:
    with pytest.raises(ValueError, match="x"), traces.span("handle", PARENT):
        raise ValueError("x")
    assert traces.trace_id() is None


def test_recorded_spans_belong_to_the_trace_that_came_in() -> None:
    """In a process of its own: OpenTelemetry's provider is set once for all."""
    program = f"""
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from libs.runtime import traces
kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
out = {{}}
try:
    with traces.span("outer", {PARENT!r}, "server", {{"n": 1}}), traces.span("inner", kind="client"):
        traces.inject(out)
        raise ValueError("what a user wrote")
except ValueError:
    pass
inner, outer = kept.get_finished_spans()
assert format(outer.context.trace_id, "032x") == "4bf92f3577b34da6a3ce929d0e0e4736"
assert inner.parent.span_id == outer.context.span_id
assert format(inner.context.span_id, "016x") in out["traceparent"]
assert outer.status.description == "ValueError" and not outer.events
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def test_spans_reach_a_collector() -> None:
    received: list[bytes] = []

    async def collector(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        received.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(collector, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    program = f"""
from libs.runtime import traces
traces.configure("bakery", "bakery-1", {endpoint!r})
with traces.span("bake a loaf"):
    pass
traces.shutdown()
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0
    server.close()
    assert b"POST /v1/traces" in received[0]
    assert b"content-type: application/x-protobuf" in received[0].lower()
