"""Whatever is put into a body, at whatever place and in whatever spelling, is found; what is left is still a body."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.events.policy import Check, DenyRule, InputRules, PolicySpec, SecretsRule, Verdict
from services.gateway.core.request.body import Body, edited
from services.gateway.core.request.policy_text import PolicyText
from services.guard.core.judge import judge
from services.guard.core.policies import Policy, compile_policy

AWS_KEY = "AKIA" + "QZ7XW4KD2MNB5RTE"
CARD = "4111111111111111"
EMAIL = "ann@example.com"
PEM = (
    "-----BEGIN PRIVATE "
    + "KEY-----\n"
    + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\n" * 4
    + "-----END PRIVATE "
    + "KEY-----"
)
PLACEHOLDER = {AWS_KEY: "[SECRET_1]", PEM: "[SECRET_1]", CARD: "[CARD_1]", EMAIL: "[EMAIL_1]"}


def policy(action: str) -> dict[str, Policy]:
    rules = InputRules(
        secrets=SecretsRule(action=action),  # type: ignore[arg-type]
        pii={"email": action, "card": action},  # type: ignore[dict-item]
        deny=(DenyRule(name="zeus", pattern=r"(?i)\bproject\s+zeus\b", action=action),),  # type: ignore[arg-type]
    )
    return {"p": compile_policy(PolicySpec(name="p", mode="enforce", input=rules))}


BLOCK, REDACT = policy("block"), policy("redact")


def verdict_on(body: bytes, policies: dict[str, Policy]) -> Verdict:
    return judge(
        Check(
            gateway_id="g",
            check_id="c",
            request_id="r",
            project="a/b/c",
            policies=("p",),
            segments=PolicyText(Body(body)).segments(),
            reply="i",
        ),
        policies,
    )


def redacted(body: bytes) -> bytes:
    verdict = verdict_on(body, REDACT)
    assert verdict.allow
    return edited(body, PolicyText(Body(body)).edit(verdict.edits))


def call(arguments: str) -> bytes:
    tool = {"id": "c", "type": "function", "function": {"name": "send", "arguments": arguments}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [tool]}]
    return json.dumps({"model": "m", "messages": messages}).encode()


def arguments_of(body: bytes) -> str:
    return str(json.loads(body)["messages"][1]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("text", [AWS_KEY, CARD, EMAIL, PEM, "Project  Zeus"])
@pytest.mark.parametrize("before", ["\n", "\t", '"', "\\", "\r\n", "é", "\b", "\x7f", "\u2028", "🎉"])
def test_what_follows_an_escape_in_a_tools_arguments_is_found_and_replaced(text: str, before: str) -> None:
    """Given arguments with arguments in them, when redacted, then they differ in the one place at every level."""
    if text == EMAIL and before == "é":
        pytest.skip("a letter, which may be the address's own")
    value: Any = {"body": f"key{before}{text}{before}end", "n": 1.10, "ü": [True, None]}
    clean: Any = {**value, "body": f"key{before}{PLACEHOLDER.get(text, '[REDACTED_1]')}{before}end"}
    for plain in (True, False):
        nested, wanted = value, clean
        for _ in range(3):
            body = call(json.dumps(nested, ensure_ascii=plain))
            assert not verdict_on(body, BLOCK).allow
            assert json.loads(arguments_of(redacted(body))) == wanted
            nested = {"x": json.dumps(nested, ensure_ascii=plain)}
            wanted = {"x": json.dumps(wanted, ensure_ascii=plain)}


def test_what_is_not_redacted_keeps_its_bytes() -> None:
    arguments = (
        '{ "a":1.10,\t"to" : "x\\/y\\u00e9\\nann@example.com", "big":12345678901234567890, "n":4111111111111111}'
    )
    assert arguments_of(redacted(call(arguments))) == arguments.replace(EMAIL, "[EMAIL_1]").replace(CARD, '"[CARD_1]"')


def test_a_key_without_an_end_takes_nothing_of_what_follows_it() -> None:
    cut = PEM.partition("-----END")[0]
    arguments = json.loads(arguments_of(redacted(call(json.dumps({"key": cut, "then": "hello", "more": ["a"]})))))
    assert arguments["then"] == "hello"
    assert arguments["more"] == ["a"]
    assert "MII" not in arguments["key"]


def test_one_person_has_one_placeholder_in_every_spelling() -> None:
    text = (
        f"{EMAIL} ann%40example.com "
        + json.dumps(f"hi\n{EMAIL}\t")
        + " a\u200bnn@exam\u00adple.com ann&#64;example.com"
    )
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    said = json.loads(redacted(body))["messages"][0]["content"]
    assert said == '[EMAIL_1] [EMAIL_1] "hi\\n[EMAIL_1]\\t" [EMAIL_1] [EMAIL_1]'
    (finding,) = verdict_on(body, REDACT).findings
    assert finding.count == 5


def test_a_blob_with_something_in_it_is_replaced_as_a_whole_and_others_are_left() -> None:
    blob = base64.b64encode(f"login {EMAIL} and more".encode()).decode()
    other = base64.b64encode(b"nothing to be found in this one").decode()
    body = json.dumps({"messages": [{"role": "user", "content": f"a {blob} b {other}"}]}).encode()
    assert json.loads(redacted(body))["messages"][0]["content"] == f"a [EMAIL_1] b {other}"


def spelled_json(text: str) -> str:
    return json.dumps({"k": ["v", text]})


SPELLINGS = {
    "json": spelled_json,
    "json twice": lambda text: spelled_json(spelled_json(text)),
    "a string literal": lambda text: f"x = {json.dumps(text, ensure_ascii=False)};",
    "code points": lambda text: "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text),
    "percent": lambda text: "https://h.example/?q=" + quote(text, safe=""),
    "entities": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "base64": lambda text: "data " + base64.b64encode(f"the text reads {text} here".encode()).decode(),
    "base64, url safe": lambda text: base64.urlsafe_b64encode(f"the text reads {text} here".encode()).decode(),
    "base64 in lines": lambda text: base64.encodebytes(f"{'long text ' * 9}{text} here".encode()).decode(),
    "no width": lambda text: "\u200b".join(text),
    "full width": lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isalnum() and c.isascii() else c for c in text),
    "in colour": lambda text: f"\x1b[31;1m{text}\x1b[0mend",
}
places = st.recursive(
    st.just("HERE"),
    lambda inner: st.one_of(
        st.lists(st.text(max_size=5), max_size=2).flatmap(lambda a: inner.map(lambda x: [*a, x])),
        st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2).flatmap(
            lambda d: inner.map(lambda x: {**d, "inside": x})
        ),
    ),
    max_leaves=3,
)
fields = st.sampled_from(
    ["messages", "tools", "response_format", "guided_choice", "guided_regex", "grammar", "structured_outputs", "extra"]
)


def put(place: Any, text: str) -> Any:
    if isinstance(place, list):
        return [put(inner, text) for inner in place]
    if isinstance(place, dict):
        return {name: put(inner, text) for name, inner in place.items()}
    return text if place == "HERE" else place


@settings(deadline=None, max_examples=150)
@given(
    fields,
    places,
    st.lists(st.sampled_from(sorted(SPELLINGS)), max_size=2),
    st.sampled_from([AWS_KEY, CARD, EMAIL]),
    st.sampled_from(["", "\n", '"', "say ", "é ", "(", "\\"]),
)
def test_whatever_is_put_anywhere_is_found_and_the_rest_stays(
    field: str, place: Any, spellings: list[str], value: str, before: str
) -> None:
    text = before + value
    for spelling in spellings:
        text = SPELLINGS[spelling](text)
    body = json.dumps({"model": "m", field: put(place, text)}, ensure_ascii=False).encode()
    assert not verdict_on(body, BLOCK).allow
    clean = redacted(body)
    assert verdict_on(clean, BLOCK).allow
    said = json.loads(clean)[field]
    changed = found_at(said, place)
    assert json.dumps(said) == json.dumps(put(place, changed)), "what is beside it stays"


def found_at(said: Any, place: Any) -> Any:
    if isinstance(place, list):
        return next(x for x in (found_at(s, p) for s, p in zip(said, place, strict=True)) if x is not None)
    if isinstance(place, dict):
        return next(x for x in (found_at(said[name], inner) for name, inner in place.items()) if x is not None)
    return said if place == "HERE" else None


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
@settings(deadline=None)
def test_any_text_is_judged_and_nothing_is_made_up(text: str) -> None:
    for written in (text, json.dumps({"a": text}), quote(text, safe="", errors="replace")):
        body = json.dumps({"messages": [{"role": "user", "content": written}]}).encode()
        verdict = verdict_on(body, REDACT)
        assert verdict.problem is None
        if not verdict.findings:
            assert verdict.edits == ()
