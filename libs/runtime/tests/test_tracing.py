"""Traces: propagation, parents and links, and the cost of an unsampled request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.otlp_environment import RATIO_DEFAULT, exports, is_asked_for, sampler_argument
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.telemetry_otlp import export_spans
from ponor_runtime.tracing import LINKS_MAX, Span, SpanKind, TraceContext


class Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS

    def named(self, name: str) -> ReadableSpan:
        (span,) = [each for each in self.spans if each.name == name]
        return span


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_steps_links_and_kinds_are_exported() -> None:
    telemetry, kept = Telemetry(), Kept()
    stop = export_spans(telemetry, kept, Resource.get_empty(), ALWAYS_ON)
    tracing, began = telemetry.tracing, time.monotonic_ns()
    assert tracing is not None
    request = tracing.begin("ponor.kafka.request", {"messaging.system": "kafka"}, kind=SpanKind.SERVER)
    assert request is not None
    request.step("ponor.produce.append", began, {"messaging.kafka.offset": 5}, ended_ns=began + 1_000_000)
    request.end()
    request.end()
    others = [TraceContext(1, number) for number in range(1, 100)]
    with telemetry.continued("ponor.upload", [request.context, *others]):
        pass
    stop()
    assert telemetry.tracing is None
    sent, step, upload = (
        kept.named(f"ponor.{name}") for name in ("kafka.request", "produce.append", "upload")
    )
    assert sent.context is not None
    assert (sent.kind.name, sent.parent) == ("SERVER", None)
    assert parent_of(step) == parent_of(upload) == sent.context.span_id
    assert step.end_time is not None
    assert step.start_time is not None
    assert step.end_time - step.start_time == 1_000_000
    assert len(upload.links) == LINKS_MAX
    assert upload.links[0].context.span_id == sent.context.span_id


async def test_tasks_inherit_the_span_and_the_synchronous_path_does_not_leak_it() -> None:
    telemetry, kept = Telemetry(), Kept()
    stop = export_spans(telemetry, kept, Resource.get_empty(), ALWAYS_ON)
    tracing = telemetry.tracing
    assert tracing is not None
    request = tracing.begin("ponor.kafka.request")
    assert request is not None

    async def work() -> TraceContext | None:
        with telemetry.step("ponor.fetch.find"):
            pass
        return tracing.current()

    loop = asyncio.get_running_loop()
    inside = tracing.inside(request)
    assert await inside.run(loop.create_task, work()) == request.context
    assert await loop.create_task(work()) is None
    stop()
    assert parent_of(kept.named("ponor.fetch.find")) == request.context.span_id


def test_error_is_recorded_on_its_span_only() -> None:
    telemetry, kept = Telemetry(), Kept()
    stop = export_spans(telemetry, kept, Resource.get_empty(), ALWAYS_ON)
    with pytest.raises(ZeroDivisionError), telemetry.span("ponor.fetch.objects"):
        raise ZeroDivisionError
    stop()
    span = kept.named("ponor.fetch.objects")
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ZeroDivisionError"
    assert span.status.status_code.name == "ERROR"


def test_unsampled_trace_has_no_span_and_no_children() -> None:
    telemetry, kept = Telemetry(), Kept()
    stop = export_spans(telemetry, kept, Resource.get_empty(), ALWAYS_OFF)
    assert telemetry.tracing is not None
    assert telemetry.tracing.begin("ponor.kafka.request") is None
    with telemetry.span("ponor.fetch.objects") as span, telemetry.step("ponor.fetch.find") as step:
        assert span is None
        assert step is None
        assert telemetry.tracing.current() is None
    stop()
    assert kept.spans == []


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1))
def test_context_round_trips_as_traceparent(trace_id: int, span_id: int) -> None:
    context = TraceContext(trace_id, span_id)
    assert TraceContext.parse(context.traceparent) == context
    assert TraceContext.parse(context.traceparent.removesuffix("01") + "00") is None


@pytest.mark.parametrize(
    "text",
    ["", "00-1-2-01", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", "00-" + "g" * 52],
)
def test_malformed_traceparent_is_none(text: str) -> None:
    assert TraceContext.parse(text) is None


def test_nothing_is_exported_without_an_endpoint() -> None:
    assert not is_asked_for({})
    assert not is_asked_for({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"})
    assert is_asked_for({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"})
    assert exports({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}) == (True, True)
    assert exports({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}) == (True, False)
    assert exports({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}) == (
        False,
        True,
    )


def test_default_sampling_ratio_applies_unless_the_environment_overrides_it() -> None:
    assert sampler_argument({}) == RATIO_DEFAULT
    assert sampler_argument({"OTEL_TRACES_SAMPLER_ARG": "0.5"}) == 0.5
    assert sampler_argument({"OTEL_TRACES_SAMPLER": "always_on"}) is None
    for wrong in ("2", "-1", "often"):
        with pytest.raises(StartRefusedError, match="share of requests, a number from 0 to 1"):
            sampler_argument({"OTEL_TRACES_SAMPLER_ARG": wrong})


def test_unsupported_protocol_or_exporter_is_refused_by_name() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}
    with pytest.raises(StartRefusedError, match="http/protobuf"):
        exports({**endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    with pytest.raises(StartRefusedError, match="OTEL_METRICS_EXPORTER=console"):
        exports({**endpoint, "OTEL_METRICS_EXPORTER": "console"})


def test_recorded_span_implements_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the runtime behaviour against the protocol that services use."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    telemetry, kept = Telemetry(), Kept()
    stop = export_spans(telemetry, kept, Resource.get_empty())
    assert telemetry.tracing is not None
    span: Span | None = telemetry.tracing.begin("ponor.kafka.request")
    assert span is not None
    span.set({"messaging.client.id": "me"})
    span.end(error="KafkaWireError")
    stop()
    assert dict(kept.named("ponor.kafka.request").attributes or {}) == {
        "messaging.client.id": "me",
        "error.type": "KafkaWireError",
    }
