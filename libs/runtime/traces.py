"""Traces (OpenTelemetry), with the W3C context carried in message and HTTP headers.

Without an exporter nothing is recorded, but a context that came in still goes out: the caller's trace stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Kind = Literal["internal", "server", "client", "producer", "consumer"]

_KINDS = {kind.name.lower(): kind for kind in SpanKind}
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("llmgw")
_nothing: AbstractContextManager[Span] = nullcontext(trace.INVALID_SPAN)


def configure(service: str, instance: str, endpoint: str | None) -> None:
    """Export spans to an OTLP/HTTP collector (``http://collector:4318``). None: record nothing."""
    if endpoint is None:
        return
    # Half of a second of imports that only somebody with a collector should pay for.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": f"llmgw-{service}", "service.instance.id": instance})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")))
    trace.set_tracer_provider(provider)


def shutdown() -> None:
    """Send what is still held. Blocks for some seconds when the collector does not answer."""
    provider = trace.get_tracer_provider()
    if hasattr(provider, "shutdown"):
        provider.shutdown()


def recording() -> bool:
    """Whether spans go anywhere."""
    return hasattr(trace.get_tracer_provider(), "add_span_processor")


def span(
    name: str,
    parent: Mapping[str, str] | None = None,
    kind: Kind = "internal",
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> AbstractContextManager[Span]:
    """A span as a context manager, below the one whose context ``parent`` (headers) carries, else the current one.

    An exception that passes through marks it failed. Costs next to nothing when nothing is recorded and no context
    came in.
    """
    if not recording() and (parent is None or "traceparent" not in parent):
        return _nothing
    return _span(name, parent, kind, attributes)


@contextmanager
def _span(
    name: str, parent: Mapping[str, str] | None, kind: Kind, attributes: Mapping[str, Any] | None
) -> Iterator[Span]:
    context = _propagator.extract(parent) if parent is not None else None
    current = _tracer.start_span(name, context=context, kind=_KINDS[kind], attributes=dict(attributes or {}))
    token = otel_context.attach(trace.set_span_in_context(current, context))
    try:
        yield current
    except BaseException as problem:
        # Only the type: messages of exceptions may quote what a user wrote.
        current.set_status(Status(StatusCode.ERROR, type(problem).__name__))
        raise
    finally:
        otel_context.detach(token)
        current.end()


def inject(headers: MutableMapping[str, str]) -> None:
    """Add ``traceparent`` (and ``tracestate``) of the current span to ``headers``; nothing when there is none."""
    _propagator.inject(headers)


def trace_id() -> str | None:
    """The current trace's id (32 hex digits), or None."""
    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None
