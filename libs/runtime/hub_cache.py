"""A folder of the Hugging Face cache: ``models--ORG--NAME/snapshots/COMMIT`` holds links into ``…/blobs``."""

from __future__ import annotations

from pathlib import Path


def reach(folder: Path) -> Path:
    """Where links in a model's folder may lead: into the folder itself; from a snapshot of the cache, or from a folder
    in one, into the cache's folder of that repository. ``folder`` is resolved."""
    for candidate in (folder, *folder.parents):
        repository = candidate.parent.parent
        if candidate.parent.name == "snapshots" and (repository / "blobs").is_dir():
            return repository
    return folder
