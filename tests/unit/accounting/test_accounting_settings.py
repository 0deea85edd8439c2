from __future__ import annotations

from pathlib import Path

import pytest

from libs.runtime import settings
from services.accounting.settings import AccountingSettings


def test_the_database_stands_in_a_setting_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "postgres.dsn"
    file.write_text("postgresql://llmgw:secret@db/llmgw\n")
    environ = {"LLMGW_ACCOUNTING_POSTGRES_DSN_FILE": str(file)}
    loaded = settings.load(AccountingSettings, "accounting", environ=environ)
    assert loaded.value.dsn() == "postgresql://llmgw:secret@db/llmgw"
    assert "secret" not in str(loaded.describe())
    loaded = settings.load(
        AccountingSettings, "accounting", environ={"LLMGW_ACCOUNTING_POSTGRES_DSN": "postgresql://h/d"}
    )
    assert loaded.value.dsn() == "postgresql://h/d"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    wrong = AccountingSettings(data_dir=tmp_path, postgres_dsn_file=tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"nothing cannot be read: No such file"):
        wrong.dsn()
