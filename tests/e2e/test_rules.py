"""Rules on what may go in, set by the command line and felt by an SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from libs.testing import eventually

from .cluster import Cluster
from .engines import generated

AWS_KEY = "AKIA" + "IOSFODNN7EXAMPLQ"  # the shape of a key, and no key
EMAIL = "ada.lovelace@example.org"
RULES = """
policies:
  - name: strict
    mode: enforce
    input:
      secrets: {action: block}
      pii: {email: redact}
orgs:
  - name: ruled
    teams:
      - name: strict
        allowance: {policies: [strict]}
        projects: [{name: p}]
      - name: watched
        projects: [{name: p}]
"""


@pytest.fixture(scope="module")
def ruled(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    file: Path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(RULES)
    cluster.text("apply", "-f", str(file), "--yes")
    yield cluster
    for project in ("ruled/strict/p", "ruled/watched/p"):
        for key in cluster.json("key", "list"):
            if key["project"] == project:
                cluster.text("key", "revoke", key["key_id"], "--yes")
        cluster.text("project", "remove", project, "--yes")
    for level, name in (("team", "ruled/strict"), ("team", "ruled/watched"), ("org", "ruled"), ("policy", "strict")):
        cluster.text(level, "remove", name, "--yes")


def client(cluster: Cluster, project: str) -> openai.OpenAI:
    key = cluster.json("key", "create", project)["key"]
    return openai.OpenAI(base_url=cluster.base_url, api_key=key, max_retries=0)


async def test_an_enforced_policy_refuses_a_secret_and_redacts_an_address_on_the_way(ruled: Cluster) -> None:
    with client(ruled, "ruled/strict/p") as strict:
        await eventually(lambda: strict.models.list().data, what="the key is known")
        with pytest.raises(openai.BadRequestError) as refused:
            strict.chat.completions.create(
                model="sim-chat", messages=[{"role": "user", "content": f"deploy with {AWS_KEY} please"}]
            )
        assert refused.value.code == "content_policy"
        assert "aws_access_key" in str(refused.value)
        assert AWS_KEY not in json.dumps(refused.value.body)

        answer = strict.chat.completions.with_raw_response.create(
            model="sim-chat", messages=[{"role": "user", "content": f"write to {EMAIL} and {EMAIL}"}], max_tokens=4
        )
        request_id = answer.headers["x-request-id"]
    seen = next(request for request in await generated(ruled) if request.id == request_id)
    assert EMAIL not in seen.prompt
    assert "write to [EMAIL_1] and [EMAIL_1]" in seen.prompt


async def test_an_observed_policy_records_and_lets_pass(ruled: Cluster) -> None:
    with client(ruled, "ruled/watched/p") as watched:
        await eventually(lambda: watched.models.list().data, what="the key is known")
        answer = watched.chat.completions.with_raw_response.create(
            model="sim-chat", messages=[{"role": "user", "content": f"note {AWS_KEY}"}], max_tokens=4
        )
        request_id = answer.headers["x-request-id"]
    seen = next(request for request in await generated(ruled) if request.id == request_id)
    assert AWS_KEY in seen.prompt

    def recorded() -> bool:
        told = ruled.text("event", "list", "--all", "--json").splitlines()
        batches = [json.loads(line) for line in told if '"use.guard.batch.v1"' in line]
        for batch in reversed(batches):
            shown = ruled.text("event", "show", str(batch["sequence"]), "--stream", "USAGE")
            assert AWS_KEY not in shown
            if request_id in shown:
                return "secrets.aws_access_key" in shown
        return False

    await eventually(recorded, 15, every_s=0.5, what="the finding is a fact")
