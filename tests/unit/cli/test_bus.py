from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from cli.main import llmgw
from libs.bus.identities import GRANTS, users_in


def identities(directory: Path, *options: str) -> Result:
    return CliRunner().invoke(llmgw, ["bus", "identities", str(directory), *options])


def nodes(directory: Path) -> list[str]:
    known = users_in((directory / "nats" / "users.conf").read_text())
    assert set(GRANTS) <= set(known)
    return sorted(set(known) - set(GRANTS))


def test_nodes_that_are_there_stay_and_leave_only_when_they_are_named(tmp_path: Path) -> None:
    assert identities(tmp_path, "--node", "gpu-01").exit_code == 0
    before = users_in((tmp_path / "nats" / "users.conf").read_text())
    assert identities(tmp_path, "--node", "gpu-02").exit_code == 0
    assert identities(tmp_path).exit_code == 0
    after = users_in((tmp_path / "nats" / "users.conf").read_text())
    assert nodes(tmp_path) == ["node-gpu-01", "node-gpu-02"]
    assert before.items() <= after.items()

    removed = identities(tmp_path, "--node", "gpu-03", "--remove-node", "gpu-01", "--yes")
    assert removed.exit_code == 0
    assert "gpu-01: locked out once nats-server has read" in removed.output
    assert "SIGHUP" in removed.output
    assert nodes(tmp_path) == ["node-gpu-02", "node-gpu-03"]
    assert not (tmp_path / "node" / "node-gpu-01.nk").exists()


def test_a_node_whose_seed_was_moved_to_its_machine_stays(tmp_path: Path) -> None:
    identities(tmp_path, "--node", "rack1/gpu.01")
    before = users_in((tmp_path / "nats" / "users.conf").read_text())
    seed = next((tmp_path / "node").glob("node-*.nk"))
    seed.unlink()

    identities(tmp_path, "--node", "gpu-02")

    assert before.items() <= users_in((tmp_path / "nats" / "users.conf").read_text()).items()
    assert not seed.exists()
    assert identities(tmp_path, "--remove-node", "rack1/gpu.01", "--yes").exit_code == 0
    assert nodes(tmp_path) == ["node-gpu-02"]


def test_a_node_that_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    identities(tmp_path, "--node", "gpu-01")

    unknown = identities(tmp_path, "--remove-node", "gpu-10", "--yes")
    both = identities(tmp_path, "--node", "gpu-01", "--remove-node", "gpu-01", "--yes")

    assert "no node is called gpu-10" in unknown.output
    assert "there are: gpu-01" in unknown.output
    assert "both name gpu-01" in both.output
    assert nodes(tmp_path) == ["node-gpu-01"]


def test_a_fleet_secret_that_is_none_is_told_and_left_alone(tmp_path: Path) -> None:
    secret = tmp_path / "fleet" / "fleet.secret"
    secret.parent.mkdir()
    secret.write_text("hunter2")

    told = identities(tmp_path)

    assert isinstance(told.exception, SystemExit)
    assert "is not 32 bytes in hex" in told.output
    assert secret.read_text() == "hunter2"
