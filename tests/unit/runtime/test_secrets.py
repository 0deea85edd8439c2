from __future__ import annotations

import stat
from pathlib import Path

import pytest

from libs.runtime.secrets import (
    BadSecret,
    SealingKey,
    client_key,
    engine_key,
    fleet_secret,
    key_hash,
    read_reference,
    seal,
)


def test_client_keys_have_the_documented_form() -> None:
    key = client_key()
    assert key.startswith("sk-llmgw-")
    assert len(key) == len("sk-llmgw-") + 43
    assert key != client_key()
    assert len(key_hash(key)) == 64


def test_engine_key_depends_on_all_it_is_made_of_and_never_changes() -> None:
    secret = bytes(32)
    # Pinned: an engine that runs was given this key; a gateway of a later version must derive the same.
    assert engine_key(secret, "r-1", 1) == "ek-K-DVFGYvHh2YeYeHpO2kMTAXCwGLjbD-RG-8QW_CzFQ"
    assert len({engine_key(secret, "r-1", 1), engine_key(secret, "r-1", 2), engine_key(secret, "r-2", 1)}) == 3
    assert engine_key(b"\1" * 32, "r-1", 1) != engine_key(secret, "r-1", 1)


def test_sealed_is_opened_only_by_its_machine(tmp_path: Path) -> None:
    mine = SealingKey.load(tmp_path / "a" / "seal")
    again = SealingKey.load(tmp_path / "a" / "seal")
    other = SealingKey.load(tmp_path / "b")
    sealed = seal(mine.public_hex, b"ek-secret")
    assert b"ek-secret" not in bytes.fromhex(sealed)
    assert again.open(sealed) == b"ek-secret"
    with pytest.raises(BadSecret, match="not sealed to this machine"):
        other.open(sealed)
    with pytest.raises(BadSecret):
        mine.open("zz")
    with pytest.raises(BadSecret, match="not a public sealing key"):
        seal("00", b"x")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600


def test_damaged_sealing_key_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("nonsense")
    with pytest.raises(BadSecret, match="remove the file"):
        SealingKey.load(tmp_path / "key")


def test_fleet_secret_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "fleet"
    assert fleet_secret(path) == fleet_secret(path)
    assert len(fleet_secret(path)) == 32
    path.write_text("short")
    with pytest.raises(BadSecret, match="openssl rand"):
        fleet_secret(path)


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").write_text("from a file\n")
    monkeypatch.setenv("SOME_SECRET", "from the environment")
    assert read_reference(f"file:{tmp_path / 's'}") == "from a file"
    assert read_reference("env:SOME_SECRET") == "from the environment"
    with pytest.raises(BadSecret, match="set the environment variable NOT_THERE"):
        read_reference("env:NOT_THERE")
    with pytest.raises(BadSecret) as caught:
        read_reference("hunter2")
    assert "hunter2" not in str(caught.value)
