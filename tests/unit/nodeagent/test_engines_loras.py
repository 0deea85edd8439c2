"""Fine-tunings beside a model: how each engine is told of them, and which engines are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.events.views import LoraWanted
from services.nodeagent.core.engines import Lora
from services.nodeagent.core.shard.weights import used_by
from services.nodeagent.engines.llamacpp.engine import LlamaCpp
from services.nodeagent.engines.sim.engine import Sim

from .test_engines_foreign import COMFY, GANG, GPUS, PLACE, SGLANG, TRTLLM, UUIDS, VLLM, after, options, recorded, wants
from .wanted import gguf, shard, weights

PEFT = weights(gguf("c" * 64, path="adapter_config.json"), gguf("d" * 64, path="adapter_model.safetensors"), name="l")
ASKED = (LoraWanted(name="law", weights=PEFT), LoraWanted(name="tax", weights=PEFT))
THERE = msgspec.structs.replace(
    PLACE, loras=(Lora(name="law", folder="/w/l/v1", rank=12), Lora(name="tax", folder="/w/t/v1", rank=4))
)


def test_vllm_is_told_names_folders_and_the_rank() -> None:
    command = VLLM.command(wants("vllm", loras=ASKED), THERE)
    at = command.index("--lora-modules")
    assert command[at + 1 : at + 3] == ["law=/w/l/v1", "tax=/w/t/v1"]
    assert (after(command, "--max-loras"), after(command, "--max-lora-rank")) == ("2", "16")
    assert options(command) <= set(recorded("vllm"))
    worker = VLLM.command(wants("vllm", loras=ASKED, rank=1, **GANG), THERE)
    assert "--enable-lora" in worker
    assert "--lora-modules" not in worker, "it has no door"
    assert "--enable-lora" not in VLLM.command(wants("vllm"), PLACE)


def test_sglang_is_told_names_and_folders() -> None:
    command = SGLANG.command(wants("sglang", loras=ASKED), THERE)
    at = command.index("--lora-paths")
    assert command[at + 1 : at + 3] == ["law=/w/l/v1", "tax=/w/t/v1"]
    assert after(command, "--max-loras-per-batch") == "3"
    assert options(command) <= set(recorded("sglang"))


def test_a_folder_that_is_no_adapter_is_refused_before_anything_is_fetched() -> None:
    broken = LoraWanted(name="law", weights=weights(gguf(path="adapter_config.json"), name="l"))
    for engine in (VLLM, SGLANG):
        assert engine.refusal(wants(engine.name, loras=ASKED), GPUS) is None
        said = engine.refusal(wants(engine.name, loras=(broken,)), GPUS)
        assert said == "the adapter law (l) has no adapter_model.safetensors"


@pytest.mark.parametrize("engine", [LlamaCpp(python="python"), TRTLLM, COMFY])
def test_engines_that_know_no_adapters_by_name_say_so(engine: Any) -> None:
    own = weights(gguf()) if engine.name == "llamacpp" else wants(engine.name).weights
    wanted = shard(engine=engine.name, weights=own, devices=UUIDS[:1], loras=ASKED)
    assert "does not answer under an adapter's own name" in (engine.refusal(wanted, GPUS) or "")


def test_the_simulated_engine_answers_to_them() -> None:
    command = Sim(python="python").command(shard(loras=ASKED), THERE)
    assert [command[n + 1] for n, part in enumerate(command) if part == "--lora"] == ["law", "tax"]


def test_weights_of_adapters_are_used_too() -> None:
    assert used_by(shard(loras=ASKED)) == (PEFT, PEFT)
    assert len(used_by(wants("vllm", loras=ASKED))) == 3
