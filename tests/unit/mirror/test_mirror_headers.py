"""What a version's files say of the model, read from the store they were taken into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.events.headers import ModelHeaders
from libs.events.library import WeightFile
from services.mirror.adapters.store import Store
from services.mirror.headers import headers_of
from tests.data.models.gguf_headers import gemma_3_270m, qwen2_5_0_5b


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def headers(tmp_path: Path, folder: Path) -> ModelHeaders | None:
    store = Store(tmp_path / "data")
    store.open()
    try:
        files = []
        for path in sorted(folder.iterdir()):
            with path.open("rb", buffering=0) as source:
                sha256, size = store.add(source, lambda count: None)
            files.append(WeightFile(path=path.name, size_bytes=size, sha256=sha256))
        return headers_of("m", store, files)
    finally:
        store.close()


def test_of_a_gguf_file(tmp_path: Path, folder: Path) -> None:
    (folder / "weights.gguf").write_bytes(qwen2_5_0_5b())
    found = headers(tmp_path, folder)
    assert found is not None
    assert (found.format, found.layers, found.kv_heads, found.token_bytes) == ("gguf", 24, 2, 12288)


def test_of_a_folder_of_safetensors(tmp_path: Path, folder: Path) -> None:
    source = Path(__file__).parents[2] / "data" / "models" / "llama-3-8b"
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    index = json.loads((source / "model.safetensors.index.json").read_text())
    found = headers(tmp_path, folder)
    assert found is not None
    assert found.weights.total == index["metadata"]["total_size"]


@pytest.mark.parametrize("files", [{"model.gguf": b"GGUF\x03\0\0\0" + b"\xff" * 64}, {"README.md": b"words"}])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert headers(tmp_path, folder) is None


def test_of_several_models_in_one_version_none_is_meant(tmp_path: Path, folder: Path) -> None:
    (folder / "a.gguf").write_bytes(qwen2_5_0_5b())
    (folder / "b.gguf").write_bytes(gemma_3_270m())
    assert headers(tmp_path, folder) is None
