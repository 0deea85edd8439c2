"""Definitions: everything wrong is said at once, with its path, what was found and what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.events.commands import (
    CordonNode,
    DefineModel,
    DrainNode,
    LendNode,
    ReclaimNode,
    RemoveModel,
    RestartModel,
    ScaleModel,
    UncordonNode,
)
from libs.events.machine import EngineFound, WeightsHere
from libs.events.model import Adapter, Canary, Licence, ModelScaled, ModelSpec, Profile, Scaling
from libs.events.subjects import encode_token
from libs.events.views import WeightsWanted
from services.scheduler.core.commands.validation import fingerprint
from services.scheduler.core.state.facts import ERRANDS
from services.scheduler.core.views.desired import wanted_on

from .harness import World, cpu_profile, gpu_profile, model_spec


def refused(spec: ModelSpec) -> dict[str, str]:
    return World().refused(DefineModel(spec=spec))


def test_everything_wrong_is_said_at_once() -> None:
    found = refused(
        ModelSpec(
            name="No Name",
            aliases=("ok", "ok", "Bad!"),
            source="hf:somewhere",
            context_length=0,
            max_output_tokens=10,
            capabilities=("chat", "chta"),
            profiles=(
                Profile(name="a", engine="llamacpp", cores=0, args=("--host", "0.0.0.0", "--no-mmap")),
                Profile(name="a", engine="sglang", memory_mb=10, parallel=0, env={"HF_TOKEN": "x"}),
                Profile(name="c", engine="sim", gpu_class="h100-80g", startup_timeout_s=1),
            ),
            scaling=Scaling(min=2, max=1),
        )
    )
    assert set(found) == {
        "name", "aliases[1]", "aliases[2]", "source", "context_length", "max_output_tokens", "capabilities[1]",
        "scaling.max", "profiles[1].name", "profiles[0].memory_mb", "profiles[0].cores", "profiles[0].args[0]",
        "profiles[1].gpu_class", "profiles[1].parallel", "profiles[1].env.HF_TOKEN", "profiles[2].gpus_per_node",
        "profiles[2].startup_timeout_s",
    }  # fmt: skip
    assert found["capabilities[1]"] == "'chta' is not known: did you mean chat?"
    assert found["profiles[0].args[0]"] == (
        "the option --host may not be set in a profile: the agent sets it; leave it out"
    )
    assert "must state the main memory" in found["profiles[0].memory_mb"]
    assert "No Name" in found["name"]


def test_a_right_definition_is_taken() -> None:
    world = World()
    spec = ModelSpec(
        name="qwen2.5-7b",
        aliases=("default",),
        source="library:qwen2.5-7b@0123456789ab",
        profiles=(
            cpu_profile(engine="llamacpp", args=("--no-mmap", "--temp", "-1")),
            gpu_profile(engine="vllm", env={"VLLM_USE_V1": "1"}),
        ),
    )
    assert world.command(DefineModel(spec=spec)) is not None
    assert world.command(DefineModel(spec=spec)) is None


@pytest.mark.parametrize(
    "alias", ["Qwen/Qwen3-8B", "llama3:8b", "gpt-4o", "meta-llama/Llama-3.1-8B-Instruct", "a/b/c:D_e.1"]
)
def test_an_alias_may_be_the_name_a_model_has_elsewhere(alias: str) -> None:
    world = World()
    world.define(model_spec("one", aliases=(alias,)))
    assert encode_token(alias)
    assert "aliases[0]" in world.refused(DefineModel(spec=model_spec("two", aliases=(alias,))))


@pytest.mark.parametrize("alias", ["", "/a", "a/", "a//b", "a b", ":a", "a?b", "a#b", "a%2Fb", "é", "a\n", "x" * 129])
def test_an_alias_that_no_path_could_hold_is_refused(alias: str) -> None:
    assert "single '/'" in refused(model_spec("one", aliases=(alias,)))["aliases[0]"]


def test_a_line_end_is_no_part_of_a_name() -> None:
    found = refused(model_spec("one\n", source="library:one\n", fallbacks=("two\n",)))
    assert {"name", "source", "fallbacks[0]"} <= set(found)


def test_models_and_aliases_share_one_namespace() -> None:
    world = World()
    world.define(model_spec("one", aliases=("first", "uno")))
    found = world.refused(DefineModel(spec=model_spec("two", aliases=("one", "uno", "two"))))
    assert found == {
        "aliases[0]": "'one' is the name of another model: models and aliases share one namespace",
        "aliases[1]": "'uno' is an alias of the model one: models and aliases share one namespace",
        "aliases[2]": "'two' is the model's own name: models and aliases share one namespace",
    }
    assert "is an alias of the model one" in world.refused(DefineModel(spec=model_spec("first")))["name"]
    world.command(RemoveModel(model="one"))
    world.define(model_spec("first"))


def test_an_engine_needs_weights_unless_it_is_simulated() -> None:
    assert "needs weights" in refused(model_spec("m", 1, cpu_profile(engine="llamacpp")))["source"]
    World().define(model_spec("m"))


def test_the_fingerprint_is_of_what_decides_how_it_runs() -> None:
    base = model_spec("m", 1, cpu_profile("a"), cpu_profile("b"))
    same = model_spec(
        "m", 5, cpu_profile("b", priority=3), cpu_profile("a", startup_timeout_s=77), aliases=("x",), description="y"
    )
    assert fingerprint(base) == fingerprint(same)
    for other in (
        model_spec("m", 1, cpu_profile("a"), cpu_profile("b", args=("--echo",))),
        model_spec("m", 1, cpu_profile("a"), cpu_profile("b", env={"SIM_X": "1"})),
        model_spec("m", 1, cpu_profile("a"), cpu_profile("b"), context_length=1),
        model_spec("m", 1, cpu_profile("a"), cpu_profile("b"), source="library:w"),
    ):
        assert fingerprint(other) != fingerprint(base)


def test_unsafe_flags_and_variables_are_all_said_at_once_with_their_place() -> None:
    profile = cpu_profile(
        engine="llamacpp",
        args=("--batch-size", "512", "--model=/etc/passwd", "--log_file", "x", "--flash-attn"),
        env={"OMP_NUM_THREADS": "4", "LD_PRELOAD": "x", "GGML_BACKEND_PATH": "x", "LLAMA_ARG_HOST": "0.0.0.0"},
    )
    found = World().refused(DefineModel(spec=model_spec("m", 1, profile, source="library:w")))
    assert set(found) == {
        *("profiles[0].args[2]", "profiles[0].args[3]"),
        *("profiles[0].env.LD_PRELOAD", "profiles[0].env.GGML_BACKEND_PATH", "profiles[0].env.LLAMA_ARG_HOST"),
    }
    assert "--host" in found["profiles[0].env.LLAMA_ARG_HOST"]


def engine_on(version: str, engine: str = "vllm") -> World:
    world = World()
    world.machine("g", gpus=1, engines=(EngineFound(engine=engine, version=version, source="/opt"),))
    world.react()
    return world


def test_an_option_the_engine_does_not_have_is_refused_when_the_model_is_declared() -> None:
    profile = gpu_profile(engine="vllm", args=("--enforce-eagr", "--seed", "1"), min_gpu_memory_mb=1)
    command = DefineModel(spec=model_spec("m", 1, profile, source="hf:o/m@" + "0" * 40))
    said = {"profiles[0].args[0]": "vllm 0.32.0 has no option --enforce-eagr: did you mean --enforce-eager?"}

    assert World().refused(command) == said
    assert engine_on("0.32.0+cpu").refused(command) == said
    # What another version has is for the node to find out.
    for version in ("0.33.0", "as set"):
        engine_on(version).command(command)


def test_llama_cpp_of_the_package_has_fewer_options_than_a_program_that_is_named() -> None:
    profile = cpu_profile(engine="llamacpp", args=("--rope-scaling", "yarn"))
    command = DefineModel(spec=model_spec("m", 1, profile, source="library:w"))

    assert list(engine_on("2026.10", "llamacpp").refused(command)) == ["profiles[0].args[0]"]
    engine_on("as set", "llamacpp").command(command)
    World().command(command)


def test_vllm_runs_on_the_cpu() -> None:
    spec = model_spec("m", 1, cpu_profile(engine="vllm", memory_mb=8000), source="library:w")
    World().define(spec)
    assert (
        "must state the main memory"
        in refused(model_spec("m", 1, cpu_profile(engine="vllm", memory_mb=None), source="library:w"))[
            "profiles[0].memory_mb"
        ]
    )


@pytest.mark.parametrize(
    ("profile", "fields", "path", "says"),
    [
        ({"gpu_class": "a100-80g-mig-3g.40gb", "gpus_per_node": 2}, {}, "profiles[0].gpus_per_node", "exactly one"),
        ({"gpu_class": "a100-80g-mig-3g.40gb", "nodes": 2}, {}, "profiles[0].nodes", "exactly one"),
        ({"engine": "llamacpp", "nodes": 2}, {"source": "library:w"}, "profiles[0].nodes", "runs on one machine"),
        ({"engine": "llamacpp", "tp": 4, "gpus_per_node": 2}, {"source": "library:w"}, "profiles[0].tp", "layers"),
        ({"gpus_per_node": 8, "nodes": 2, "tp": 8, "pp": 4}, {}, "profiles[0].tp", "32 GPUs, the profile has 16"),
        ({"nodes": 65}, {}, "profiles[0].nodes", "state 1 to 64"),
        ({"weight": 0}, {}, "profiles[0].weight", "state 1 to 1000"),
        ({"min_compute_capability": "sm_90"}, {}, "profiles[0].min_compute_capability", "8.9"),
        ({"replicas": -1}, {}, "profiles[0].replicas", "state 0 to"),
        ({"replicas": 2}, {"scaling": Scaling(min=1, max=4)}, "scaling.max", "states its number"),
        ({}, {"scaling": Scaling(min=0, max=4)}, "scaling.min", "on_demand"),
        ({}, {"scaling": Scaling(min_lifetime_s=-1)}, "scaling.min_lifetime_s", "state 0 to"),
        ({}, {"scaling": Scaling(target_ttft_ms=0)}, "scaling.target_ttft_ms", "at least 1"),
        ({}, {"canary": Canary(percent=0)}, "canary.percent", "1 to 90"),
        ({}, {"canary": Canary(max_error_rate=2.0)}, "canary.max_error_rate", "0.0 to 1.0"),
        ({}, {"fallbacks": ("m",)}, "fallbacks[0]", "the model itself"),
        ({}, {"fallbacks": ("x", "x")}, "fallbacks[1]", "listed twice"),
        ({}, {"fallbacks": ("back",)}, "fallbacks[0]", "m falls back to back falls back to m"),
        ({}, {"licence": Licence(id="")}, "licence.id", "empty"),
        ({}, {"loras": (Adapter(name="taken", source="library:a"),)}, "adapters[0].name", "one namespace"),
        ({}, {"loras": (Adapter(name="fine", source="a"),)}, "adapters[0].source", "library:NAME"),
        ({"engine": "llamacpp"}, {"source": "library:w", "loras": (Adapter(name="fine", source="library:a"),)},
         "profiles[0].engine",
         "own name: vllm, sglang, sim do"),
        ({}, {"aliases": ("tuned",)}, "aliases[0]", "is an adapter of the model back"),
    ],
)  # fmt: skip
def test_each_rule(profile: dict[str, Any], fields: dict[str, Any], path: str, says: str) -> None:
    world = World()
    world.define(model_spec("taken"))
    loras = (Adapter(name="tuned", source="library:a"),)
    world.define(model_spec("back", fallbacks=("m",), loras=loras))
    scaling = fields.pop("scaling", None)
    spec = model_spec("m", 1, gpu_profile(**profile), **fields)
    found = world.refused(DefineModel(spec=spec if scaling is None else msgspec.structs.replace(spec, scaling=scaling)))
    assert set(found) == {path}
    assert says in found[path]


def test_what_was_added_later_leaves_old_fingerprints_alone_and_counts_where_it_is_set() -> None:
    base = model_spec("m", 1, gpu_profile())
    assert fingerprint(base) == "85c6475912f70c8b"
    same = model_spec("m", 1, gpu_profile(weight=2, replicas=3), owner="x", fallbacks=("y",))
    assert fingerprint(same) == fingerprint(base)
    for other in (
        model_spec("m", 1, gpu_profile(nodes=2)),
        model_spec("m", 1, gpu_profile(tp=1)),
        model_spec("m", 1, gpu_profile(), allow_pickle=True),
        model_spec("m", 1, gpu_profile(), loras=(Adapter(name="a", source="library:a"),)),
    ):
        assert fingerprint(other) != fingerprint(base)


def test_a_scaling_in_force_is_part_of_the_definition() -> None:
    world = World()
    world.define(model_spec())
    assert isinstance(world.command(ScaleModel(model="m", scaling=Scaling(min=2))), ModelScaled)
    assert world.command(ScaleModel(model="m", scaling=Scaling(min=2))) is None
    assert world.command(DefineModel(spec=model_spec("m", 2))) is None
    assert world.command(DefineModel(spec=model_spec("m", 1))) is not None
    assert set(world.refused(ScaleModel(model="m", scaling=Scaling(min=-1)))) == {"scaling.min"}


def test_what_is_not_there_is_named_with_what_is() -> None:
    world = World()
    world.machine("gpu-01")
    world.define(model_spec("qwen"))
    for command in (RemoveModel(model="qwne"), ScaleModel(model="qwne", scaling=Scaling()), RestartModel(model="qwne")):
        assert world.refused(command) == {"model": "there is no model 'qwne': did you mean 'qwen'?"}
    for node in (CordonNode(machine_id="x"), DrainNode(machine_id="x"), UncordonNode(machine_id="x")):
        assert world.refused(node) == {"machine_id": "there is no node 'x'; there is gpu-01"}


def test_saying_the_same_of_a_node_again_changes_nothing() -> None:
    world = World()
    world.machine("a")
    assert world.command(UncordonNode(machine_id="a")) is None
    assert world.command(CordonNode(machine_id="a", reason="x")) is not None
    assert world.command(CordonNode(machine_id="a", reason="x")) is None
    assert world.command(CordonNode(machine_id="a", reason="y")) is not None
    assert world.command(DrainNode(machine_id="a", reason="y")) is not None
    assert world.command(DrainNode(machine_id="a", reason="y")) is None
    assert world.command(UncordonNode(machine_id="a")) is not None


def test_weights_on_the_machines_need_figures_and_no_library() -> None:
    for source in ("file:models/x", "file:/a/../b", "file:/", "file:/a/", "file:/a\nb", "file:"):
        found = refused(model_spec(source=source))["source"]
        assert "control character" in found if "\n" in source else "absolute path without '..'" in found
    profile = gpu_profile(engine="vllm")
    assert refused(model_spec("m", 1, profile, source="file:/mnt/m")) == {
        "profiles[0].min_gpu_memory_mb": "the cluster does not see the headers of file:/mnt/m, so what it takes must "
        "be stated: state the MB it needs of each GPU"
    }
    assert (
        "main memory"
        in refused(model_spec("m", 1, cpu_profile(memory_mb=None), source="file:/mnt/m"))["profiles[0].memory_mb"]
    )
    world = World()
    world.machine("a")
    world.machine("b", labels={"share": "models"})
    world.define(model_spec("m", 1, cpu_profile(node_selector={"share": "models"}), source="file:/mnt/m"))
    world.settle()
    (replica,) = world.replicas()
    assert (replica.phase, replica.machines, replica.weights) == ("ready", ("b",), "file:/mnt/m")
    (wanted,) = wanted_on(world.state, "b")
    assert wanted.weights == WeightsWanted(name="file:/mnt/m", version="", files=(), mirrors=(), source="file:/mnt/m")
    assert world.state.facts.machines["b"].weights == [], "no copy of it is the agent's"


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_of_a_hub_only_a_commit_is_taken() -> None:
    for commit in ("", "@main", "@v1.0", "@0123456", f"@{COMMIT[:39]}F"):
        found = refused(model_spec(source=f"hf:acme/tiny{commit}"))["source"]
        assert "state hf:acme/tiny@COMMIT with the 40 hex digits that `git ls-remote https" in found
    assert "'main', which may mean other weights tomorrow" in refused(model_spec(source="hf:acme/tiny@main"))["source"]
    for source in (f"hf:tiny@{COMMIT}", f"hf:a/b/c@{COMMIT}", f"hf:a/b@{COMMIT}:", f"hf:a/b@{COMMIT}:../x.gguf",
                   f"hf:a/b@{COMMIT}:x.bin", f"hf:a--b/c@{COMMIT}"):  # fmt: skip
        assert "is not hf:ORG/NAME@COMMIT, or hf:ORG/NAME@COMMIT:FILE" in refused(model_spec(source=source))["source"]
    found = refused(model_spec("m", 1, gpu_profile(engine="vllm"), source=f"hf:acme/tiny@{COMMIT}"))
    assert set(found) == {"profiles[0].min_gpu_memory_mb"}


def test_what_a_hub_has_is_placed_without_a_mirror_and_where_it_is_already() -> None:
    world = World()
    kept = f"HF--Acme--Tiny@{COMMIT}-q4--tiny.gguf"
    for name in ("a", "b", "c"):
        held = (WeightsHere(weights=kept, size_bytes=1),) if name == "b" else ()
        world.machine(name, features=(ERRANDS,), weights=held)
    source = f"hf:Acme/Tiny@{COMMIT}:q4/tiny.gguf"
    world.define(model_spec(source=source))
    world.settle()
    (replica,) = world.replicas()
    assert (replica.phase, replica.machines) == ("ready", ("b",))
    (wanted,) = wanted_on(world.state, "b")
    name, _, version = kept.partition("@")
    assert wanted.weights == WeightsWanted(name=name, version=version, files=(), mirrors=(), source=source)


def test_a_node_that_is_not_lent_is_not_reclaimed() -> None:
    world = World()
    world.machine("a")
    assert world.refused(ReclaimNode(machine_id="a")) == {"machine_id": "a cannot be reclaimed, it was lent to nobody"}
    world.command(DrainNode(machine_id="a"))
    assert "it is drained: `llmgw node uncordon`" in world.refused(ReclaimNode(machine_id="a"))["machine_id"]
    world.command(UncordonNode(machine_id="a"))
    world.command(LendNode(machine_id="a", to="team"))
    assert world.command(ReclaimNode(machine_id="a")) is not None
