"""Options of llama.cpp's server: what a profile may not set, and what our launcher takes."""

from __future__ import annotations

from .reasons import AGENT, DOOR, FETCH, FILE, PROMPTS, SECRET, STATED
from .refused import ANY
from .traits import Arguments, Option

_REFUSED: dict[str, str] = {
    "--model": AGENT, "-m": AGENT, "--alias": AGENT, "-a": AGENT, "--metrics": AGENT, "--slots": AGENT,
    "--ctx-size": f"{STATED} (context_length)", "-c": f"{STATED} (context_length)",
    "--parallel": f"{STATED} (parallel)", "-np": f"{STATED} (parallel)",
    "--threads": f"{STATED} (cores)", "-t": f"{STATED} (cores)",
    "--device": AGENT, "-dev": AGENT, "--main-gpu": AGENT, "-mg": AGENT,
    "--model-url": FETCH, "-mu": FETCH, "--hf-repo": FETCH, "-hf": FETCH, "-hfr": FETCH, "--hf-file": FETCH,
    "-hff": FETCH, "--hf-repo-draft": FETCH, "-hfd": FETCH, "-hfrd": FETCH, "--hf-repo-v": FETCH, "-hfv": FETCH,
    "-hfrv": FETCH, "--hf-file-v": FETCH, "-hffv": FETCH, "--mmproj-url": FETCH, "-mmu": FETCH,
    "--docker-repo": FETCH, "-dr": FETCH, "--hf-token": SECRET, "-hft": SECRET,
    "--model-draft": FILE, "-md": FILE, "--model-vocoder": FILE, "-mv": FILE, "--mmproj": FILE, "-mm": FILE,
    "--lora": FILE, "--lora-scaled": FILE, "--control-vector": FILE, "--control-vector-scaled": FILE,
    "--grammar-file": FILE, "--json-schema-file": FILE, "-jf": FILE, "--chat-template-file": FILE, "--file": FILE,
    "-f": FILE, "--binary-file": FILE, "-bf": FILE, "--prompt-cache": FILE, "--slot-save-path": FILE,
    "--logdir": FILE, "--path": FILE, "--models-dir": FILE, "--models-preset": FILE, "--media-path": FILE,
    "--lookup-cache-static": FILE, "-lcs": FILE, "--lookup-cache-dynamic": FILE, "-lcd": FILE,
    "--ssl-key-file": SECRET, "--ssl-cert-file": SECRET, "--rpc": DOOR, "--props": DOOR, "--tools": DOOR,
    "--api-prefix": DOOR, "--webui-config-file": FILE, "--agent": DOOR, "--webui-mcp-proxy": DOOR,
    "--embd-gemma-default": FETCH, "--embd-bge-small-en-default": FETCH, "--embd-e5-small-en-default": FETCH,
    "--embd-gte-small-default": FETCH, "--fim-qwen-1": FETCH, "--fim-qwen-3b-default": FETCH,
    "--fim-qwen-7b-default": FETCH, "--fim-qwen-7b-spec": FETCH, "--fim-qwen-14b-spec": FETCH,
    "--fim-qwen-30b-default": FETCH, "--gpt-oss-20b-default": FETCH, "--gpt-oss-120b-default": FETCH,
    "--vision-gemma-4b-default": FETCH, "--vision-gemma-12b-default": FETCH, "--tts-oute-default": FETCH,
    "--spec-draft-model": FILE, "--spec-draft-hf": FETCH, "--spec-draft-hf-repo": FETCH,
    "-v": PROMPTS, "--verbose": PROMPTS, "--log-verbose": PROMPTS, "-lv": PROMPTS, "--verbosity": PROMPTS,
    "--log-verbosity": PROMPTS,
}  # fmt: skip

OPTIONS = (
    Option(("--batch-size", "-b"), parameter="n_batch"),
    Option(("--ubatch-size", "-ub"), parameter="n_ubatch"),
    Option(("--n-gpu-layers", "-ngl", "--gpu-layers"), parameter="n_gpu_layers"),
    Option(("--cache-ram", "-cram"), parameter="cache_ram_mib"),
    Option(("--cache-reuse",), parameter="n_cache_reuse"),
    Option(("--threads-http",), parameter="n_threads_http"),
    Option(("--flash-attn", "-fa"), parameter="flash_attn_type", kind="flash"),
    Option(("--cache-type-k", "-ctk"), parameter="cache_type_k", kind="ggml"),
    Option(("--cache-type-v", "-ctv"), parameter="cache_type_v", kind="ggml"),
    Option(("--chat-template",), parameter="chat_template", kind="str"),
    Option(("--embeddings", "--embedding"), takes_value=False, parameter="embedding", kind="on"),
    Option(("--pooling",), parameter="pooling_type", kind="pooling"),
    Option(("--no-cont-batching", "-nocb"), takes_value=False, parameter="cont_batching", kind="off"),
    Option(("--no-warmup",), takes_value=False, parameter="warmup", kind="off"),
)
"""Options of ``llama-server`` a profile may set, and the parameter each one is."""

EMBEDDING = frozenset({"--embeddings", "--embedding", "--reranking", "--rerank", "--pooling"})
BATCH = frozenset({"--batch-size", "-b"})
STEP = frozenset({"--ubatch-size", "-ub"})
"""llama.cpp's physical batch."""

ARGUMENTS = Arguments(
    refused=ANY | _REFUSED,
    options=OPTIONS,
    other_programs=True,
    whole_inputs=EMBEDDING,
    of_memory=(
        *("--cache-type", "-ctk", "-ctv", "--n-gpu-layers", "--gpu-layers", "-ngl", "--cpu-moe", "--n-cpu-moe"),
        *("-cmoe", "--override-tensor", "-ot", "--kv-offload", "--no-kv-offload", "-nkvo", "--swa-full"),
        *("--tensor-split", "-ts"),
    ),
    of_context=("--rope", "--yarn", "--override-kv"),
)
