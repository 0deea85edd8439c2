"""Options of TensorRT-LLM: what a profile may not set, and what this version has."""

from __future__ import annotations

from .reasons import AGENT, CODE, ELSEWHERE, FETCH, FILE, SETTINGS, STATED
from .refused import ANY
from .traits import Arguments

_REFUSED: dict[str, str] = {
    "--tokenizer": FETCH, "--custom-tokenizer": CODE, "--custom-module-dirs": CODE, "--revision": FETCH,
    "--config": SETTINGS, "--extra-llm-api-options": SETTINGS, "--metadata-server-config-file": FILE,
    "--server-role": AGENT, "--otlp-traces-endpoint": ELSEWHERE, "--disagg-cluster-uri": ELSEWHERE,
    "--media-io-kwargs": SETTINGS, "--chat-template": FILE, "--gpus-per-node": AGENT,
    "--max-seq-len": f"{STATED} (context_length)", "--max-batch-size": f"{STATED} (parallel)",
    "--tensor-parallel-size": f"{STATED} (tp)", "--tp-size": f"{STATED} (tp)",
    "--pipeline-parallel-size": f"{STATED} (pp)", "--pp-size": f"{STATED} (pp)",
}  # fmt: skip

_RECORDED = """
    --backend --chat_template --cluster_size --config --context_parallel_size --cp_size --custom_module_dirs
    --custom_tokenizer --disagg_cluster_uri --enable_chunked_prefill --ep_size --extra_llm_api_options
    --fail_fast_on_attention_window_too_large --free_gpu_memory_fraction --gpus_per_node --host
    --kv_cache_free_gpu_memory_fraction --log_level --max_batch_size --max_beam_width --max_num_tokens --max_seq_len
    --media_io_kwargs --metadata_server_config_file --moe_cluster_parallel_size --moe_expert_parallel_size
    --num_postprocess_workers --otlp_traces_endpoint --pipeline_parallel_size --port --pp_size --reasoning_parser
    --revision --server_role --tensor_parallel_size --tokenizer --tool_parser --tp_size --trust_remote_code
"""
"""Every option, as its own parser prints them (or as read from its source)."""

ARGUMENTS = Arguments(
    refused=ANY | _REFUSED,
    recorded=tuple(_RECORDED.split()),
    version="1.2",
)
