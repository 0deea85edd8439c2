"""Removing weights: whole versions, only what the store put there, only links and never where they lead."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.events.library import WeightFile
from libs.testing.files import file_of
from services.nodeagent.adapters.weights.store import Rejected, Store
from services.nodeagent.core.shard.weights import removal_refusal
from tests.unit.nodeagent.wanted import weights

NOTHING: frozenset[str] = frozenset()


def here(store: Store) -> list[str]:
    return [one.weights for one in store.complete()]


def put(root: Path, store: Store, name: str, *contents: bytes) -> tuple[WeightFile, ...]:
    files = tuple(file_of(content, f"sub/{n}.gguf" if n else "0.gguf") for n, content in enumerate(contents))
    for file, content in zip(files, contents, strict=True):
        (root / "content" / file.sha256).write_bytes(content)
    store.link(weights(*files, name=name))
    return files


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_a_version_goes_with_what_only_it_has(tmp_path: Path, store: Store) -> None:
    shared, own = put(tmp_path, store, "one", b"shared", b"own1")
    put(tmp_path, store, "two", b"shared")
    assert [(one.weights, one.size_bytes, one.shared_bytes) for one in store.complete()] == [
        ("one@v1", 10, 6),
        ("two@v1", 6, 6),
    ]
    assert store.remove("one", "v1", NOTHING) == 4
    assert here(store) == ["two@v1"]
    assert sorted(path.name for path in (tmp_path / "content").iterdir()) == [shared.sha256]
    assert not (tmp_path / "models" / "one").exists()
    with pytest.raises(Rejected, match="one@v1 is not on this machine"):
        store.remove("one", "v1", NOTHING)
    assert own.sha256 != shared.sha256


def test_what_another_version_waits_for_stays(tmp_path: Path, store: Store) -> None:
    (file,) = put(tmp_path, store, "one", b"x" * 10)
    assert store.remove("one", "v1", frozenset({file.sha256})) == 0
    assert (tmp_path / "content" / file.sha256).exists()


def test_a_version_that_lacks_a_file_is_not_there(tmp_path: Path, store: Store) -> None:
    (file,) = put(tmp_path, store, "one", b"x" * 10)
    (tmp_path / "content" / file.sha256).unlink()
    assert here(store) == []
    assert store.remove("one", "v1", NOTHING) == 0


def test_of_links_only_the_link_goes(tmp_path: Path, store: Store) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / ("ab" * 32)
    precious.write_bytes(b"precious")
    put(tmp_path, store, "one", b"x")
    folder = tmp_path / "models" / "one" / "v1"
    (folder / "outside.gguf").symlink_to(precious)
    (tmp_path / "content" / ("ab" * 32)).symlink_to(precious)
    store.remove("one", "v1", NOTHING)
    assert precious.read_bytes() == b"precious"
    assert not (tmp_path / "content" / ("ab" * 32)).is_symlink()
    (tmp_path / "models" / "evil").mkdir()
    (tmp_path / "models" / "evil" / "v1").symlink_to(elsewhere)
    assert here(store) == []
    with pytest.raises(Rejected, match="is not on this machine"):
        store.remove("evil", "v1", NOTHING)
    assert precious.exists()


def test_what_the_store_did_not_put_there_keeps_the_version(tmp_path: Path, store: Store) -> None:
    put(tmp_path, store, "one", b"x")
    notes = tmp_path / "models" / "one" / "v1" / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(Rejected, match=r"notes\.txt was not put there by llmgw: nothing was removed"):
        store.remove("one", "v1", NOTHING)
    assert here(store) == ["one@v1"]


def test_a_removal_that_was_cut_short_is_finished(tmp_path: Path, store: Store) -> None:
    (file,) = put(tmp_path, store, "one", b"x" * 10)
    (tmp_path / "models" / "one" / "v1").rename(tmp_path / "removing" / "one@v1")
    assert here(store) == []
    assert store.finish_removals(NOTHING) == 10
    assert not (tmp_path / "content" / file.sha256).exists()
    assert list((tmp_path / "removing").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        ("one", "v1", "r-1-0 uses one@v1"),
        ("two", "v1", "r-2-0 is to run two@v1 here"),
        ("three", "v1", "three@v1 is being fetched"),
        ("..", "v1", "cannot be the name of weights"),
        ("one", "../../x", "cannot be the name of weights"),
        ("one", "v2", None),
    ],
)
def test_what_is_used_stays(name: str, version: str, why: str | None) -> None:
    found = removal_refusal(
        name, version, running={"r-1-0": ["one@v1"]}, wanted={"r-2-0": ["base@v1", "two@v1"]}, fetching=["three@v1"]
    )
    assert found is None if why is None else why in (found or "")
