"""Settings of accounting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from libs.runtime.settings import CommonSettings


class AccountingSettings(CommonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    postgres_dsn: Annotated[
        str | None, Meta(description="The ledger's database: postgresql://user:password@host:port/name.")
    ] = None
    postgres_dsn_file: Annotated[
        Path | None, Meta(description="File that holds the same, so that the password stands in no setting.")
    ] = None

    def __post_init__(self) -> None:
        if (self.postgres_dsn is None) == (self.postgres_dsn_file is None):
            found = "neither is set" if self.postgres_dsn is None else "both are set"
            raise ValueError(f"{found}: set one of postgres_dsn and postgres_dsn_file")

    def dsn(self) -> str:
        """The database, from wherever it stands. Raises ValueError when its file cannot be read."""
        if self.postgres_dsn is not None:
            return self.postgres_dsn
        assert self.postgres_dsn_file is not None
        try:
            return self.postgres_dsn_file.read_text().strip()
        except OSError as error:
            raise ValueError(f"postgres_dsn_file {self.postgres_dsn_file} cannot be read: {error.strerror}") from None
