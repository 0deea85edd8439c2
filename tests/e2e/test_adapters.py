"""A fine-tuning all the way: imported, declared, loaded by an engine, asked for by its own name."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import openai

from .cluster import Cluster


def _lora(folder: Path) -> Path:
    """What PEFT writes, without a tensor in it."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    return folder


async def test_a_fine_tuning_is_loaded_and_answers_by_its_own_name(cluster: Cluster, tmp_path: Path) -> None:
    cluster.text("library", "import", "law", f"path:{_lora(tmp_path / 'law')}", "--licence", "none")
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "models:\n  - name: judge\n    adapters: [{name: judge-law, source: library:law}]\n    profiles:\n"
        "      - {name: cpu, engine: sim, memory_mb: 200}\n"
    )
    try:
        cluster.text("apply", "-f", str(file), "--yes")
        cluster.until_served()
        async with openai.AsyncOpenAI(base_url=cluster.base_url, api_key=cluster.client_key, max_retries=3) as client:
            models = {model.id async for model in await client.models.list()}
            assert {"judge", "judge-law"} <= models
            for name in ("judge", "judge-law"):
                answer = await client.chat.completions.create(
                    model=name, messages=[{"role": "user", "content": "hello"}], max_tokens=3
                )
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 3
        version = next(one["version"] for one in cluster.json("library", "list") if one["name"] == "law")
        refused = cluster.refused("library", "remove", f"law@{version}", "--yes")
        assert "judge runs on it" in refused
    finally:
        cluster.text("model", "remove", "judge", "--yes")
