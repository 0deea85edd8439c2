"""From nothing to a real answer, told by the log, declared by files."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import openai

from .cluster import Cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.yaml"
STORY = (
    ("machine ", " registered"),
    ("node ", " joined"),
    ("weights gemma3-270m version ", " added"),
    ("model gemma3-270m defined",),
    ("replica ", " of gemma3-270m placed on "),
    (" starts llamacpp for gemma3-270m",),
    (" loads gemma3-270m: ", " of weights fetched and checked"),
    (" has gemma3-270m ready after ",),
    ("replica ", " of gemma3-270m serves at "),
    ("gemma3-270m streamed req-", " for demo/demo/demo"),
)


def client(cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=cluster.base_url, api_key=cluster.client_key, max_retries=0)


def stream(cluster: Cluster) -> str:
    """Stream a chat from the first model; the text."""
    with client(cluster) as sdk:
        model = sdk.models.list().data[0].id
        chunks = sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Once upon a time"}], max_tokens=16, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_real_model_streams_an_answer_and_the_log_tells_how_it_came_to_that(demo: Cluster) -> None:
    assert stream(demo)

    deadline = time.monotonic() + 15
    while "gemma3-270m streamed req-" not in (told := demo.text("event", "list", "--all")):
        assert time.monotonic() < deadline, told
    lines = iter(told.splitlines())
    for parts in STORY:
        assert any(all(part in line for part in parts) for line in lines), f"{parts} is not told after what it follows"


def test_the_endpoint_file_is_for_its_owner_only(demo: Cluster) -> None:
    assert set(demo.endpoint()) == {"base_url", "client_key", "admin_key", "nats_url", "postgres_dsn"}
    for file in (demo.state_dir / "endpoint.json", *(demo.state_dir / "identities").iterdir()):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_example_is_applied_once_and_then_there_is_nothing_to_do(demo: Cluster) -> None:
    plan = demo.text("apply", "-f", str(EXAMPLE), "--dry-run")
    assert "+ policy protect-people" in plan
    assert "0 to change, 0 to remove" in plan

    applied = demo.json("apply", "-f", str(EXAMPLE), "--yes")
    assert {step["status"] for step in applied["steps"]} == {"done"}

    assert demo.text("apply", "-f", str(EXAMPLE), "--yes") == "nothing to do: everything is as declared\n"
    exported = demo.text("export")
    assert demo.text("apply", "-f", "-", "--yes", stdin=exported) == "nothing to do: everything is as declared\n"
    assert demo.text("apply", "-f", "-", "--yes", "--prune", stdin=exported).startswith("nothing to do")


def test_the_whole_file_is_refused_for_one_key_nobody_knows(demo: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(EXAMPLE.read_text().replace("memory_mb: 1536", "memmory_mb: 1536"))
    line = 1 + file.read_text()[: file.read_text().index("memmory_mb")].count("\n")

    said = demo.refused("apply", "-f", str(file), "--yes")

    assert f"{file}:{line}: unknown key 'models[0].profiles[0].memmory_mb': did you mean 'memory_mb'?" in said


def test_owners_refuse_before_anything_is_applied(demo: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "models:\n  - name: bad\n    profiles:\n      - {name: cpu, engine: sim}\n"
        "orgs:\n  - name: fresh\n    allowance: {rpm: 0, policies: [nope]}\n"
    )

    said = demo.refused("apply", "-f", str(file), "--yes")

    assert f"{file}:7: org fresh: allowance.rpm: " in said
    assert f"{file}:4: model bad: profiles[0]" in said
    assert "org fresh: there is no policy 'nope'" in said
    assert "fresh" not in demo.text("org", "list")


def test_what_the_weights_headers_say_cannot_work_is_refused_with_the_arithmetic(demo: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "models:\n  - name: stretched\n    source: library:gemma3-270m\n    context_length: 65536\n    profiles:\n"
        "      - {name: cpu, engine: llamacpp, memory_mb: 200, cores: 1}\n"
    )

    said = demo.refused("apply", "-f", str(file), "--yes")

    assert f"{file}:4: model stretched: context_length: a context of 65,536 tokens; it was trained for 32,768" in said
    assert "200 MB, and gemma3-270m takes " in said
    assert "state at least " in said


def test_it_stops_and_starts_again_within_seconds(demo: Cluster) -> None:
    port = demo.base_url
    demo.text("down")
    assert demo.refused("status").startswith("llmgw: no cluster answers in ")

    began = time.monotonic()
    demo.up()

    assert time.monotonic() - began < 20
    assert demo.base_url == port
    assert stream(demo)
