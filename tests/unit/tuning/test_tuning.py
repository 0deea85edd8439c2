"""What a profile may not pass, however it is spelt, judged against parsers with the engines' own options."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.engines import ENGINES
from libs.engines.refused import ANY, WORDS
from libs.tuning import (
    argument_problem,
    argument_problems,
    environment_problem,
    environment_problems,
    knows,
    option_problems,
)
from libs.tuning.arguments import name_of

FLAGS = {name: engine.arguments.recorded for name, engine in ENGINES.items() if engine.arguments.recorded}
REFUSED = {name: engine.arguments.refused for name, engine in ENGINES.items()}
ARGPARSE = {name for name, engine in ENGINES.items() if engine.arguments.abbreviates}


def refused(engine: str) -> list[str]:
    return [flag for flag in FLAGS[engine] if argument_problem(engine, flag) is not None]


@pytest.mark.parametrize("engine", sorted(FLAGS))
def test_every_refused_name_is_one_the_engine_has(engine: str) -> None:
    known = {name_of(flag) for flag in FLAGS[engine]}
    assert [name for name in REFUSED[engine] if name not in known and name not in ANY] == []


@pytest.mark.parametrize("engine", sorted(FLAGS))
def test_what_a_word_in_its_name_suggests_is_refused_or_was_looked_at(engine: str) -> None:
    for flag in FLAGS[engine]:
        if set(name_of(flag).strip("-").split("-")) & WORDS.keys() and argument_problem(engine, flag) is None:
            assert REFUSED[engine].get(name_of(flag)) == "", flag


@pytest.mark.parametrize(
    ("engine", "args"),
    [
        ("vllm", ["--gpu-memory-utilization=0.9", "--max-num-batched-tokens", "8192", "--enforce-eager", "-O3", "-q",
                  "fp8", "--tokenizer-mode", "mistral", "--seed", "-1", "--cpu-offload-gb", "4",
                  "--enable-prefix-caching",
                  "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-expert-parallel",
                  "--default-chat-template-kwargs", '{"enable_thinking": false}']),
        ("sglang", ["--mem-fraction-static", "0.85", "--attention-backend", "flashinfer", "--chunked-prefill-size=-1"]),
        ("trtllm", ["--free_gpu_memory_fraction", "0.8", "--backend", "pytorch", "--max_num_tokens", "8192"]),
        ("comfyui", ["--lowvram", "--fp16-vae", "--use-flash-attention", "--disable-all-custom-nodes"]),
        ("llamacpp", ["--chat-template", "chatml", "-fa", "on", "--batch-size", "512", "-ngl", "99", "--jinja"]),
        ("sim", ["--tok-s", "50", "--echo"]),
    ],
)  # fmt: skip
def test_tuning_passes(engine: str, args: list[str]) -> None:
    assert argument_problems(engine, args) == {}
    if "--jinja" not in args:  # llama-server has it, the package's launcher does not
        assert option_problems(engine, args) == {}


@pytest.mark.parametrize(
    ("engine", "args", "problems"),
    [
        ("vllm", ["--no-such-option", "1"], {0: "vllm 0.32.0 has no option --no-such-option: leave it out"}),
        ("vllm", ["--seed", "-1", "--enforce-eagr"],
         {2: "vllm 0.32.0 has no option --enforce-eagr: did you mean --enforce-eager?"}),
        ("sglang", ["-x"], {0: "sglang 0.5.23 has no option -x: leave it out"}),
        ("trtllm", ["--max_num_token", "8"], {0: "trtllm 1.2 has no option --max_num_token: did you mean --max-num"}),
        ("sim", ["--tok-s", "5", "--no-such"], {2: "the option --no-such is not one it takes from a profile; these"}),
        ("sim", ["--echo=1"], {0: "the option --echo takes no value"}),
        ("llamacpp", ["-b", "512", "x"], {2: "the argument 'x' belongs to no option"}),
        ("llamacpp", ["-b"], {0: "the option -b lacks its value"}),
        ("unheard-of", ["--x"], {}),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_have_is_told(engine: str, args: list[str], problems: dict[int, str]) -> None:
    found = option_problems(engine, args)
    assert list(found) == list(problems)
    assert all(found[number].startswith(why) for number, why in problems.items())


def test_options_are_known_of_the_recorded_version_only() -> None:
    assert knows("vllm", "0.32.0")
    assert knows("vllm", "0.32.0+cpu")
    assert not knows("vllm", "0.33.0")
    assert not knows("llamacpp", "as set")
    assert knows("llamacpp", "2026.10")


@pytest.mark.parametrize(
    ("engine", "args"),
    [
        ("vllm", ["--trust_remote_code"]), ("vllm", ["--trust-remote"]), ("vllm", ["--load_format", "pt"]),
        ("vllm", ["--load-form=pt"]), ("vllm", ["--kv-transfer-config.kv_connector", "x"]), ("vllm", ["-tp", "8"]),
        ("vllm", ["--logits-processors+", "os.system"]), ("vllm", ["--middleware", "x"]), ("vllm", ["-cc.level=3"]),
        ("vllm", ["--speculative-config", '{"model": "/x"}']), ("vllm", ["--api-key", "x"]), ("vllm", ["--he"]),
        ("vllm", ["--some-new-path", "/x"]), ("vllm", ["@file"]), ("vllm", ["--"]), ("vllm", ["--max-model-len=1"]),
        ("sglang", ["--load-format", "pt"]), ("sglang", ["--tp", "4"]), ("sglang", ["--enable-custom-logit"]),
        ("sglang", ["--lora-paths", "a=b"]), ("sglang", ["--sidecar", "x"]), ("sglang", ["--nnod=2"]),
        ("trtllm", ["--trust_remote_code"]), ("trtllm", ["--extra-llm-api-options", "x"]),
        ("trtllm", ["--custom_module_dirs", "x"]), ("comfyui", ["--li", "0.0.0.0"]), ("comfyui", ["--verbose", "x"]),
        ("comfyui", ["--extra-model", "x"]), ("llamacpp", ["-m", "x"]), ("llamacpp", ["-hf", "o/r"]),
        ("llamacpp", ["-mu", "http://x"]), ("llamacpp", ["--slot_save_path", "x"]), ("llamacpp", ["--rpc", "h:1"]),
        ("vllm", ["-O.custom_ops=+x"]), ("llamacpp", ["--embd-gemma-default"]),
        ("llamacpp", ["--fim-qwen-1.5b-default"]), ("llamacpp", ["--gpt_oss_20b_default"]),
        ("llamacpp", ["--spec-draft-model", "x"]), ("llamacpp", ["-lv", "9"]),
        ("sim", ["--model", "x"]), ("sim", ["--mod", "x"]), ("unheard-of", ["--host", "x"]),
    ],
)  # fmt: skip
def test_a_refused_option_is_known_however_it_is_spelt(engine: str, args: list[str]) -> None:
    problems = argument_problems(engine, args)
    assert list(problems) == [0]
    assert args[0].partition("=")[0] in problems[0]


def parser_of(engine: str) -> argparse.ArgumentParser:
    """A parser with the options of an engine: the judge of what a spelling means."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for flag in FLAGS[engine]:
        parser.add_argument(flag, nargs="?", const="set", dest=flag)
    return parser


