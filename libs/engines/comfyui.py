"""Options of ComfyUI: what a profile may not set, and what this version has."""

from __future__ import annotations

from .reasons import AGENT, CODE, DOOR, ELSEWHERE, FETCH, FILE, SECRET, SETTINGS
from .refused import ANY
from .traits import Arguments

_REFUSED: dict[str, str] = {
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

_RECORDED = """
    --assert-graph-breaks --async-offload --auto-launch --base-directory --bf16-text-enc --bf16-unet --bf16-vae
    --cache-classic --cache-lru --cache-none --cache-ram --comfy-api-base --cpu --cpu-vae --cuda-device --cuda-malloc
    --database-url --date-based-output --date-output-format --debug-hang --default-device --default-hashing-function
    --deterministic --directml --disable-all-custom-nodes --disable-api-nodes --disable-assets --disable-async-offload
    --disable-auto-launch --disable-comfy-compiler --disable-cuda-graphs --disable-cuda-malloc --disable-dynamic-vram
    --disable-fast-disk --disable-manager-ui --disable-metadata --disable-mmap --disable-nvml-pressure
    --disable-partner-nodes --disable-pinned-memory --disable-smart-memory --disable-triton-backend --disable-xformers
    --disabled-nodes-config --dont-print-server --dont-upcast-attention --enable-asset-hashing --enable-assets
    --enable-compress-response-body --enable-cors-header --enable-dynamic-vram --enable-manager
    --enable-manager-legacy-ui --enable-triton-backend --extra-model-paths-config --fast --fast-disk --feature-flag
    --force-channels-last --force-fp16 --force-fp32 --force-non-blocking --force-upcast-attention --fp16-intermediates
    --fp16-text-enc --fp16-unet --fp16-vae --fp32-text-enc --fp32-unet --fp32-vae --fp64-unet --fp8_e4m3fn-text-enc
    --fp8_e4m3fn-unet --fp8_e5m2-text-enc --fp8_e5m2-unet --fp8_e8m0fnu-unet --front-end-root --front-end-version
    --gpu-only --high-ram --highvram --input-directory --list-feature-flags --listen --log-stdout --lowvram
    --max-upload-size --mmap-torch-files --models-directory --multi-user --novram --offline --oneapi-device-selector
    --output-directory --port --preview-method --preview-size --quick-test-for-ci --reserve-vram --supports-fp8-compute
    --temp-directory --tls-certfile --tls-keyfile --use-ck-attention --use-flash-attention --use-pytorch-cross-attention
    --use-quad-cross-attention --use-sage-attention --use-split-cross-attention --user-directory --verbose
    --vram-headroom --whitelist-custom-nodes --windows-standalone-build
"""
"""Every option, as its own parser prints them (or as read from its source)."""

ARGUMENTS = Arguments(
    refused=ANY | _REFUSED,
    recorded=tuple(_RECORDED.split()),
    version="2026-11",
    abbreviates=True,
)
