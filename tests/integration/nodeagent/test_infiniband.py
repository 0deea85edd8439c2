"""The real subnet tools against a simulated fabric (ibsim): each part of it answers as on real adapters."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.testing.waiting import eventually
from services.nodeagent.adapters.host.fabric import ROOT, Ports, scan
from services.nodeagent.adapters.host.host_access import Ran, ThisMachine

TOOLS = ("ibsim", "ibsim-run", "opensm", "sminfo", "saquery", "ibnetdiscover")
_absent = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None]
pytestmark = pytest.mark.skipif(
    bool(_absent), reason=f"{', '.join(_absent)} not installed (Debian: ibsim-utils infiniband-diags opensm)"
)

NET = """Switch 8 "leaf1"
[1] "{name}1 mlx5_0"[1]
[2] "{name}2 mlx5_0"[1]
[5] "spine1"[1]

Switch 8 "leaf2"
[1] "{name}1 mlx5_1"[1]
[2] "{name}2 mlx5_1"[1]
[5] "spine1"[2]

Switch 8 "spine1"
[1] "leaf1"[5]
[2] "leaf2"[5]

Hca 1 "{name}1 mlx5_0"
[1] "leaf1"[1]

Hca 1 "{name}2 mlx5_0"
[1] "leaf1"[2]

Hca 1 "{name}1 mlx5_1"
[1] "leaf2"[1]

Hca 1 "{name}2 mlx5_1"
[1] "leaf2"[2]
"""


class Simulated(ThisMachine):
    """A machine one of whose adapters is on a simulated fabric: what the simulator intercepts goes through it."""

    def __init__(self, env: dict[str, str], host: str) -> None:
        super().__init__()
        self._env = env | {"SIM_HOST": host}

    def _in(self, *command: str, timeout_s: float = 10.0) -> Ran:
        ended = subprocess.run(
            ["ibsim-run", *command], env=self._env, capture_output=True, timeout=timeout_s, check=False
        )
        return Ran(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def names(self, path: str) -> list[str]:
        return {ROOT: ["ibsim0"], f"{ROOT}/ibsim0/ports": ["1"]}.get(path, [])

    def text(self, path: str) -> str | None:
        # The library in the child looks its own node up for every file, so only these are asked for.
        if not path.startswith(ROOT):
            return None
        ran = self._in("cat", path)
        return ran.out.strip() if ran.code == 0 else None

    def run(self, *command: str, timeout_s: float = 10.0) -> Ran:
        return self._in(*command, timeout_s=timeout_s)


class Fabric:
    """One ibsim with a subnet manager on it."""

    def __init__(self, folder: Path, name: str, guid_offset: int) -> None:
        folder.mkdir()
        self.name = name
        self._folder = folder
        self.env = {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "IBSIM_SOCKNAME": f"llmgw-{os.getpid()}-{name}",
            "HOME": str(folder),
            "OSM_CACHE_DIR": str(folder),
            "OSM_TMP_DIR": str(folder),
        }
        # GUIDs are counted by each simulator from the same number: the second fabric's begin elsewhere.
        net = NET.format(name=name)
        if guid_offset:
            net = net.replace('Hca 1 "', f'caguid=0x{guid_offset:x}\nHca 1 "', 1)
        (folder / "net").write_text(net)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._start("ibsim", "-s", "-n", str(self._folder / "net"))

    def manage(self, host: str) -> None:
        """Run a subnet manager there."""
        self._start("ibsim-run", "opensm", "-f", str(self._folder / "opensm.log"), env={"SIM_HOST": host})

    def _start(self, *command: str, env: dict[str, str] | None = None) -> None:
        with (self._folder / "output").open("ab") as output:
            process = subprocess.Popen(
                command, env=self.env | (env or {}), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output,
            )  # fmt: skip
        self._processes.append(process)

    def machine(self, number: int, nic: str = "mlx5_0") -> Simulated:
        return Simulated(self.env, f"{self.name}{number} {nic}")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


@pytest.fixture
def fabrics(tmp_path: Path) -> Iterator[tuple[Fabric, Fabric]]:
    both = Fabric(tmp_path / "a", "gpu-a", 0), Fabric(tmp_path / "b", "gpu-b", 0x900000)
    for one in both:
        one.start()
    yield both
    for one in both:
        one.stop()


async def test_two_fabrics_their_managers_and_a_map(fabrics: tuple[Fabric, Fabric]) -> None:
    first, second = fabrics
    machine, other, elsewhere = first.machine(1), first.machine(2), second.machine(1)
    await eventually(lambda: machine.text(f"{ROOT}/ibsim0/ports/1/state") is not None)
    port = Ports(machine, {}).look()[0][0]
    assert port.network is None
    assert port.network_unknown

    first.manage("gpu-a1 mlx5_0")
    second.manage("gpu-b1 mlx5_0")
    for one in (other, elsewhere):
        await eventually(lambda here=one: Ports(here, {}).look()[0][0].network is not None, 20)
    ports = [Ports(here, {}).look()[0][0] for here in (machine, other, elsewhere)]
    assert [port.state for port in ports] == ["active"] * 3
    assert ports[0].network == ports[1].network != ports[2].network, "told apart by what is measured"
    assert ports[1].rate_gbps == 10.0
    assert ports[1].managers == (ports[1].master_manager,)
    assert ports[1].lid

    found = scan(other, "ibsim0", 1)
    assert [(s.name, s.tier) for s in found.switches] == [("leaf1", "leaf"), ("leaf2", "leaf"), ("spine1", "spine")]
    assert found.rails == {"mlx5_0": ("leaf1",), "mlx5_1": ("leaf2",)}
    assert {a.machine for a in found.nics} == {"gpu-a1", "gpu-a2"}
    assert found.cables == 6
    assert found.slow_cables == ()
    here = next(a for a in found.nics if (a.machine, a.nic) == ("gpu-a2", "mlx5_0"))
    assert here.guid == ports[1].node_guid, "a port finds itself on the map"