JUDGES = {engine: parser_of(engine) for engine in FLAGS if engine in ARGPARSE}


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """An engine, and a way to write one of its options: cut short, with underscores, with a value."""
    engine = draw(st.sampled_from(sorted(JUDGES)))
    flag = draw(st.sampled_from(FLAGS[engine]))
    if flag.startswith("--"):
        name = flag[: draw(st.integers(3, len(flag)))]
        name = "--" + "".join(draw(st.sampled_from("-_")) if letter == "-" else letter for letter in name[2:])
    else:
        name = flag
    return engine, name + draw(st.sampled_from(["", "=", "=x", "=/etc/passwd"]))


@given(spellings())
def test_no_spelling_an_engine_understands_slips_through(spelling: tuple[str, str]) -> None:
    engine, argument = spelling
    name, equals, value = argument.partition("=")
    # vLLM and SGLang read _ as - before they look the name up; comfyui does not, and then it is no option at all.
    given_as = (name.replace("_", "-") if name.startswith("--") and engine != "comfyui" else name) + equals + value
    try:
        found, rest = JUDGES[engine].parse_known_args([given_as])
    except (argparse.ArgumentError, SystemExit):
        return  # ambiguous: the engine refuses to start
    if rest:
        return
    (flag,) = [flag for flag, value in vars(found).items() if value is not None]
    if argument_problem(engine, flag) is not None:
        assert argument_problem(engine, argument) is not None, f"{argument} is {flag}"
    elif name == flag:
        assert argument_problem(engine, argument) is None


@given(st.sampled_from(["llamacpp", "trtllm"]), st.data())
def test_engines_that_take_no_beginnings_are_matched_exactly(engine: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name, why in REFUSED[engine].items() if why]))
    dashes = "--" if name.startswith("--") else "-"
    spelt = dashes + "".join(
        data.draw(st.sampled_from("-_")) if letter == "-" and dashes == "--" else letter
        for letter in name[len(dashes) :]
    )
    assert argument_problem(engine, spelt + data.draw(st.sampled_from(["", "=x"]))) is not None


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD", "PATH", "PYTHONPATH", "HF_TOKEN", "LLAMA_ARG_MODEL", "LLAMA_ARG_HOST", "CUDA_VISIBLE_DEVICES",
        "VLLM_API_KEY", "VLLM_PLUGINS", "VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "VLLM_SERVER_DEV_MODE", "VLLM_USE_MODELSCOPE", "VLLM_HOST_IP", "VLLM_TORCH_PROFILER_DIR", "NCCL_NET_PLUGIN",
        "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_COMM_ID", "NCCL_TOPO_FILE", "CUDA_INJECTION64_PATH",
        "CUDA_MPS_PIPE_DIRECTORY", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_TRACE", "OMP_TOOL_LIBRARIES",
        "SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_TORCH_PROFILER_DIR", "UCX_NET_DEVICES", "TRITON_PTXAS_PATH",
        "GGML_BACKEND_PATH", "LLAMA_CACHE", "http_proxy", "vllm_x", "VLLM-X", "", "TORCH_COMPILE_WORKDIR",
    ],
)  # fmt: skip
def test_variables_that_name_places_doors_or_credentials_are_refused(name: str) -> None:
    assert environment_problem("vllm", name, "x") is not None


def test_variables_that_tune_pass_and_values_stay_on_their_line() -> None:
    tuning = ("OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "NCCL_DEBUG", "NCCL_IB_TIMEOUT", "PYTORCH_CUDA_ALLOC_CONF",
              "CUDA_LAUNCH_BLOCKING", "VLLM_ATTENTION_BACKEND", "GGML_CUDA_FORCE_MMQ", "KMP_AFFINITY", "TZ",
              "TOKENIZERS_PARALLELISM", "VLLM_LOGGING_LEVEL", "SGLANG_ENABLE_JIT_DEEPGEMM")  # fmt: skip
    assert environment_problems("vllm", dict.fromkeys(tuning, "1")) == {}
    assert "line break" in (environment_problem("vllm", "OMP_NUM_THREADS", "1\nLD_PRELOAD=x") or "")
    assert "--host" in (environment_problem("llamacpp", "LLAMA_ARG_HOST", "0.0.0.0") or "")
