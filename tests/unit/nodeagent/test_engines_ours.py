from __future__ import annotations

import pytest

from libs.engines import ENGINES
from services.nodeagent.core.engines import Place, environment
from services.nodeagent.engines.llamacpp import launcher
from services.nodeagent.engines.llamacpp.engine import LlamaCpp
from services.nodeagent.engines.sim.engine import Sim

from .wanted import gguf, shard, weights

PLACE = Place(host="127.0.0.1", port=4711, weights="/w/model.gguf", cpu_count=8)
LLAMA = LlamaCpp(python="/venv/python")
SIM = Sim(python="/venv/python")


def llama_shard(**fields: object) -> object:
    return shard(**({"engine": "llamacpp", "weights": weights(gguf())} | fields))


def after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_llamacpp_gets_the_context_of_every_slot_and_the_cores_reserved() -> None:
    command = LLAMA.command(llama_shard(context_length=2048, parallel=3, cores=2), PLACE)
    assert command[:3] == ["/venv/python", "-m", "services.nodeagent.engines.llamacpp.launcher"]
    assert after(command, "--ctx-size") == "6144"
    assert after(command, "--parallel") == "3"
    assert after(command, "--threads") == "2"
    assert after(command, "--model") == "/w/model.gguf"
    assert after(command, "--alias") == "demo"


def test_without_reserved_cores_half_the_machine_computes() -> None:
    assert after(LLAMA.command(llama_shard(), PLACE), "--threads") == "4"


def test_a_named_program_is_started_with_the_same_options() -> None:
    named = LlamaCpp(python="/venv/python", binary="/opt/llama-server")
    assert named.command(llama_shard(), PLACE) == ["/opt/llama-server", *LLAMA.command(llama_shard(), PLACE)[3:]]


def test_the_launcher_understands_every_command_line_the_adapter_writes() -> None:
    wanted = llama_shard(args=("--batch-size", "512", "-fa", "on", "--cache-type-k", "q8_0", "-nocb"))
    options = launcher.parser().parse_args(LLAMA.command(wanted, PLACE)[3:])
    assert (options.host, options.port, options.alias) == ("127.0.0.1", 4711, "demo")
    assert options.n_batch == 512
    assert options.cache_ram_mib == 0
    assert options.cont_batching


def test_a_profile_may_set_the_prompt_cache() -> None:
    command = LLAMA.command(llama_shard(args=("--cache-ram", "64")), PLACE)
    assert command.count("--cache-ram") == 1


def test_inputs_that_become_vectors_are_read_in_one_batch_as_long_as_the_context() -> None:
    """llama.cpp takes 512 tokens of an input for a vector unless told otherwise."""
    for asked in (("--embeddings",), ("--embedding",), ("--pooling", "mean"), ("--pooling=cls",)):
        command = LLAMA.command(llama_shard(context_length=8192, parallel=3, args=asked), PLACE)
        assert (after(command, "--batch-size"), after(command, "--ubatch-size")) == ("8192", "8192")
    assert "--ubatch-size" not in LLAMA.command(llama_shard(context_length=8192), PLACE)
    own = LLAMA.command(llama_shard(args=("--embeddings", "-ub", "1024", "-b", "2048")), PLACE)
    assert "--ubatch-size" not in own
    assert "--batch-size" not in own


def test_the_launcher_sets_what_the_options_say() -> None:
    import xllamacpp

    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    args = ("--flash-attn", "off", "--cache-type-k", "q8_0", "--no-warmup", "--chat-template", template)
    args += ("--embeddings", "--pooling", "mean")
    wanted = llama_shard(args=args, parallel=2)
    options = launcher.parser().parse_args(LLAMA.command(wanted, PLACE)[3:])
    params = launcher.parameters(options, xllamacpp, "secret")
    assert params.n_parallel == 2
    assert params.cache_ram_mib == 0
    assert params.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert params.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    assert params.api_keys == ["secret"]
    assert params.embedding
    assert params.pooling_type == xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    assert not params.warmup
    assert params.chat_template == template
    assert not params.endpoint_slots, "shows the prompts of others"


