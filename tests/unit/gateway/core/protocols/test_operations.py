"""Every operation is described, counted and checked wherever one must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from libs.events.usage import Protocol
from services.gateway.core.errors import body_of, protocol_of
from services.gateway.core.faults import Fault
from services.gateway.core.http.openapi import BODIES
from services.gateway.core.protocols.operations import OPERATIONS, Operation
from services.gateway.core.request.body import _CHECKS, Body, ParsedRequest, parse, received
from tests.integration.gateway.test_protocols import PATHS, asked
from tests.unit.gateway.mutations import CORPUS

CLIENTS = Path(__file__).parents[5] / "docs" / "clients.md"
READ = {field.name: field.type for field in msgspec.structs.fields(ParsedRequest)}
WITH_TEXT = [operation for operation in OPERATIONS if operation.content_field is not None]


def of(operation: Operation) -> str:
    return operation.path


def refusal(operation: Operation, body: dict[str, Any]) -> Fault:
    with pytest.raises(Fault) as caught:
        _read(operation, received(json.dumps(body).encode()))
    return caught.value


def _read(operation: Operation, body: Body) -> None:
    if operation.translate is None:
        parse(body, operation.content_field)
    else:
        parse(operation.translate(body, "t1", lambda: 0.0).body, operation.content_field, True)


def test_each_has_a_body_in_the_description_in_the_fuzzer_and_in_the_tests_and_a_row_in_the_manual() -> None:
    paths = {operation.path for operation in OPERATIONS}
    assert len(paths) == len(OPERATIONS)
    assert BODIES.keys() == paths
    assert {path for path, _ in CORPUS} == paths
    assert set(PATHS) == paths
    rows = [line for line in CLIENTS.read_text().splitlines() if line.startswith("| `POST ")]
    assert {path for path in paths if not any(f"{path}`" in row.split("|")[1] for row in rows)} == set()


@pytest.mark.parametrize("operation", OPERATIONS, ids=of)
def test_its_text_is_read_and_its_protocol_is_known_to_the_ledger(operation: Operation) -> None:
    assert operation.protocol in get_args(Protocol)
    if operation.content_field is not None:
        assert READ[operation.content_field] is msgspec.Raw
        assert operation.content_field in _CHECKS, "its type is checked where no translation does"
        assert operation.text_field in asked(operation.path), "the client's name of it"


@pytest.mark.parametrize("operation", WITH_TEXT, ids=of)
@pytest.mark.parametrize("value", [3, True, 0.5, {"a": 1}, [0.5], [[["a"]]]], ids=str)
def test_a_text_of_a_wrong_type_is_refused_naming_the_field(operation: Operation, value: Any) -> None:
    """In words, and in the client's format."""
    fault = refusal(operation, asked(operation.path) | {operation.text_field: value})
    assert fault.status == 400
    assert (fault.param or "").split(".")[0] == operation.text_field
    assert "send" in fault.message or "expected" in fault.message, fault.message
    assert fault.message in json.loads(body_of(fault, protocol_of(operation.path), "req-1"))["error"]["message"]


@pytest.mark.parametrize("field", _CHECKS)
@pytest.mark.parametrize("value", [3, True, {"a": 1}, [None], [[["a"]]]], ids=str)
def test_a_field_is_checked_where_no_translation_does(field: str, value: Any) -> None:
    with pytest.raises(Fault) as caught:
        parse(received(json.dumps({"model": "m", field: value}).encode()), field)
    assert (caught.value.param or "").split(".")[0] == field
