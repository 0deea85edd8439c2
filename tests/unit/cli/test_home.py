"""What a state directory remembers, and what of it a copy may believe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cli.console import blanked
from cli.failure import Failed
from cli.home import Endpoint, Home, PartSeen, Record
from cli.processes import seen


def running(root: Path) -> Home:
    """A directory whose record names this very process."""
    home = Home(root)
    home.make()
    us = seen(os.getpid())
    assert us is not None
    home.remember(Record(phase="ready", up=us, ports={"gateway": 8080}, parts={"nats": PartSeen(us)}, agents=("a",)))
    home.publish(Endpoint("http://127.0.0.1:8080/v1", "k", "a", "nats://127.0.0.1:4222", "postgresql://"))
    return home


def test_the_record_of_a_copy_names_nothing_that_runs(tmp_path: Path) -> None:
    original = running(tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    copy = Home(tmp_path / "copy")

    assert original.record().up is not None
    assert copy.record() == Record(ports={"gateway": 8080}, copied_from=str(tmp_path / "original"))
    with pytest.raises(Failed, match=f"is a copy of {tmp_path / 'original'}"):
        copy.endpoint()


def test_a_directory_that_was_moved_is_the_same(tmp_path: Path) -> None:
    running(tmp_path / "original")
    (tmp_path / "original").rename(tmp_path / "moved")

    assert Home(tmp_path / "moved").record().up == seen(os.getpid())


def test_a_copy_in_which_something_was_started_is_a_directory_of_its_own(tmp_path: Path) -> None:
    running(tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    copy = Home(tmp_path / "copy")
    copy.remember(Record(up=seen(os.getpid())))

    assert copy.record().up == seen(os.getpid())
    assert copy.endpoint().client_key == "k"


def test_keys_that_an_earlier_version_wrote_into_a_log_are_blanked(tmp_path: Path) -> None:
    log, key = tmp_path / "up.log", f"sk-llmgw-{'a' * 43}"
    log.write_bytes(b"before \xff\n  client key  " + key.encode() + b"\nafter\n")
    with log.open("ab") as writer:
        blanked(log)
        writer.write(b"more\n")

    assert log.read_bytes() == b"before \xff\n  client key  sk-llmgw-aaaa***\nafter\nmore\n"
    blanked(tmp_path / "none.log")
