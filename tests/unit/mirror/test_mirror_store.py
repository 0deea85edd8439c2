"""The store and what is taken into it, on a real disk."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.events.library import WeightFile
from libs.events.refusal import Refused
from libs.testing.weights import gguf, safetensors
from services.mirror.adapters.intake import GivenUp, Imported, Intake
from services.mirror.adapters.store import Store, StoreTaken
from services.mirror.core.source import PackageSource, PathSource
from tests.data.models.gguf_headers import qwen2_5_0_5b

GGUF = gguf(bytes(range(256)) * 40)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "data")
    store.open()
    yield store
    store.close()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.gguf").write_bytes(GGUF)
    (folder / "sub" / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder


def take(store: Store, path: Path) -> Imported:
    return Intake(store).bring_in(PathSource(str(path)), "m")


def stored(store: Store, tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "data" / "store" / "sha256").rglob("*") if p.is_file())


def incoming(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "data" / "store" / "incoming").iterdir())


def test_a_folder_is_taken_in_file_by_file(store: Store, models: Path, tmp_path: Path) -> None:
    (models / ".hidden").write_text("x")
    (models / "modeling.py").write_text("import os")
    taken = take(store, models)
    assert [f.path for f in taken.files] == ["README.md", "model.gguf", "sub/tokenizer.json"]
    assert taken.licence == "mit"
    for file in taken.files:
        content = store.path(file.sha256).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256
        assert len(content) == file.size_bytes
        assert store.has(file)
    assert incoming(tmp_path) == []


def test_a_single_file_is_a_version_of_one(store: Store, models: Path) -> None:
    assert [f.path for f in take(store, models / "model.gguf").files] == ["model.gguf"]


def test_equal_files_are_stored_once(store: Store, models: Path, tmp_path: Path) -> None:
    (models / "copy.json").write_bytes(GGUF)
    taken = take(store, models)
    assert len(taken.files) == 4
    assert len(stored(store, tmp_path)) == 3
    assert take(store, models) == taken


def test_links_inside_are_followed_and_links_out_are_refused(store: Store, models: Path, tmp_path: Path) -> None:
    (models / "alias.md").symlink_to("README.md")
    assert "alias.md" in [f.path for f in take(store, models).files]
    (tmp_path / "secret").write_text("x")
    (models / "out.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(Refused, match=r"out\.txt is a link that leads out of the folder"):
        take(store, models)
    (models / "out.txt").unlink()
    (models / "folder").symlink_to(tmp_path)
    with pytest.raises(Refused, match="leads out of the folder"):
        take(store, models)
    (models / "folder").unlink()
    (models / "nowhere").symlink_to("gone")
    with pytest.raises(Refused, match="leads nowhere"):
        take(store, models)
    (tmp_path / "elsewhere.gguf").write_bytes(GGUF)
    (models / "named.gguf").symlink_to(tmp_path / "elsewhere.gguf")
    with pytest.raises(Refused, match=rf"leads out of the folder.*import it from there \(path:{tmp_path}/elsewhere"):
        take(store, models / "named.gguf")


def hub_cache(tmp_path: Path) -> Path:
    """A snapshot as the hub's client keeps it: links into the blobs of its repository."""
    repository = tmp_path / "hub" / "models--acme--tiny"
    snapshot = repository / "snapshots" / ("c" * 40)
    (repository / "blobs").mkdir(parents=True)
    (snapshot / "sub").mkdir(parents=True)
    files = {"model.safetensors": safetensors(b"w" * 99), "config.json": b"{}", "sub/tokenizer.json": b"[]"}
    for name, content in files.items():
        blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = snapshot / name
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_a_snapshot_of_the_hubs_cache_is_taken_in_and_nothing_beyond_its_repository(
    store: Store, tmp_path: Path
) -> None:
    snapshot = hub_cache(tmp_path)
    assert [f.path for f in take(store, snapshot).files] == ["config.json", "model.safetensors", "sub/tokenizer.json"]
    assert [f.path for f in take(store, snapshot / "model.safetensors").files] == ["model.safetensors"]
    other = tmp_path / "hub" / "models--acme--other" / "blobs" / "x"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"{}")
    (snapshot / "other.json").symlink_to(other)
    with pytest.raises(Refused, match=r"other\.json is a link that leads out of the folder"):
        take(store, snapshot)
    with pytest.raises(Refused, match="leads out of the folder"):
        take(store, snapshot / "other.json")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.gguf", os.urandom(4000), "m.gguf: "),
        ("m.gguf", b"GGUF" + b"\xff" * 100, "m.gguf: "),
        ("m.gguf", b"GGUF\x03\0\0", "cut short"),
        ("m.gguf", qwen2_5_0_5b(), "cut short, fetch it again"),
        ("m.safetensors", b"\xff" * 4000, "not a safetensors file"),
        ("m.safetensors", safetensors(b"w" * 1000)[:-1], "cut short, fetch it again"),
    ],
)
def test_what_is_not_the_model_file_its_name_says_is_refused(
    store: Store, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match=said):
        take(store, tmp_path / name)
    assert stored(store, tmp_path) == []


