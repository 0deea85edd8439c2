"""Weights an operator put on the machine."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from services.nodeagent.adapters.weights.local import look
from services.nodeagent.adapters.weights.store import Rejected


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of safetensors; beside it a GGUF file."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + b"\0" * 20)
    return folder


def refused(path: Path) -> str:
    with pytest.raises(Rejected) as rejected:
        look(path, False)
    return str(rejected.value)


def test_a_folder_and_a_file_are_found_with_their_sizes(model: Path) -> None:
    (model / "alias.json").symlink_to("config.json")
    folder, files = look(model, False)
    assert folder == model
    assert [(file.path, file.size_bytes) for file in files] == [
        ("alias.json", 2),
        ("config.json", 2),
        ("sub/model.safetensors", 16),
    ]
    folder, files = look(model.parent / "model.gguf", False)
    assert folder == model.parent
    assert [(file.path, file.size_bytes) for file in files] == [("model.gguf", 24)]


def test_what_is_not_there_says_who_can_say_where_it_is(model: Path) -> None:
    for absent in (model / "no", model.parent / "model.gguf" / "x"):
        assert refused(absent).startswith(f"{absent} is not on this machine: ")
        assert "node_selector" in refused(absent)
    (model.parent / "empty").mkdir()
    assert "is an empty folder: is it mounted?" in refused(model.parent / "empty")


def test_links_are_not_followed_out_of_the_folder(model: Path) -> None:
    outside = model.parent / "model.gguf"
    for target in (outside, model.parent):
        (model / "sub" / "link").symlink_to(target)
        assert f"{model}/sub/link is a link out of the folder, to {target}" in refused(model)
        (model / "sub" / "link").unlink()
    (model / "dangling").symlink_to("nowhere")
    assert f"is a link to {model}/nowhere, which is not there" in refused(model)
    link = model / "sub" / "link.gguf"
    link.symlink_to(outside)
    assert refused(link) == f"{link} is a link to {outside}: state the path of the file or folder itself"


def test_a_snapshot_of_the_hubs_cache_may_lead_into_its_repository(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--acme--tiny"
    snapshot = repository / "snapshots" / ("c" * 40)
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name, content in (("config.json", b"{}"), ("tiny.gguf", b"GGUF" + b"\0" * 20)):
        (repository / "blobs" / name.replace(".", "-")).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{name.replace('.', '-')}")
    folder, files = look(snapshot, False)
    assert (folder, [(file.path, file.size_bytes) for file in files]) == (
        snapshot,
        [("config.json", 2), ("tiny.gguf", 24)],
    )
    assert look(snapshot / "tiny.gguf", False)[1][0].path == "tiny.gguf"
    (tmp_path / "secret.gguf").write_bytes(b"GGUF" + b"\0" * 20)
    (snapshot / "out.gguf").symlink_to(tmp_path / "secret.gguf")
    assert "is a link out of the folder" in refused(snapshot)
    assert "state the path of the file or folder itself" in refused(snapshot / "out.gguf")


def test_pickles_are_refused_by_name_and_by_content_unless_they_are_allowed(model: Path) -> None:
    for name, content in (("pytorch_model.bin", b"x"), ("model.data", pickle.dumps({"a": 1}, 4))):
        (model / name).write_bytes(content)
        assert str(model / name) in refused(model)
        assert "allow_pickle" in refused(model)
        assert name in [file.path for file in look(model, True)[1]]
        (model / name).unlink()


def test_only_files_of_weights_are_taken(model: Path) -> None:
    assert "is no .gguf file" in refused(model / "config.json")
    assert "is no .gguf file" in refused(Path("/etc/passwd"))
    (model / "text.gguf").write_text("no model")
    assert "is not a GGUF file inside" in refused(model / "text.gguf")
    os.mkfifo(model / "pipe.gguf")
    assert refused(model / "pipe.gguf") == f"{model}/pipe.gguf is neither a file nor a folder"
    assert refused(model) == f"{model}/pipe.gguf is neither a file nor a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_the_agent_may_not_read_is_said(model: Path) -> None:
    (model / "config.json").chmod(0)
    assert refused(model) == f"{model}/config.json cannot be read by the agent: Permission denied"
