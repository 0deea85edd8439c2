"""Options a profile may not set, by engine. The versions they were checked against are in ``docs/engines.md``.

An engine has hundreds of options and new ones with every version, so words in a name refuse as well: what is called
``…-path`` or ``…-url`` reads a file or asks an address until somebody has looked and listed it as harmless.
"""

from __future__ import annotations

from .reasons import (
    AGENT,
    CODE,
    DOOR,
    ELSEWHERE,
    FETCH,
    FILE,
    PICKLE,
    PROMPTS,
    SECRET,
    SETTINGS,
    STATED,
)

ARGPARSE = frozenset({"vllm", "sglang", "comfyui", "sim"})
"""Engines that read options with Python's argparse: it takes any unambiguous beginning of a long option for it."""

WORDS: dict[str, str] = {
    **dict.fromkeys(("path", "paths", "dir", "dirs", "directory", "folder", "file", "files", "filename"), FILE),
    **dict.fromkeys(("certfile", "keyfile", "certs", "cert", "ssl", "tls"), FILE),
    **dict.fromkeys(("url", "urls", "uri", "download", "hub"), FETCH),
    **dict.fromkeys(("host", "hosts", "addr", "address", "port", "ports", "ip", "socket", "ipc", "grpc"), DOOR),
    **dict.fromkeys(("endpoint", "endpoints", "remote", "webhook"), ELSEWHERE),
    **dict.fromkeys(("key", "keys", "auth", "password", "secret", "credential", "credentials"), SECRET),
    **dict.fromkeys(("plugin", "plugins", "module", "modules", "cls", "class", "script", "hook", "hooks"), CODE),
    **dict.fromkeys(("middleware", "connector", "loader", "import"), CODE),
    **dict.fromkeys(("config", "configs", "yaml", "preset"), SETTINGS),
    **dict.fromkeys(("dump", "trace", "traces", "record", "recorder"), PROMPTS),
}

ANY: dict[str, str] = {
    "--host": AGENT, "--port": AGENT, "--api-key": AGENT, "--api-key-file": SECRET, "--log-file": FILE,
    "--trust-remote-code": "it runs code that comes with the weights", "--served-model-name": AGENT,
    "--config": SETTINGS,
}  # fmt: skip

