"""Settings of accounting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from libs.runtime.settings import CommonSettings


class AccountingSettings(CommonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    postgres_dsn: Annotated[
        str, Meta(description="The ledger's database: postgresql://user:password@host:port/name.")
    ] = "postgresql://llmgw@127.0.0.1:5432/llmgw"
    postgres_dsn_file: Annotated[
        Path | None,
        Meta(description="File that holds the database instead of postgres_dsn, so that no setting holds a password."),
    ] = None

    keep_requests_months: Annotated[
        int,
        Meta(
            ge=0,
            description="Whole months, beside the present one, of which the ledger keeps every request; of older ones "
            "it keeps sums by hour, key, project and model, and nothing of what guards found. 0: all, for ever.",
        ),
    ] = 0

    def dsn(self) -> str:
        """The database, from wherever it stands. Raises ValueError when its file cannot be read."""
        if self.postgres_dsn_file is None:
            return self.postgres_dsn
        try:
            return self.postgres_dsn_file.read_text().strip()
        except OSError as error:
            raise ValueError(f"postgres_dsn_file {self.postgres_dsn_file} cannot be read: {error.strerror}") from None
