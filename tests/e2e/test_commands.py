"""Every command against a running cluster: what it prints, and how it says no."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest
import yaml

from libs.bus import BusSettings, connect
from libs.bus.topology import STREAMS
from libs.bus.transport import RawMessage
from libs.testing import eventually
from libs.testing.weights import gguf
from tests.data.models import gguf_headers

from .cluster import Cluster
from .test_demo import client

READING = (
    ("status",),
    ("model", "list"),
    ("model", "show", "sim-chat"),
    ("explain", "sim-chat"),
    ("node", "list"),
    ("node", "show", "sim-1"),
    ("org", "list"),
    ("team", "list"),
    ("project", "list"),
    ("key", "list"),
    ("price", "list"),
    ("usage",),
    ("budget", "list"),
    ("policy", "list"),
    ("library", "list"),
    ("event", "show", "1"),
    ("event", "replay"),
    ("export",),
)


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_what_only_reads_prints_text_and_json(cluster: Cluster, command: tuple[str, ...]) -> None:
    assert cluster.text(*command).strip()
    assert cluster.json(*command) is not None


def test_a_node_is_drained_until_it_is_empty_or_it_is_said_what_is_in_the_way(cluster: Cluster) -> None:
    try:
        assert "sim-1 is empty" in cluster.text("node", "drain", "sim-1", "--wait")
        shown = cluster.text("node", "list")
        assert " drained " in shown
        refused = cluster.refused("node", "drain", "sim-2", "--reason", "disk", "--wait", "--timeout", "3s")
        assert "sim-2 is draining: disk; 2 shards have nowhere to go: `llmgw explain` of sim-chat says why" in refused
        assert "2 shards have nowhere to go" in cluster.text("status")
        told = cluster.text("explain", "sim-chat")
        assert told.count("sim-2 is being drained (disk); it stays because nothing else fits: ") == 2
        assert cluster.text("status").count("2 of 2 replicas ready") == 1
    finally:
        cluster.text("node", "uncordon", "sim-2")
        cluster.text("node", "uncordon", "sim-1")
        cluster.text("model", "scale", "sim-chat", "1")
        cluster.text("model", "scale", "sim-chat", "2")
        cluster.until_served()


def test_a_rack_that_may_draw_too_much_says_so(cluster: Cluster) -> None:
    try:
        said = cluster.text("rack", "cap", "a", "0")
        assert "rack a: what runs there may draw 700 W, 0 W are allowed: nothing is stopped" in said
        assert "0 W are allowed" in cluster.text("status")
    finally:
        cluster.text("rack", "cap", "a")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("model", "show", "nope"), "there is no model 'nope': known are "),
        (("explain", "nope"), "nope"),
        (("model", "scale", "nope", "2"), "nope"),
        (("node", "drain", "nope"), "nope"),
        (("node", "restart", "nope"), "nope"),
        (("node", "retire", "sim-1", "--yes"), "sim-1 is heard"),
        (("library", "cancel", "nope"), "no import of 'nope' is under way"),
        (("node", "show", "nope"), "there is no node 'nope': there are "),
        (("node", "change", "sim-2", "stop_grace_s"), "'stop_grace_s' is not a change: state SETTING=VALUE"),
        (("node", "change", "sim-2", "data_dir=/tmp"), "data_dir: it is set where the agent is started"),
        (("node", "remove-weights", "sim-2", "nope@1", "--yes"), "there are no weights nope@1 on this machine"),
        (("node", "logs", "nope"), "there is no node 'nope': there are "),
        (("logs", "nope"), "nothing is called 'nope'"),
        (("key", "create", "demo/demo/nope"), "demo/demo/nope"),
        (("key", "revoke", "k-nope", "--yes"), "k-nope"),
        (("org", "remove", "demo", "--yes"), "demo"),
        (("event", "show", "999999"), "EVENTS holds no message 999999: its last is "),
        (("apply", "-f", "/no/such/file.yaml"), "/no/such/file.yaml cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_says_why(cluster: Cluster, command: tuple[str, ...], reason: str) -> None:
    said = cluster.refused(*command)

    assert said.startswith("llmgw: ")
    assert reason in said


def test_wrong_usage_ends_with_two(cluster: Cluster) -> None:
    assert cluster.run("modle").returncode == 2
    assert cluster.run("project", "create", "just-a-name").returncode == 2


def test_the_fold_of_the_log_is_the_leader_s_state(cluster: Cluster) -> None:
    replayed = cluster.json("event", "replay")

    assert replayed["same"] is True
    assert replayed["hash"] == replayed["leader_hash"]
    assert replayed["position"] > 0


def test_a_key_is_shown_once_works_and_stops_working(cluster: Cluster) -> None:
    made = cluster.json("key", "create", "demo/demo/demo", "--name", "for a test", "--rpm", "7")

    (listed,) = (one for one in cluster.json("key", "list") if one["key_id"] == made["key_id"])
    assert listed["allowance"]["rpm"] == 7
    assert made["key"].startswith(listed["shown"])
    assert made["key"] not in cluster.text("key", "list", "--json")

    cluster.text("key", "change", made["key_id"], "--name", "changed", "--budget", "0.5/day", "--budget", "5/total")
    (listed,) = (one for one in cluster.json("key", "list") if one["key_id"] == made["key_id"])
    assert (listed["name"], listed["allowance"]["rpm"]) == ("changed", 7), "what is not named stays"
    cluster.text("key", "change", made["key_id"], "--clear", "rpm", "--budget", "0.25/day")
    (listed,) = (one for one in cluster.json("key", "list") if one["key_id"] == made["key_id"])
    assert (listed["name"], listed["allowance"]["rpm"]) == ("changed", None)
    budgets = [one for one in cluster.json("budget", "list") if one["level"] == f"key {made['key_id']}"]
    assert sorted((one["budget"], one["left"]) for one in budgets) == [("0.25", "0.25"), ("5", "5")]
    cluster.text("key", "revoke", made["key_id"], "--reason", "the test is over", "--yes")
    (listed,) = (one for one in cluster.json("key", "list") if one["key_id"] == made["key_id"])
    assert listed["revoked"] is True


def test_a_tree_is_made_and_taken_down_by_hand(cluster: Cluster) -> None:
    cluster.text("org", "create", "acme", "--rpm", "100")
    cluster.text("team", "create", "acme/web")
    cluster.text("project", "create", "acme/web/shop", "--model", "sim-chat")
    assert "acme" in cluster.refused("org", "remove", "acme", "--yes")
    assert "llmgw org change acme" in cluster.refused("org", "create", "acme", "--tpm", "5000")
    cluster.text("org", "change", "acme", "--tpm", "5000")
    cluster.text("project", "change", "acme/web/shop", "--rpm", "50")
    (acme,) = (one for one in cluster.json("org", "list") if one["name"] == "acme")
    (shop,) = (one for one in cluster.json("project", "list") if one["name"] == "shop")
    assert (acme["allowance"]["rpm"], acme["allowance"]["tpm"]) == (100, 5000)
    assert (shop["allowance"]["rpm"], shop["allowance"]["models"]) == (50, ["sim-chat"])

    exported = cluster.text("export")
    assert "acme" in exported

    cluster.text("project", "remove", "acme/web/shop", "--yes")
    cluster.text("team", "remove", "acme/web", "--yes")
    cluster.text("org", "remove", "acme", "--yes")
    assert "acme" not in cluster.text("export")


def test_a_price_keeps_what_is_not_named(cluster: Cluster) -> None:
    assert cluster.run("price", "set", "dear", "--cached", "3").returncode == 2
    cluster.text("price", "set", "dear", "--prompt", "10", "--completion", "20", "--cached", "3")
    cluster.text("price", "set", "dear", "--completion", "30")
    (dear,) = (one for one in cluster.json("price", "list") if one["model"] == "dear")
    assert (dear["prompt_micros"], dear["cached_micros"], dear["completion_micros"]) == (10, 3, 30)


def test_a_level_and_the_one_above_it_are_raised_together(cluster: Cluster) -> None:
    declared = "orgs:\n  - name: raised\n    allowance: {rpm: %d}\n    teams: [{name: t, allowance: {rpm: %d}}]\n"
    for rpm in (10, 1000):
        cluster.text("apply", "-f", "-", "--yes", stdin=declared % (rpm, rpm))
    over = cluster.refused("apply", "-f", "-", "--yes", stdin=declared % (1000, 1001))
    assert "team raised/t" in over
    cluster.text("team", "remove", "raised/t", "--yes")
    cluster.text("org", "remove", "raised", "--yes")


def test_a_model_is_defined_scaled_and_removed_by_hand(cluster: Cluster) -> None:
    cluster.text("model", "define", "by-hand", "--engine", "sim", "--gpu-class", "h100-80g", "--gpus", "1")
    cluster.text("model", "scale", "by-hand", "2")
    assert cluster.json("model", "show", "by-hand")["spec"]["scaling"]["min"] == 2

    cluster.text("model", "remove", "by-hand", "--yes")
    assert [one["model"] for one in cluster.json("model", "list")] == ["sim-chat"]


def test_what_fits_nowhere_is_said_when_it_is_declared_and_scaled(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text(
        "models:\n  - name: big\n    profiles:\n"
        "      - {name: gpu, engine: sim, gpu_class: h100-80g, gpus_per_node: 8}\n"
    )
    try:
        applied = cluster.text("apply", "-f", str(file), "--yes")
        assert applied == "+ model big: done\nbig fits nowhere yet: `llmgw explain big` says why\n"
        scaled = cluster.text("model", "scale", "sim-chat", "9")
        assert re.search(r"\n[5-7] of 9 replicas of sim-chat fit nowhere yet: `llmgw explain sim-chat`", scaled)
        assert cluster.text("model", "scale", "sim-chat", "2") == "sim-chat: 2 replicas wanted\n"
    finally:
        cluster.text("model", "scale", "sim-chat", "2")
        cluster.text("model", "remove", "big", "--yes")
        cluster.until_served()


def test_logs_of_an_agent_and_of_an_engine_come_from_their_machine(cluster: Cluster) -> None:
    # Not just any shard of sim-1: those of a model that was removed a moment ago may still be listed there.
    replicas = cluster.json("model", "show", "sim-chat")["state"]["replicas"]
    shard = next(f"{one['replica_id']}-0" for one in replicas if one["machines"] == ["sim-1"])

    assert cluster.text("node", "logs", "sim-1", "-n", "5").strip()
    assert cluster.run("shard", "logs", shard).returncode == 0


async def test_no_secret_and_no_text_of_a_prompt_is_on_any_stream(cluster: Cluster) -> None:
    prompt = "the heron waits beside the seventh lock"
    with client(cluster) as sdk:
        answer = sdk.chat.completions.create(
            model="sim-chat", messages=[{"role": "user", "content": prompt}], max_tokens=8, user="someone"
        )
    said = answer.choices[0].message.content
    assert said
    secrets = {
        "the prompt": prompt,
        "the answer": said,
        "the client key": cluster.client_key,
        "the admin key": cluster.admin_key,
        "the fleet secret": (cluster.state_dir / "secrets" / "fleet.secret").read_text().strip(),
        "the database password": (cluster.state_dir / "secrets" / "postgres.password").read_text().strip(),
        "an engine key": "ek-",
    }
    credentials = cluster.state_dir / "identities" / "operator.nk"
    bus = await connect(BusSettings(url=cluster.nats_url, credentials=credentials, identity="operator"))
    found: dict[str, int] = {}

    def look(stream: str, message: RawMessage) -> None:
        found[stream] = found.get(stream, 0) + 1
        everything = json.dumps(dict(message.headers)) + message.payload.decode(errors="replace")
        for what, secret in secrets.items():
            assert secret not in everything, f"{what} is in {stream}: {everything[:500]}"

    commands: list[RawMessage] = []

    async def hear(message: RawMessage) -> None:
        commands.append(message)

    try:
        # Commands leave their stream as soon as somebody did what they say: they are heard on their way into it.
        await bus.transport.subscribe("llmgw.cmd.>", hear)
        created = await asyncio.to_thread(cluster.json, "key", "create", "demo/demo/demo")
        secrets["a key made just now"] = created["key"]
        await asyncio.to_thread(cluster.text, "key", "revoke", created["key_id"], "--yes")
        await asyncio.to_thread(cluster.text, "model", "scale", "sim-chat", "2")
        await eventually(lambda: len(commands) >= 3)
        for command in commands:
            look("COMMANDS", command)
        for stream in STREAMS:
            # Only CHECKS may hold text: in memory, for a minute at most.
            if stream.name in ("CHECKS", "COMMANDS"):
                continue
            reader = await bus.transport.read(stream.name, [], 0)
            waiting = reader.pending
            while waiting:
                message = await reader.next(5.0)
                assert message is not None
                waiting = message.pending
                look(stream.name, message)
            await reader.close()
    finally:
        await bus.close()
    assert {"EVENTS", "USAGE", "TELEMETRY", "COMMANDS", "KV_routes", "KV_keys"} <= set(found)


def test_weights_are_imported_and_removed_by_hand(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(gguf(bytes(1000)))

    cluster.text("library", "import", "tiny", f"path:{tmp_path / 'tiny.gguf'}", "--licence", "none")
    (listed,) = (one for one in cluster.json("library", "list") if one["name"] == "tiny")
    assert (listed["files"], listed["size_bytes"]) == (1, 1024)
    assert "tiny.gguf" in cluster.text("export")
    again = cluster.text("library", "import", "tiny", f"path:{tmp_path / 'tiny.gguf'}", "--licence", "none")
    assert again.strip() == "tiny: already there"
    (tmp_path / "noise.gguf").write_bytes(bytes(range(256)) * 10)
    assert "noise.gguf: " in cluster.refused("library", "import", "noise", f"path:{tmp_path / 'noise.gguf'}")
    assert cluster.json("status")["imports"] == []

    cluster.text("library", "remove", f"tiny@{listed['version']}", "--yes")
    assert "tiny" not in {one["name"] for one in cluster.json("library", "list")}


def test_a_fine_tuning_is_asked_for_by_its_own_name(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "law"
    folder.mkdir()
    header = json.dumps({"a.lora_A.weight": {"dtype": "F32", "shape": [1, 4], "data_offsets": [0, 16]}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    cluster.text("library", "import", "law-lora", f"path:{folder}", "--licence", "none")
    model = {
        "name": "sim-tuned", "adapters": [{"name": "sim-law", "source": "library:law-lora"}],
        "profiles": [{"name": "cpu", "engine": "sim", "memory_mb": 100, "cores": 1}],
    }  # fmt: skip
    cluster.text("apply", "-f", "-", "--yes", stdin=json.dumps({"models": [model]}))

    def answered() -> bool:
        with client(cluster) as sdk:
            answer = sdk.chat.completions.create(
                model="sim-law", messages=[{"role": "user", "content": "hello"}], max_tokens=4
            )
        return answer.model == "sim-law"

    asyncio.run(eventually(answered, 60))
    exported = yaml.safe_load(cluster.text("export"))
    rest = {
        "library": [one for one in exported.get("library", []) if one["name"] != "law-lora"],
        "models": [one for one in exported["models"] if one["name"] != "sim-tuned"],
    }
    done = cluster.text("apply", "-f", "-", "--prune", "--yes", stdin=yaml.safe_dump(rest))
    assert done.splitlines() == ["- model sim-tuned: done", "- library law-lora: done"]


def test_a_node_does_what_it_is_asked_once(cluster: Cluster) -> None:
    assert "start " in cluster.text("node", "restart", "sim-2")
    assert "in effect" in cluster.text("node", "change", "sim-2", "labels={rack: r9}", "--reason", "it was moved")
    eventually_shown = cluster.text("node", "show", "sim-2")
    assert "changed setting labels" in eventually_shown
    cluster.text("node", "change", "sim-2", "labels=")
    shard, machine_id = next((row["shard_id"], row["machine_id"]) for row in cluster.json("shard", "list"))
    assert "its engine is process" in cluster.text("shard", "restart", shard)
    story = cluster.text("event", "list", "-n", "60")
    assert f"node {machine_id}: the engine of {shard} is to start anew" in story
    assert "node sim-2: its agent is to start anew" in story


def test_a_node_is_cordoned_and_takes_work_again(cluster: Cluster) -> None:
    def state() -> str:
        return next(one["state"] for one in cluster.json("node", "list") if one["machine_id"] == "sim-2")

    cluster.text("node", "cordon", "sim-2", "--reason", "a fan is loud")
    assert state() == "cordoned"
    assert "node sim-2 is cordoned: it gets nothing new: a fan is loud" in cluster.text("event", "list")

    cluster.text("node", "uncordon", "sim-2")
    assert state() == "ready"


def test_apply_that_prunes_checks_everything_before_its_first_step(cluster: Cluster, tmp_path: Path) -> None:
    declared = "orgs:\n  - name: pruned\n    teams:\n      - {name: t, projects: [{name: kept}, {name: idle}]}\n"
    cluster.text("apply", "-f", "-", "--yes", stdin=declared)
    key = cluster.json("key", "create", "pruned/t/kept", "--name", "k")["key_id"]
    exported = yaml.safe_load(cluster.text("export"))
    rest = yaml.safe_dump({"orgs": [org for org in exported["orgs"] if org["name"] != "pruned"]})
    before = cluster.json("project", "list")

    said = cluster.refused("apply", "-f", "-", "--prune", "--yes", stdin=rest)

    assert f"project pruned/t/kept: project: project pruned/t/kept still has a key ({key}); revoke it first" in said
    assert cluster.json("project", "list") == before
    models = cluster.json("model", "list")

    cluster.text("key", "revoke", key, "--yes")
    done = cluster.text("apply", "-f", "-", "--prune", "--yes", stdin=rest)

    assert [line.partition(":")[0] for line in done.splitlines()] == [
        "- project pruned/t/idle",
        "- project pruned/t/kept",
        "- team pruned/t",
        "- org pruned",
    ]
    assert [one["model"] for one in cluster.json("model", "list")] == [one["model"] for one in models]


def test_a_plan_and_a_dry_run_are_the_same(cluster: Cluster) -> None:
    spec = {"name": "planned", "profiles": [{"name": "sim", "engine": "sim", "memory_mb": 100}]}
    declared = yaml.safe_dump({"orgs": [{"name": "planned"}], "models": [spec]})

    planned = cluster.text("plan", "-f", "-", stdin=declared)

    assert planned.startswith("+ org planned\n")
    assert "+ model planned\n" in planned
    assert "2 to add, 0 to change, 0 to remove\n" in planned
    assert " of planned placed on " in planned
    assert "1 to start, 0 to stop" in planned
    steps = json.loads(cluster.text("plan", "-f", "-", "--json", stdin=declared))["steps"]
    dry_run = cluster.text("apply", "-f", "-", "--dry-run", "--json", stdin=declared)
    assert steps == json.loads(dry_run)["steps"]
    assert {step["status"] for step in steps} == {"planned"}
    tenancy = json.loads(cluster.text("plan", "-f", "-", "--json", stdin="orgs: [{name: planned}]\n"))
    assert [step["name"] for step in tenancy["steps"]] == ["planned"]
    assert "moves" not in tenancy, "nothing is placed for it"
    assert "planned" not in cluster.text("export")


def test_what_destroys_is_not_done_where_nobody_can_be_asked(cluster: Cluster) -> None:
    refused = cluster.refused("model", "remove", "sim-chat")

    assert "there is no terminal to ask at whether to remove model sim-chat and stop its replicas; add --yes" in refused
    assert [one["model"] for one in cluster.json("model", "list")] == ["sim-chat"]


def test_a_policy_that_a_key_names_goes_only_after_it_and_never_unasked(cluster: Cluster) -> None:
    declared = "orgs: [{name: naming, teams: [{name: t, projects: [{name: p}]}]}]\npolicies: [{name: named}]\n"
    cluster.text("apply", "-f", "-", "--yes", stdin=declared)
    key = cluster.json("key", "create", "naming/t/p", "--policy", "named")["key_id"]
    exported = yaml.safe_load(cluster.text("export"))
    rest = yaml.safe_dump({"policies": [one for one in exported["policies"] if one["name"] != "named"]})

    def policies() -> set[str]:
        return {one["name"] for one in yaml.safe_load(cluster.text("export")).get("policies", ())}

    used = f"policy named would be removed, and key {key} still names it"
    assert used in cluster.refused("policy", "remove", "named", "--yes")
    assert used in cluster.refused("apply", "-f", "-", "--prune", "--yes", stdin=rest)
    assert "whether to remove policy named; add --yes" in cluster.refused("policy", "remove", "named")
    cluster.text("key", "revoke", key, "--yes")
    asked = cluster.refused("apply", "-f", "-", "--prune", stdin=rest)
    assert "- policy named" in asked
    assert "whether to apply this; add --yes" in asked
    assert "named" in policies()
    assert cluster.text("apply", "-f", "-", "--prune", "--yes", stdin=rest) == "- policy named: done\n"
    assert "named" not in policies()


def test_logs_finds_engines_that_ended_and_the_engine_of_a_model(cluster: Cluster) -> None:
    spec = {"name": "brief", "profiles": [{"name": "sim", "engine": "sim", "memory_mb": 100}]}
    cluster.text("apply", "-f", "-", "--yes", stdin=yaml.safe_dump({"models": [spec]}))
    cluster.until_served()
    shards = {shard for one in cluster.json("node", "list") for shard in one["shards"]}
    (replica,) = cluster.json("model", "show", "brief")["state"]["replicas"]
    shard = f"{replica['replica_id']}-0"
    assert shard in shards
    running = cluster.run("model", "logs", "brief")
    assert f"{shard} on {replica['machines'][0]}, which runs" in running.stderr

    cluster.text("model", "stop", "brief")
    end = time.monotonic() + 30
    stopped = cluster.run("model", "logs", "brief")
    while "which has ended" not in stopped.stderr:
        assert time.monotonic() < end, stopped
        stopped = cluster.run("model", "logs", "brief")

    assert stopped.stdout == cluster.text("shard", "logs", shard)
    assert stopped.stdout.strip(), "what it printed is kept"
    cluster.text("model", "remove", "brief", "--yes")
    assert cluster.text("shard", "logs", shard) == stopped.stdout


def test_headers_of_weights_that_only_nodes_see_are_held_against_a_definition(cluster: Cluster, tmp_path: Path) -> None:
    gguf = tmp_path / "gemma.gguf"
    gguf.write_bytes(gguf_headers.gemma_3_270m())

    def declared(source: str, context: int) -> str:
        profile = {"name": "cpu", "engine": "llamacpp", "memory_mb": 50_000, "cores": 1}
        spec = {"name": "seen", "source": source, "context_length": context, "profiles": [profile]}
        return yaml.safe_dump({"models": [spec]})

    said = cluster.refused("apply", "-f", "-", "--dry-run", stdin=declared(f"file:{gguf}", 65_536))
    assert "model seen: context_length: a context of 65,536 tokens; it was trained for 32,768" in said
    fine = cluster.run("apply", "-f", "-", "--dry-run", stdin=declared(f"file:{gguf}", 8192))
    assert (fine.returncode, fine.stderr) == (0, "")
    by_hand = ("--engine", "llamacpp", "--source", f"file:{gguf}", "--memory-mb", "50000", "--context-length", "65536")
    assert "it was trained for 32,768" in cluster.refused("model", "define", "seen", *by_hand)
    unseen = cluster.run("apply", "-f", "-", "--dry-run", stdin=declared(f"file:{tmp_path}/none.gguf", 8192))
    assert unseen.returncode == 0
    assert unseen.stderr.startswith("not checked: whether seen fits, because its headers could not be read (")
    assert "is not on this machine" in unseen.stderr