def test_the_launcher_names_a_value_that_is_not_known() -> None:
    import xllamacpp

    options = launcher.parser().parse_args(["--model", "m", "--cache-type-k", "q9"])
    with pytest.raises(ValueError, match="--cache-type-k: 'q9' is not known"):
        launcher.parameters(options, xllamacpp, None)


@pytest.mark.parametrize(
    ("paths", "entry"),
    [
        (["b/model-00002-of-00002.gguf", "b/model-00001-of-00002.gguf"], "b/model-00001-of-00002.gguf"),
        (["mmproj-model.gguf", "z.gguf", "README.md"], "z.gguf"),
        (["config.json", "model.safetensors"], None),
    ],
)
def test_llamacpp_opens_the_first_part(paths: list[str], entry: str | None) -> None:
    assert LLAMA.entry(paths) == entry


def test_llamacpp_says_what_it_cannot_run() -> None:
    assert "needs weights" in (LLAMA.refusal(shard(engine="llamacpp"), {}) or "")
    safetensors = weights(gguf(path="model.safetensors"))
    assert "has none" in (LLAMA.refusal(shard(engine="llamacpp", weights=safetensors), {}) or "")
    assert LLAMA.refusal(llama_shard(args=("--batch-size", "256")), {}) is None


@pytest.mark.parametrize(
    "args",
    [
        ("--model", "/etc/passwd"),
        ("--api-key=x",),
        ("--host", "0.0.0.0"),
        ("--log_file", "/tmp/x"),
        ("-m", "x"),
        ("x",),
    ],
)
def test_what_opens_a_file_or_a_door_is_refused_by_name(args: tuple[str, ...]) -> None:
    refusal = LLAMA.refusal(llama_shard(args=args), {})
    assert refusal is not None
    assert args[0].split("=")[0] in refusal


def test_an_option_without_its_value_is_refused() -> None:
    assert "lacks its value" in (LLAMA.refusal(llama_shard(args=("--batch-size",)), {}) or "")
    assert "takes no value" in (SIM.refusal(shard(args=("--echo=1",)), {}) or "")


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "LLAMA_ARG_MODEL", "CUDA_VISIBLE_DEVICES", "VLLM_API_KEY"])
def test_variables_that_name_places_devices_or_credentials_are_refused(name: str) -> None:
    assert name in (SIM.refusal(shard(env={name: "x"}), {}) or "")


def test_tuning_variables_pass() -> None:
    assert SIM.refusal(shard(env={"OMP_NUM_THREADS": "4", "VLLM_CPU_KVCACHE_SPACE": "1"}), {}) is None


def test_the_key_is_in_the_environment_and_never_on_the_command_line() -> None:
    for engine in (SIM, LLAMA):
        wanted = llama_shard(engine=engine.name)
        assert environment(wanted, engine, "ek-secret", PLACE)[ENGINES[engine.name].key_variable] == "ek-secret"
        assert not any("ek-secret" in part for part in engine.command(wanted, PLACE))


def test_devices_are_named_by_uuid_in_bus_order() -> None:
    env = environment(shard(devices=("GPU-b", "GPU-a")), SIM, None, PLACE)
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment(shard(), SIM, None, PLACE)["CUDA_VISIBLE_DEVICES"] == "", "a CPU shard must not grab a GPU"


def test_sim_takes_its_pace_from_the_profile() -> None:
    wanted = shard(args=("--tok-s", "50"), parallel=7)
    assert SIM.refusal(wanted, {}) is None
    command = SIM.command(wanted, PLACE)
    assert after(command, "--tok-s") == "50"
    assert after(command, "--parallel") == "7"


def test_cpu_time_is_progress_only_where_an_engine_computes_on_the_cpu() -> None:
    assert LLAMA.cpu_is_progress(llama_shard())
    assert not LLAMA.cpu_is_progress(llama_shard(devices=("GPU-a",)))
    assert not SIM.cpu_is_progress(shard())
