from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from libs.runtime import logs, secrets, traces


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)


def test_json_lines_carry_who_what_and_more() -> None:
    out = io.StringIO()
    logs.configure("scheduler", "scheduler-1", "info", "json", out)
    log = logging.getLogger("llmgw.test")
    log.debug("not shown")
    log.info("placed %s", "r-1", extra={"replica_id": "r-1"})
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("could not")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["message"] == "placed r-1"
    assert first["replica_id"] == "r-1"
    assert first["service"] == "scheduler"
    assert first["instance"] == "scheduler-1"
    assert first["time"].endswith("Z")
    assert "ValueError: broken" in second["error"]
    assert second["level"] == "error"


def test_trace_id_is_in_the_line() -> None:
    out = io.StringIO()
    logs.configure("x", "x-1", form="json", stream=out)
    with traces.span("s", {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}):
        logging.getLogger("llmgw.test").info("inside")
    assert json.loads(out.getvalue())["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_console_lines_are_short() -> None:
    out = io.StringIO()
    logs.configure("guard", "guard-1", form="console", stream=out)
    logging.getLogger("llmgw.test").warning("hm", extra={"n": 1})
    assert out.getvalue()[8:] == " guard  warning: hm n=1\n"


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(secrets.client_key(), id="client key"),
        secrets.engine_key(bytes(32), "r-1", 1),
        "SUAM" + "A2B3" * 13 + "AB",
        "hunter2hunter2",
    ],
)
def test_secrets_are_blanked(secret: str) -> None:
    for text in (f"authorization: Bearer {secret}", f"postgresql://u:{secret}@h/d"):
        assert secret not in logs.blank(text)
    if secret != "hunter2hunter2":
        assert secret not in logs.blank(f"key {secret}.")


def test_plain_words_stay() -> None:
    for text in ("http://127.0.0.1:8080/v1 is up", "bearer of news", "SUBJECT llmgw.evt", "14:02:01 a@b.c"):
        assert logs.blank(text) == text


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_control_character_of_what_is_logged_reaches_a_terminal(form: logs.Format) -> None:
    stream = io.StringIO()
    logs.configure("gateway", "gateway-1", form=form, stream=stream)

    logging.getLogger("x").warning("the model %s", "\x1b]0;title\x07\x9b2J")

    said = stream.getvalue()
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "title" in said
