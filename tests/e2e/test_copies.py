"""A copy of a state directory is another cluster: nothing done in it reaches the one it was copied from."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable

from .cluster import FLEET, Cluster


def copy_of(original: Cluster, new_cluster: Callable[[], Cluster]) -> Cluster:
    """Its directory as a backup tool copies it while everything runs."""
    copy = new_cluster()
    # Files that vanish meanwhile (JetStream's, PostgreSQL's) are no fault of the copy.
    subprocess.run(["cp", "-a", original.state_dir, copy.state_dir], check=False, stderr=subprocess.DEVNULL)
    return copy


def answers(cluster: Cluster) -> bool:
    body = {"model": "sim-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{cluster.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {cluster.client_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return len(json.load(response)["choices"]) == 1


def test_what_is_done_in_a_copied_state_directory_leaves_the_original_alone(
    cluster: Cluster, new_cluster: Callable[[], Cluster]
) -> None:
    pids, engines, restarts = cluster.pids(), cluster.engine_pids(), cluster.restarts()
    copy = copy_of(cluster, new_cluster)

    assert f"{copy.state_dir} is a copy of {cluster.state_dir}" in copy.refused("status")
    assert copy.text("down") == (
        f"no cluster runs in {copy.state_dir}, which is a copy of {cluster.state_dir}: that one is left alone\n"
    )
    assert cluster.pids() == pids

    copy.up("--port", "0", "--no-model", "--fleet", str(FLEET))
    copy.until_served()
    assert answers(copy)
    assert set(copy.pids().values()).isdisjoint(pids.values())
    assert copy.engine_pids().isdisjoint(engines)
    copy.text("down")

    assert (cluster.pids(), cluster.engine_pids(), cluster.restarts()) == (pids, engines, restarts)
    assert answers(cluster)


def test_keys_are_in_private_files_only(cluster: Cluster) -> None:
    secret = {
        "the client key": cluster.client_key,
        "the admin key": cluster.admin_key,
        "the password of the database": (cluster.state_dir / "secrets" / "postgres.password").read_text(),
        "the fleet secret": (cluster.state_dir / "secrets" / "fleet.secret").read_text(),
    }
    allowed = {"endpoint.json", "secrets"}
    found = []
    for file in (one for one in cluster.state_dir.rglob("*") if one.is_file() and not one.is_symlink()):
        relative = file.relative_to(cluster.state_dir)
        content = file.read_bytes()
        for name, value in secret.items():
            if value.strip().encode() in content:
                found.append(f"{name} in {relative}")
                assert relative.parts[0] in allowed, found[-1]
                assert file.stat().st_mode & 0o077 == 0, found[-1]

    assert {"the client key in endpoint.json", "the client key in secrets/keys.json"} <= set(found)
    assert "<client_key of " in cluster.log("up")
