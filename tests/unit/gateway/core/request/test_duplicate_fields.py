from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.faults import Fault
from services.gateway.core.request.body import received


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"model":"a","model":"a"}', "model"),
        ('{"m":[{"content":"nice","content":"bad"}]}', "content"),
        ('{"m":[{"content":"nice","cont\\u0065nt":"bad"}]}', "content"),
        ('{"a" \t:1,"a"\n:2}', "a"),
        ('{"a":"\\u003a","a":"x"}', "a"),
        ('{"a":":","a":"\\u003A:"}', "a"),
        ('{"a\\\\":1,"a\\\\":2}', "a\\"),
        ('{"":1,"":{}}', ""),
        ('{"a":1e400,"a":1}', "a"),
        (f'{{"a":1,"a":2,"b":{"1" * 5000}}}', "a"),
        ('{"x":"half \\ud83d","a":1,"a":1}', "a"),
        ('{"a\\ud83d":1,"a\\ud83d":2}', "a\ufffd"),
    ],
)
def test_a_field_that_stands_twice_is_named(body: str, name: str) -> None:
    with pytest.raises(Fault) as raised:
        received(body.encode())
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "duplicate_field", name)
    assert f"'{name}'" in raised.value.message


@pytest.mark.parametrize(
    "body", ['{"a":{"a":1},"b":[{"a":1},{"a":2}]}', '{"a":"\\"a\\":1,\\"a\\":2"}', '{"a":"\\u003a"}', "", "[", "7", "x"]
)
def test_nothing_else_is_refused(body: str) -> None:
    received(body.encode())
    received(b"[" * 100_000)


TEXT = st.text(st.sampled_from('ab:\\" \U0001f600é'), max_size=5)
VALUES = st.recursive(
    TEXT | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner)
)


@given(st.dictionaries(TEXT, VALUES, min_size=1), st.data())
def test_any_object_once_and_with_one_field_repeated(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    received(text.encode())
    name = data.draw(st.sampled_from(sorted(value)))
    twice = f"{text.rstrip().removesuffix('}')}, {json.dumps(name)}: {json.dumps(data.draw(VALUES))}}}"
    with pytest.raises(Fault):
        received(twice.encode())