LLAMACPP: dict[str, str] = {
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

VLLM: dict[str, str] = {
    "--model": AGENT, "--served-model-name": AGENT, "--uds": AGENT, "--headless": AGENT, "--nnodes": AGENT,
    "--node-rank": AGENT, "--master-addr": AGENT, "--master-port": AGENT, "-n": AGENT, "-r": AGENT,
    "--distributed-executor-backend": AGENT, "--api-server-count": AGENT, "-asc": AGENT,
    "--max-model-len": f"{STATED} (context_length)", "--max-num-seqs": f"{STATED} (parallel)",
    "--tensor-parallel-size": f"{STATED} (tp)", "-tp": f"{STATED} (tp)",
    "--pipeline-parallel-size": f"{STATED} (pp)", "-pp": f"{STATED} (pp)",
    "--data-parallel-size": AGENT, "-dp": AGENT, "--data-parallel-size-local": AGENT, "-dpl": AGENT,
    "--data-parallel-address": AGENT, "-dpa": AGENT, "--data-parallel-rpc-port": AGENT, "-dpp": AGENT,
    "--data-parallel-rank": AGENT, "-dpn": AGENT, "--data-parallel-start-rank": AGENT, "-dpr": AGENT,
    "--data-parallel-backend": AGENT, "-dpb": AGENT, "--data-parallel-external-lb": AGENT, "-dpe": AGENT,
    "--data-parallel-hybrid-lb": AGENT, "-dph": AGENT, "--data-parallel-multi-port-external-lb": AGENT,
    "--device-ids": AGENT, "--root-path": DOOR, "--allow-credentials": DOOR,
    "--allowed-origins": DOOR, "--allowed-methods": DOOR, "--allowed-headers": DOOR, "--grpc": DOOR,
    "--allowed-local-media-path": "it serves local files to requests", "--allowed-media-domains": FETCH,
    "--media-io-kwargs": SETTINGS, "--tokenizer": FETCH, "--tokenizer-revision": FETCH, "--revision": FETCH,
    "--code-revision": CODE, "--hf-token": SECRET, "--hf-config-path": FILE, "--hf-overrides": CODE,
    "--download-dir": FILE, "--load-format": PICKLE, "--model-loader-extra-config": CODE,
    "--pt-load-map-location": PICKLE, "--config-format": CODE, "--model-impl": CODE,
    "--model-class-overrides": CODE, "--chat-template": FILE, "--chat-template-content-format": "",
    "--trust-request-chat-template": CODE, "--generation-config": FILE, "--tool-parser-plugin": CODE,
    "--reasoning-parser-plugin": CODE, "--logits-processors": CODE, "--io-processor-plugin": CODE,
    "--middleware": CODE, "--worker-cls": CODE, "--worker-extension-cls": CODE, "--scheduler-cls": CODE,
    "--lora-modules": FILE, "--default-mm-loras": FILE, "--enable-lora": "",
    "--speculative-config": FILE, "--spec-model": FILE, "-sc": FILE, "--kv-transfer-config": CODE,
    "--ec-transfer-config": CODE, "--kv-events-config": AGENT, "--compilation-config": CODE, "-cc": CODE,
    "--additional-config": SETTINGS, "--profiler-config": FILE, "--otlp-traces-endpoint": ELSEWHERE,
    "--collect-detailed-traces": PROMPTS, "--enable-log-requests": PROMPTS, "--enable-log-outputs": PROMPTS,
    "--log-config-file": FILE, "--logging-config": FILE, "--uvicorn-log-level": "", "--log-level": "",
    "--enable-trace-replay": PROMPTS, "--ray-workers-use-nsight": FILE, "--tool-server": ELSEWHERE,
    "--ssl-keyfile": SECRET, "--ssl-certfile": FILE, "--ssl-ca-certs": FILE, "--ssl-cert-reqs": FILE,
    "--enable-ssl-refresh": FILE, "--response-role": "", "--enable-request-id-headers": "",
    "--mm-ipc-gpu-memory-gb": "", "--mm-tensor-ipc": "", "--override-generation-config": "",
    "--default-chat-template-kwargs": "", "--enable-server-load-tracking": "",
    "--enable-tokenizer-info-endpoint": DOOR,
    "--enable-tower-connector-lora": "", "--tokens-only": "", "--weight-transfer-config": ELSEWHERE,
    "--disable-fastapi-docs": "", "-ac": SETTINGS, "-dc": SETTINGS, "--reasoning-parser": "",
    "--trust-request-mm-kwargs": "it lets requests set what the processor loads",
    "--enable-prompt-embeds": "it lets requests bring serialised tensors",
    "--enable-mm-embeds": "it lets requests bring serialised tensors", "--enable-log-deltas": PROMPTS,
    "-dpm": AGENT, "--enable-elastic-ep": DOOR, "--enable-scale-out": DOOR, "--max-lora-cls-labels": "",
    "--disable-access-log-for-endpoints": "", "--tool-call-parser": "", "--logprobs-mode": "",
    "--h11-max-incomplete-event-size": "", "--h11-max-header-count": "",
    "--enable-offline-docs": "", "--lora-target-modules": "", "--enable-sleep-mode": DOOR,
}  # fmt: skip
"""An empty reason: harmless whatever a word in it suggests."""

SGLANG: dict[str, str] = {
    "--model": AGENT, "--model-path": AGENT, "--served-model-name": AGENT, "--admin-api-key": SECRET,
    "--context-length": f"{STATED} (context_length)", "--max-running-requests": f"{STATED} (parallel)",
    "--tp-size": f"{STATED} (tp)", "--tensor-parallel-size": f"{STATED} (tp)",
    "--pp-size": f"{STATED} (pp)", "--pipeline-parallel-size": f"{STATED} (pp)",
    "--nnodes": AGENT, "--node-rank": AGENT, "--dist-init-addr": AGENT, "--nccl-init-addr": AGENT,
    "--nccl-port": AGENT, "--base-gpu-id": AGENT, "--gpu-id-step": AGENT, "--device": AGENT, "--numa-node": AGENT,
    "--dp-size": AGENT, "--data-parallel-size": AGENT, "--enable-metrics": AGENT,
    "--tokenizer-path": FETCH, "--revision": FETCH, "--chat-template": FILE, "--completion-template": FILE,
    "--trust-request-chat-template": CODE, "--hf-chat-template-name": "", "--json-model-override-args": CODE,
    "--load-format": PICKLE, "--speculative-draft-load-format": PICKLE, "--model-loader-extra-config": CODE,
    "--custom-weight-loader": CODE, "--model-impl": CODE, "--enable-custom-logit-processor":
    "it runs code that requests bring", "--forward-hooks": CODE, "--model-config-parser": CODE,
    "--download-dir": FILE, "--file-storage-path": FILE, "--lora-paths": FILE, "--uno-lora-path": FILE,
    "--speculative-draft-model": FILE, "--speculative-draft-model-path": FILE,
    "--speculative-draft-model-revision": FETCH, "--kt-weight-path": FILE, "--crash-dump-folder": PROMPTS,
    "--log-requests": PROMPTS, "--log-requests-level": PROMPTS, "--log-requests-format": PROMPTS,
    "--log-requests-target": PROMPTS, "--export-metrics-to-file": PROMPTS, "--enable-response-store": PROMPTS,
    "--enable-trace": ELSEWHERE, "--trace-modules": ELSEWHERE, "--otlp-service-name": ELSEWHERE,
    "--tool-server": ELSEWHERE, "--use-ray": DOOR, "--enable-ssl-refresh": FILE, "--msprobe-dump-config": PROMPTS,
    "--debug-tensor-dump-layers": PROMPTS, "--grpc-mode": DOOR, "--smg-grpc-mode": DOOR, "--encoder-urls": ELSEWHERE,
    "--kv-events-config": AGENT, "--weight-version": "", "--lora-target-modules": "", "--mm-io-worker-num": "",
    "--tokenizer-worker-num": "", "--delete-ckpt-after-loading": FILE, "--preferred-sampling-params": "",
    "--default-chat-template-kwargs": "", "--cuda-graph-config": "", "--deepep-config": FILE,
    "--hicache-host-memory-fraction": "", "--hicache-host-memory-mode": "",
    "--disaggregation-decode-host-receive-threshold": "", "--media-url-max-file-size-mb": "",
    "--mamba-max-states-per-path": "", "--enable-http-worker-reuseport": DOOR,
    "--expert-distribution-recorder-mode": "", "--expert-distribution-recorder-buffer-size": "",
    "--weight-loader-disable-mmap": "", "--weight-loader-drop-cache-after-load": "",
    "--weight-loader-prefetch-checkpoints": "", "--weight-loader-prefetch-num-threads": "",
    "--grpc-response-timeout-secs": DOOR, "--weight-cache-mode": FILE,
    "--tokenizer-metrics-custom-labels-header": "", "--constrained-json-whitespace-pattern": "",
    "--sidecar": CODE, "--sidecar-args": CODE, "--disaggregation-mode": AGENT, "--disaggregation-ib-device": AGENT,
    "--mooncake-ib-device": AGENT, "--disaggregation-transfer-backend": AGENT, "--encoder-only": AGENT,
    "--language-only": AGENT, "--init-expert-location": FILE, "--hicache-storage-backend": FILE,
    "--allowed-media-domains": FETCH, "--enable-pd-role-switch": DOOR, "--decoupled-spec-rank": AGENT,
    "--decoupled-spec-role": AGENT, "--elastic-ep-join-mode": AGENT, "--ep-join-mode": AGENT,
    "--elastic-ep-join-rank-offset": AGENT, "--ep-join-rank-offset": AGENT, "--enable-lmcache": ELSEWHERE,
    "--enable-flexkv": ELSEWHERE, "--trust-mm-content-hashes": "it lets requests name what is cached",
    "--tool-call-parser": "", "--enable-metrics-for-all-schedulers": "",
    "--disaggregation-decode-allocation-policy": "",
}  # fmt: skip

TRTLLM: dict[str, str] = {
    "--tokenizer": FETCH, "--custom-tokenizer": CODE, "--custom-module-dirs": CODE, "--revision": FETCH,
    "--config": SETTINGS, "--extra-llm-api-options": SETTINGS, "--metadata-server-config-file": FILE,
    "--server-role": AGENT, "--otlp-traces-endpoint": ELSEWHERE, "--disagg-cluster-uri": ELSEWHERE,
    "--media-io-kwargs": SETTINGS, "--chat-template": FILE, "--gpus-per-node": AGENT,
    "--max-seq-len": f"{STATED} (context_length)", "--max-batch-size": f"{STATED} (parallel)",
    "--tensor-parallel-size": f"{STATED} (tp)", "--tp-size": f"{STATED} (tp)",
    "--pipeline-parallel-size": f"{STATED} (pp)", "--pp-size": f"{STATED} (pp)",
}  # fmt: skip

COMFYUI: dict[str, str] = {
    "--listen": AGENT, "--tls-keyfile": SECRET, "--tls-certfile": FILE, "--enable-cors-header": DOOR,
    "--base-directory": AGENT, "--extra-model-paths-config": AGENT, "--output-directory": AGENT,
    "--temp-directory": AGENT, "--input-directory": AGENT, "--user-directory": AGENT, "--models-directory": AGENT,
    "--auto-launch": DOOR, "--windows-standalone-build": DOOR, "--cuda-device": AGENT, "--default-device": AGENT,
    "--directml": AGENT, "--oneapi-device-selector": AGENT, "--cpu": AGENT, "--enable-manager": CODE,
    "--enable-manager-legacy-ui": CODE, "--disable-manager-ui": CODE, "--whitelist-custom-nodes": CODE,
    "--disabled-nodes-config": FILE, "--front-end-version": FETCH, "--front-end-root": FILE,
    "--comfy-api-base": ELSEWHERE, "--database-url": FILE, "--verbose": FILE, "--multi-user": DOOR,
    "--list-feature-flags": DOOR, "--quick-test-for-ci": DOOR, "--feature-flag": SETTINGS,
    "--disable-metadata": AGENT, "--mmap-torch-files": "",
}  # fmt: skip

SIM: dict[str, str] = {"--model": AGENT, "--parallel": f"{STATED} (parallel)",
                       "--context-length": f"{STATED} (context_length)"}  # fmt: skip

REFUSED: dict[str, dict[str, str]] = {
    "llamacpp": ANY | LLAMACPP,
    "vllm": ANY | VLLM,
    "sglang": ANY | SGLANG,
    "trtllm": ANY | TRTLLM,
    "comfyui": ANY | COMFYUI,
    "sim": ANY | SIM,
}
