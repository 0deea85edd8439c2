"""Headers read from folders and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.fit import Unreadable
from libs.fit.headers import open_source, read
from libs.testing.files import FileServer, serving
from tests.data.models.gguf_headers import gemma_3_270m, header
from tests.unit.fit.models import MODELS
from tests.unit.fit.test_config import SMALL
from tests.unit.fit.test_gguf import METADATA, TENSORS


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as files:
        yield files


def safetensors(size: int) -> bytes:
    body = json.dumps({"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    return len(body).to_bytes(8, "little") + body


def test_a_folder_of_config_and_index() -> None:
    (model,) = read(*open_source(str(MODELS / "mixtral-8x7b")))

    assert model.facts.name == "mixtral-8x7b"
    assert model.facts.weights.total == 93_405_585_408


def test_headers_of_the_files_outweigh_the_index_when_all_are_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    index = {"metadata": {"total_size": 9999}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "one.safetensors").write_bytes(safetensors(100))

    assert read(*open_source(str(tmp_path)))[0].facts.weights.total == 9999
    (tmp_path / "two.safetensors").write_bytes(safetensors(200))
    assert read(*open_source(f"path:{tmp_path}"))[0].facts.weights.total == 300


def test_a_single_safetensors_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "model.safetensors").write_bytes(safetensors(100))

    assert read(*open_source(str(tmp_path)))[0].facts.weights.total == 100


def test_every_gguf_of_a_folder_is_a_model_and_parts_are_one(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(header(METADATA, TENSORS))
    (tmp_path / "large-00001-of-00002.gguf").write_bytes(header(METADATA | {"split.count": 2}, TENSORS[:1]))
    (tmp_path / "large-00002-of-00002.gguf").write_bytes(header({"split.no": 1}, TENSORS[1:]))
    (tmp_path / "mmproj-small.gguf").write_bytes(b"not looked at")

    models = read(*open_source(str(tmp_path)))

    assert [model.facts.name for model in models] == ["large", "small"]
    assert models[0].facts.weights.total == models[1].facts.weights.total == 10 * 144 + 256 * 210


def test_a_gguf_behind_a_url_costs_its_header(server: FileServer) -> None:
    server.contents["/x/gemma.gguf"] = gemma_3_270m() + bytes(40 << 20)

    (model,) = read(*open_source(f"{server.url}/x/gemma.gguf"))

    assert model.facts.name == "gemma"
    assert model.facts.layers == 18
    assert [size for _, size in server.sent] == [1 << 20, 4 << 20, 16 << 20]


def test_a_folder_behind_a_url(server: FileServer) -> None:
    for name in ("config.json", "model.safetensors.index.json"):
        server.contents[f"/m/{name}"] = (MODELS / "llama-3-8b" / name).read_bytes()

    for source in (f"{server.url}/m", f"{server.url}/m/", f"{server.url}/m/config.json"):
        assert read(*open_source(source))[0].facts.weights.total == 16_060_522_496


def test_a_repository(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    names = ["config.json", "model.safetensors.index.json"]
    shards = [f"model-{i:05d}-of-00004.safetensors" for i in range(1, 5)]
    listing = {"siblings": [{"rfilename": name} for name in [*names, *shards, "README.md"]]}
    server.contents["/api/models/meta/llama/revision/abc"] = json.dumps(listing).encode()
    for name in names:
        server.contents[f"/meta/llama/resolve/abc/{name}"] = (MODELS / "llama-3-8b" / name).read_bytes()

    (model,) = read(*open_source("meta/llama@abc"))

    assert model.facts.weights.total == 16_060_522_496
    assert not any(path.endswith(".safetensors") for path, _ in server.sent)


def test_the_hub_is_shown_the_token_and_nobody_else(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    listing = {"siblings": [{"rfilename": "m.gguf"}]}
    server.contents["/api/models/a/b/revision/main"] = json.dumps(listing).encode()
    server.contents["/a/b/resolve/main/m.gguf"] = header(METADATA, TENSORS)
    server.moved["/a/b/resolve/main/m.gguf"] = server.url.replace("127.0.0.1", "localhost") + "/cdn"
    server.contents["/cdn"] = server.contents["/x.gguf"] = header(METADATA, TENSORS)

    read(*open_source("a/b"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    read(*open_source(f"{server.url}/x.gguf"))

    assert server.tokens == {
        "/api/models/a/b/revision/main": "Bearer hf_secret",
        "/a/b/resolve/main/m.gguf": "Bearer hf_secret",
        "/cdn": None,
        "/x.gguf": None,
    }


def test_what_is_wrong_with_a_source_is_said(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    (tmp_path / "cut.gguf").write_bytes(header(METADATA, TENSORS)[:-3])
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("[")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"\xff" * 100)
    said = {
        "path:/nowhere/model": "/nowhere/model does not exist",
        "./nofile.gguf": r"^\./nofile\.gguf does not exist",
        "../no/folder": r"^\.\./no/folder does not exist",
        "~/models": "^~/models does not exist",
        "models/nofile.gguf": "^models/nofile.gguf does not exist",
        "models/nofile.safetensors": "^models/nofile.safetensors does not exist",
        "just-a-word": "'just-a-word' is not a file, folder, URL or repository",
        "no/repository": "answers 404",
        "http://127.0.0.1:9/x.gguf": "cannot be reached",
        str(tmp_path / "cut.gguf"): "cut.gguf ends within its header",
        str(tmp_path / "odd"): "config.json is not JSON",
        str(tmp_path / "empty"): "has neither a config.json nor a GGUF file: found nothing",
        str(tmp_path / "bad"): "model.safetensors states a header of 18446744073709551615 bytes",
    }

    for source, words in said.items():
        with pytest.raises(Unreadable, match=words):
            read(*open_source(source))


def test_where_no_hub_is_reached_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(Unreadable, match="set HF_ENDPOINT to a hub that can be reached from here, or give a path"):
        open_source("meta/llama")