def test_a_folder_of_several_models_is_named_and_each_can_be_chosen(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    parts = ["big-00001-of-00003.gguf", "big-00002-of-00003.gguf", "big-00003-of-00003.gguf"]
    for number, name in enumerate([*parts, "small-Q4.gguf", "mmproj-small.gguf"]):
        (folder / name).write_bytes(gguf(bytes([number])))
    with pytest.raises(Refused, match=r"it holds 2 models: big-00001-of-00003.gguf .*, small-Q4.gguf .*path:.*/big-0"):
        take(store, folder)
    assert [f.path for f in take(store, folder / "small-Q4.gguf").files] == ["small-Q4.gguf"]
    for part in parts:
        assert [f.path for f in take(store, folder / part).files] == parts
    (folder / parts[1]).unlink()
    with pytest.raises(Refused, match=r"big-00002-of-00003\.gguf is missing of 3 parts"):
        take(store, folder / parts[2])
    for part in (parts[0], parts[2]):
        (folder / part).unlink()
    assert len(take(store, folder).files) == 2, "a projector goes with its model"
    (folder / "small-Q4.gguf").unlink()
    with pytest.raises(Refused, match=r"mmproj-small\.gguf is a projector"):
        take(store, folder)
    for name in ("model-00001-of-00004.safetensors", "model-00004-of-00004.safetensors"):
        (folder / name).write_bytes(safetensors(b"w"))
    with pytest.raises(Refused, match=r"model-00002-of-00004\.safetensors and 1 more are missing of 4 parts"):
        take(store, folder)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("pytorch_model.bin", b"x", "pickle"),
        ("model.safetensors", pickle.dumps({"a": 1}), "Python pickle"),
        ("weights.gguf", b"PK\x03\x04rest", "zip"),
    ],
)
def test_a_version_with_one_unsafe_file_is_refused_whole(
    store: Store, models: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (models / "zz").mkdir()
    (models / "zz" / name).write_bytes(content)
    with pytest.raises(Refused, match=said) as caught:
        take(store, models)
    assert f"zz/{name}" in str(caught.value)
    assert stored(store, tmp_path) == []
    assert incoming(tmp_path) == []


def test_what_cannot_be_imported_says_why(store: Store, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        take(store, tmp_path / "gone")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Refused, match="holds no file"):
        take(store, empty)
    os.mkfifo(empty / "pipe")
    with pytest.raises(Refused, match="not a regular file"):
        take(store, empty)


def test_a_full_disk_is_seen_before_the_first_byte(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store, "free_bytes", lambda: 1000)
    with pytest.raises(Refused, match="can be used on the mirror's disk"):
        take(store, models)
    assert stored(store, tmp_path) == []


def test_a_disk_that_fails_midway_leaves_nothing(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, count = os.fsync, 0

    def failing(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(Refused, match="disk is full"):
        take(store, models)
    assert stored(store, tmp_path) == []
    assert incoming(tmp_path) == []


def test_a_stopped_import_ends_at_once(store: Store, models: Path, tmp_path: Path) -> None:
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(GivenUp):
        Intake(store).bring_in(PathSource(str(models)), "m", given_up)
    assert incoming(tmp_path) == []


def test_deleting_spares_what_an_import_has_just_placed(store: Store, models: Path) -> None:
    taken = take(store, models)
    sums = [f.sha256 for f in taken.files]
    assert store.delete(sums) == 0
    store.named(frozenset(sums))
    assert store.delete(sums) == sum(f.size_bytes for f in taken.files)
    assert store.delete(sums) == 0


def test_a_bad_copy_is_replaced_by_importing_again(store: Store, models: Path) -> None:
    file = next(f for f in take(store, models).files if f.path == "model.gguf")
    path = store.path(file.sha256)
    path.chmod(0o644)
    path.write_bytes(b"rotten")
    assert not store.has(file)
    take(store, models)
    assert path.read_bytes() == GGUF


def test_what_an_import_left_half_done_is_dropped_at_the_start(store: Store, tmp_path: Path) -> None:
    store.incoming().write_bytes(b"half")
    store.close()
    store.open()
    assert incoming(tmp_path) == []


def test_a_store_has_one_mirror(store: Store, tmp_path: Path) -> None:
    """Given a mirror at work in a store, when another is started on it, then it says so and touches nothing."""
    half = store.incoming()
    half.write_bytes(b"half")
    with pytest.raises(StoreTaken, match="data_dir of its own"):
        Store(tmp_path / "data").open()
    assert half.exists()


PACKAGE = """
from pathlib import Path
MODEL_NAME = "tiny.gguf"
EXPECTED_SHA256 = "{sha256}"
def assemble(output_path):
    Path(output_path).write_bytes({content!r})
    return Path(output_path)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / "site" / "tiny_model_package"
    (home / "data").mkdir(parents=True)
    (home / "__init__.py").write_text(PACKAGE.format(sha256=hashlib.sha256(GGUF).hexdigest(), content=GGUF))
    (home / "data" / "TERMS.txt").write_text("terms")
    (home / "data" / "README.upstream.md").write_text("---\nlicense: gemma\n---\n")
    (home / "data" / "SHA256SUMS").write_text("x")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield home
    sys.modules.pop("tiny_model_package", None)


def test_a_package_is_put_together_checked_and_taken_with_its_licence(
    store: Store, package: Path, tmp_path: Path
) -> None:
    taken = Intake(store).bring_in(PackageSource("tiny_model_package"), "tiny")
    assert [f.path for f in taken.files] == ["README.upstream.md", "TERMS.txt", "tiny.gguf"]
    assert taken.licence == "gemma"
    weights = WeightFile(path="tiny.gguf", size_bytes=len(GGUF), sha256=hashlib.sha256(GGUF).hexdigest())
    assert weights in taken.files
    assert store.has(weights)
    assert incoming(tmp_path) == []


def test_a_package_whose_file_is_not_what_it_says_is_refused(store: Store, package: Path, tmp_path: Path) -> None:
    (package / "__init__.py").write_text(PACKAGE.format(sha256="0" * 64, content=GGUF))
    with pytest.raises(Refused, match="install it again"):
        Intake(store).bring_in(PackageSource("tiny_model_package"), "tiny")
    assert stored(store, tmp_path) == []


def test_what_is_no_model_package_says_so(store: Store) -> None:
    with pytest.raises(Refused, match="install the package where the mirror runs"):
        Intake(store).bring_in(PackageSource("no_such_package_at_all"), "m")
    with pytest.raises(Refused, match=r"json is not a model package: it has no assemble\(\)"):
        Intake(store).bring_in(PackageSource("json"), "m")
