"""Spans of requests, only where a setting asks for them."""

import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service import app as composed
from service.http import metrics as telemetry
from tests.unit.service.served import Serve
from tools.errors import InputError


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(composed, "open_spans", lambda endpoint: provider)
    return kept


def last(exporter: InMemorySpanExporter) -> ReadableSpan:
    return exporter.get_finished_spans()[-1]


def test_a_request_is_a_span_named_by_its_route(serve: Serve, exporter: InMemorySpanExporter) -> None:
    client = serve(otlp_endpoint="http://127.0.0.1:9").client
    client.get("/v1/hardware/h100", headers={"X-Request-Id": "r1"})
    span = last(exporter)
    assert span.name == "GET /v1/hardware/{name}"
    assert span.attributes
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["asap.request_id"] == "r1"


def test_a_real_exporter_can_be_opened_and_closed() -> None:
    telemetry.open_spans("http://127.0.0.1:9").shutdown()


def test_missing_packages_are_named_with_their_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InputError, match="ASAP_OTLP_ENDPOINT"):
        telemetry.open_spans("http://127.0.0.1:9")
