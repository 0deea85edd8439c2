"""What the agent keeps on disk for each shard: ``shards/<shard id>/state.json`` and ``output.log``."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import msgspec

from libs.events.subjects import decode_token, encode_token
from libs.runtime.folder_identity import folder_id
from services.nodeagent.core.shard.record import ShardRecord

from . import durable

log = logging.getLogger(__name__)

_OUTPUTS_KEPT = 20
"""Output of ended shards that stays on disk."""


class ShardFiles:
    """The records survive the agent; every write is whole or not there."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._root = data_dir / "shards"
        self._root.mkdir(parents=True, exist_ok=True)
        self._id = folder_id(data_dir)

    def folder(self, shard_id: str) -> Path:
        """Where the files of a shard are."""
        return self._root / encode_token(shard_id)

    def output(self, shard_id: str) -> Path:
        """The file an engine prints to."""
        return self.folder(shard_id) / "output.log"

    def write(self, record: ShardRecord) -> None:
        """Keep a record in place of the one before. Raises OSError."""
        folder = self.folder(record.wanted.shard_id)
        if not folder.exists():
            folder.mkdir(mode=0o700)
            durable.sync_folder(self._root)
        stamped = msgspec.structs.replace(record, folder=self._id)
        durable.write(folder / "state.json", msgspec.json.encode(stamped))

    def read_all(self) -> dict[str, ShardRecord]:
        """Every record, by shard id. One that cannot be read is said and left alone; its processes are found by
        their mark. A record that came with a copy of another folder names no process: that one runs for the other."""
        records = {}
        for folder in sorted(self._root.iterdir()):
            try:
                record = msgspec.json.decode((folder / "state.json").read_bytes(), type=ShardRecord)
            except FileNotFoundError:
                # The agent died between making the folder and the first record: nothing was started.
                continue
            except (OSError, msgspec.DecodeError) as error:
                log.error("%s cannot be read: %s", folder / "state.json", error)
                continue
            if record.folder not in ("", self._id):
                log.warning("shard %s was copied from another data folder: it starts anew here", record.wanted.shard_id)
                record = msgspec.structs.replace(record, process=None)
            records[decode_token(folder.name)] = msgspec.structs.replace(record, folder="")
        return records

    def forget(self, shard_id: str) -> None:
        """Drop the record. What the engine printed stays for a while: people ask why it failed afterwards."""
        (self.folder(shard_id) / "state.json").unlink(missing_ok=True)
        old = [folder for folder in self._root.iterdir() if not (folder / "state.json").exists()]
        old.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in old[_OUTPUTS_KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)

    def shards_with_output(self) -> list[str]:
        """Ids of the shards whose engines printed something that is still here."""
        return sorted(decode_token(folder.name) for folder in self._root.iterdir())
