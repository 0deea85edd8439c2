from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from libs.runtime.servers.nats import NatsFiles
from libs.runtime.servers.ports import NotReady
from libs.runtime.servers.postgres import programs
from libs.testing import eventually
from libs.testing.nats import NatsServer
from libs.testing.postgres import PostgresServer


def sql(dsn: str, statement: str) -> str:
    done = subprocess.run([str(programs() / "psql"), dsn, "-Atqc", statement], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nats_survives_stop_kill_and_restart_on_its_port(nats_server: NatsServer) -> None:
    port = nats_server.port
    nats_server.kill()
    assert not nats_server.running
    assert not nats_server.answers()
    nats_server.start()
    nats_server.restart()
    assert nats_server.port == port
    assert nats_server.answers()


def test_nats_that_cannot_start_says_where_its_log_is(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, authorization="authorization { what_is_this: 1 }")
    with pytest.raises(NotReady, match=r"nats-server\.log"):
        server.start()


def test_nats_configuration_turns_the_new_acknowledgements_off(tmp_path: Path) -> None:
    text = NatsFiles(directory=tmp_path, port=4222, authorization="authorization { users = [] }").config()
    assert "js_ack_fc_v2: false" in text
    assert "max_payload: 8388608" in text
    assert json.dumps(str(tmp_path / "jetstream")) in text
    assert text.rstrip().endswith("authorization { users = [] }")


def test_postgres_keeps_its_rows_over_kill_and_restart(postgres_server: PostgresServer) -> None:
    sql(postgres_server.dsn, "create table kept (n int)")
    sql(postgres_server.dsn, "insert into kept values (7)")
    postgres_server.restart()
    assert sql(postgres_server.dsn, "select n from kept") == "7"
    postgres_server.kill()
    postgres_server.start()
    assert sql(postgres_server.dsn, "show server_encoding") == "UTF8"
    assert int(sql(postgres_server.dsn, "show server_version_num")) >= 180000


def test_each_test_gets_an_empty_database(postgres_dsn: str) -> None:
    assert sql(postgres_dsn, "select count(*) from pg_tables where schemaname = 'public'") == "0"


def test_postgres_wants_the_password(postgres_dsn: str) -> None:
    wrong = postgres_dsn.replace("llmgw:test@", "llmgw:wrong@")
    done = subprocess.run([str(programs() / "psql"), wrong, "-c", "select 1"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "password authentication failed" in done.stderr


async def test_eventually_returns_what_became_true() -> None:
    start = time.monotonic()
    assert await eventually(lambda: time.monotonic() - start > 0.05 and "yes") == "yes"


async def test_eventually_says_what_it_last_saw() -> None:
    def condition() -> bool:
        raise ValueError("the cupboard is bare")

    with pytest.raises(AssertionError, match="the cupboard is bare"):
        await eventually(condition, deadline_s=0.05)
