from __future__ import annotations

from pathlib import Path

import pytest

from cli import fleet
from cli.failure import Failed
from services.nodeagent import fleet_file as agents


@pytest.mark.parametrize("name", ["../../x", "a/b", ".hidden", ""])
def test_an_id_that_could_not_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"machines:\n  - {{id: '{name}', cores: 4, memory_mb: 8000}}\n")
    with pytest.raises(Failed, match="needs another id"):
        fleet.load(file)
    with pytest.raises(Exception, match="id"):
        agents.read(file)
