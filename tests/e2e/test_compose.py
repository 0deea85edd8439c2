"""deploy/compose against the code: every command, variable, path and port in it, and then all of it run."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cli.main import llmgw
from libs.bus.identities import SERVICES as IDENTITIES
from libs.runtime.servers.nats import NatsFiles
from libs.runtime.settings import variable
from services.entry import SERVICES, settings_type

from .compose import DIRECTORY, VARIABLE, Stack, load

ROOT = DIRECTORY.parents[1]
ENVIRONMENT = {"POSTGRES_PASSWORD": "secret0of0this0test", "NODE_ID": "cpu-1", "LLMGW_PORT": "8080"}
TEXT = (DIRECTORY / "compose.yaml").read_text()
COMPOSE = load(ENVIRONMENT)
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"].startswith("llmgw")}
RUN = {name: service for name, service in OURS.items() if service.get("command", [""])[0] == "run"}
DOCKERFILE = (DIRECTORY / "Dockerfile").read_text()


def mounts(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for mount in service.get("volumes", []):
        source, inside = mount.split(":")[:2]
        yield source, inside


def test_every_variable_is_in_the_example_and_the_other_way_round() -> None:
    example = {line.partition("=")[0] for line in (DIRECTORY / ".env.example").read_text().splitlines() if "=" in line}

    assert {match["name"] for match in VARIABLE.finditer(TEXT)} == example


def test_every_volume_is_declared_and_used() -> None:
    used = {source for service in COMPOSE["services"].values() for source, _ in mounts(service)}

    assert {one for one in used if not one.startswith(".")} == set(COMPOSE["volumes"])
    assert all((DIRECTORY / one).is_file() for one in used if one.startswith("."))


def test_the_six_services_run() -> None:
    assert {service["command"][1] for service in RUN.values()} == set(SERVICES)


@pytest.mark.parametrize("name", [name for name, service in OURS.items() if "entrypoint" not in service])
def test_a_command_is_one_that_llmgw_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in OURS[name].get("environment", {}).items():
        monkeypatch.setenv(key, str(value))
    context, arguments = click.Context(llmgw), list(OURS[name].get("command", ["status"]))
    command: click.Command = llmgw
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None, f"llmgw has no {arguments[0]}"
        command, arguments = found, arguments[1:]

    command.make_context(name, arguments)


@pytest.mark.parametrize("name", RUN)
def test_a_service_is_told_settings_that_it_has(name: str) -> None:
    service = OURS[name]["command"][1]
    known = {variable(service, field) for field in settings_type(service).__struct_fields__}

    assert set(OURS[name]["environment"]) <= known


@pytest.mark.parametrize("name", OURS)
def test_a_container_reads_and_writes_only_what_is_mounted(name: str) -> None:
    service = OURS[name]
    inside = [path for _, path in mounts(service)]
    named = re.findall(
        r"/(?:identities|etc|var)/[\w/.-]+", json.dumps([service.get("command"), service.get("environment")])
    )

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    for path in named:
        assert any(path == one or path.startswith(f"{one}/") for one in inside), f"{name} is told {path}"


def test_nobody_mounts_the_identity_of_another() -> None:
    for name, service in OURS.items():
        identities = {source for source, _ in mounts(service) if source.startswith("id-")}
        shared = {"id-fleet"} if name in ("scheduler", "gateway") else set()
        own = {"bus-init": "operator", "demo": "operator", "cli": "operator"}.get(name, name)
        assert name == "prepare" or identities == {f"id-{own}"} | shared


def test_the_image_has_a_directory_for_every_identity_and_is_not_root() -> None:
    (made,) = re.findall(r"for identity in ([\w ]+);", DOCKERFILE)
    assert set(made.split()) == {inside.rpartition("/")[2] for _, inside in mounts(OURS["prepare"])}
    assert {*IDENTITIES, "operator", "node", "fleet", "nats"} == set(made.split())
    assert re.search(r"(?m)^USER llmgw$", DOCKERFILE)
    for sources in re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE):
        assert all((ROOT / source).exists() for source in sources.split())


def test_hosts_and_ports_that_are_named_exist() -> None:
    listening = {
        ("nats", 4222),
        ("postgres", 5432),
        ("mirror", int(OURS["mirror"]["environment"]["LLMGW_MIRROR_PORT"])),
    }
    for service in OURS.values():
        for value in service.get("environment", {}).values():
            for host, port in re.findall(r"(?://|@)([a-z]+):(\d+)", str(value)):
                assert (host, int(port)) in listening
    assert OURS["gateway"]["ports"] == [f"8080:{OURS['gateway']['environment']['LLMGW_GATEWAY_PORT']}"]
    assert OURS["node"]["environment"]["LLMGW_NODEAGENT_ADDRESS"] == "node"


@pytest.mark.parametrize("name", RUN)
def test_health_is_asked_where_it_is_answered(name: str) -> None:
    service = OURS[name]["command"][1]
    asked = re.findall(r"http://127\.0\.0\.1:(\d+)/ready", service_test(name))

    assert asked == [OURS[name]["environment"][variable(service, "status_port")]]


def service_test(name: str) -> str:
    return str(OURS[name]["healthcheck"]["test"][-1])


def test_who_is_waited_for_can_be_waited_for() -> None:
    for service in COMPOSE["services"].values():
        for other, how in service.get("depends_on", {}).items():
            target = COMPOSE["services"][other]
            if how["condition"] == "service_healthy":
                assert "healthcheck" in target
            else:
                assert target["restart"] == "on-failure"


def test_nats_is_configured_as_everywhere_else() -> None:
    here = (DIRECTORY / "nats.conf").read_text()
    ours = NatsFiles(directory=Path("/x"), port=4222).config()
    for option in (r"max_payload: \d+", r"sync_interval: \w+", r"feature_flags \{.*\}"):
        assert re.findall(option, here) == re.findall(option, ours) != []
    (monitoring,) = re.findall(r"(?m)^http: (\d+)$", here)
    assert f"http://127.0.0.1:{monitoring}/healthz" in service_test("nats")


def test_yaml_anchors_leave_nothing_behind() -> None:
    assert yaml.safe_load(TEXT).keys() == {"name", "x-llmgw", "x-ready", "x-after-bus", "services", "volumes"}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path, COMPOSE, ENVIRONMENT)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


def test_the_same_commands_as_plain_processes_answer_a_chat(stack: Stack) -> None:
    stack.until_healthy()
    key = json.loads(stack.run("cli", "key", "create", "demo/demo/demo", "--json"))["key"]
    body = {"model": "gemma3-270m", "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"http://127.0.0.1:{stack.port('gateway', '8080')}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)

    assert answer["choices"][0]["message"]["content"]
    assert "gemma3-270m: ready" in stack.run("cli", "status")
