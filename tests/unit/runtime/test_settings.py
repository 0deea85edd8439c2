from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from libs.runtime.settings import CommonSettings, SettingsError, load


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    slots: int = 4


class BakerySettings(CommonSettings, frozen=True, kw_only=True):
    ovens: Annotated[int, msgspec.Meta(ge=1, description="How many ovens there are.")] = 2
    bread: Annotated[Literal["rye", "wheat"], msgspec.Meta(description="What is baked.")] = "rye"
    shelves: Annotated[tuple[str, ...], msgspec.Meta(description="Where it goes.")] = ()
    engines: dict[str, Engine] = {}
    database: str = "postgresql://u:secret@h/d"
    limit: int | None = 5
    nightly: bool = False

    def __post_init__(self) -> None:
        if self.bread == "wheat" and self.ovens > 8:
            raise ValueError("wheat needs at most 8 ovens; lower ovens or bake rye")


def problems(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    file = tmp_path / "bakery.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(BakerySettings, "bakery", file, environ or {})
    return [problem.replace(str(file), "FILE") for problem in caught.value.problems]


def test_default_file_and_variable_and_where_each_came_from(tmp_path: Path) -> None:
    file = tmp_path / "bakery.yaml"
    file.write_text("# bread\novens: 3\nshelves: [top, low]\nstatus_port: 9001\ndata_dir: ~/bread\n")
    environ = {"LLMGW_BAKERY_OVENS": "5", "LLMGW_OTHER_OVENS": "x", "LLMGW_BAKERY_NIGHTLY": "true"}
    loaded = load(BakerySettings, "bakery", file, environ)
    assert loaded.value.ovens == 5
    assert loaded.value.nightly is True
    assert loaded.value.shelves == ("top", "low")
    assert loaded.value.data_dir == Path("~/bread").expanduser()
    assert loaded.value.instance.startswith("bakery-")
    assert loaded.provenance["ovens"] == "LLMGW_BAKERY_OVENS"
    assert loaded.provenance["shelves"] == f"{file}:3"
    assert loaded.provenance["bread"] == "default"


def test_variables_take_lists_mappings_and_nothing() -> None:
    environ = {
        "LLMGW_BAKERY_SHELVES": "[a, b]",
        "LLMGW_BAKERY_ENGINES": '{"x": {"path": "/bin/x"}}',
        "LLMGW_BAKERY_LIMIT": "",
        "LLMGW_BAKERY_CREDENTIALS": "/tmp/seed",
    }
    value = load(BakerySettings, "bakery", None, environ).value
    assert value.shelves == ("a", "b")
    assert value.engines == {"x": Engine(path="/bin/x")}
    assert value.limit is None
    assert value.credentials == Path("/tmp/seed")


def test_unknown_names_are_told_with_file_line_and_the_nearest_known(tmp_path: Path) -> None:
    found = problems(tmp_path, "ovens: 2\novns: 3\n", {"LLMGW_BAKERY_STATUS_PRT": "1"})
    assert found == [
        "FILE:2: unknown setting 'ovns'; did you mean 'ovens'?",
        "LLMGW_BAKERY_STATUS_PRT: unknown setting 'status_prt'; did you mean 'status_port'?",
    ]


def test_wrong_values_name_field_value_and_what_would_be_right(tmp_path: Path) -> None:
    found = problems(tmp_path, "ovens: 0\nbread: cake\nstatus_port: many\n", {"LLMGW_BAKERY_NIGHTLY": "perhaps"})
    assert found[0] == "FILE:1: ovens is '0': a whole number >= 1 is expected"
    assert "FILE:2: bread is 'cake'" in found[1]
    assert "expected rye | wheat" in found[1]
    assert found[2] == "FILE:3: status_port is 'many': a whole number is expected"
    assert found[3].startswith("LLMGW_BAKERY_NIGHTLY: nightly is 'perhaps': true or false is expected")


def test_what_two_versions_of_yaml_read_differently_is_refused_with_its_line(tmp_path: Path) -> None:
    found = problems(tmp_path, "nightly: yes\novens: 010\nshelves:\n  - a\n  - on\nstop_timeout_s: 10m\n", {})
    assert found == [
        "FILE:2: ovens: 010 is 8 to YAML 1.1 and 10 to YAML 1.2: write the number in full, or put it in quotes where "
        "text is meant",
        "FILE:5: shelves: on is true to YAML 1.1 and text to YAML 1.2: write true or false, or put it in quotes where "
        "text is meant",
        "FILE:6: stop_timeout_s is '10m': a number is expected, in seconds and without a unit",
    ]


def test_nested_unknown_field(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "engines: {x: {path: /x, slotz: 3}}\n")
    assert found.startswith("FILE:1: engines")
    assert "did you mean 'slots'?" in found


def test_what_does_not_go_together(tmp_path: Path) -> None:
    assert problems(tmp_path, "bread: wheat\novens: 9\n") == ["wheat needs at most 8 ovens; lower ovens or bake rye"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ovens: [", "FILE:2: not YAML: expected the node content, but found '<stream end>'"),
        ("- a\n", "FILE:1: expected `name: value` lines"),
        ("ovens: 1\novens: 2\n", "FILE:2: ovens was already set in line 1; keep one"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, text + "\n" if text.endswith("[") else text) == [expected]


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read: No such file"):
        load(BakerySettings, "bakery", tmp_path / "none.yaml", {})


def test_description_has_every_setting_and_no_password() -> None:
    described = {
        each.name: each for each in load(BakerySettings, "bakery", None, {"LLMGW_BAKERY_OVENS": "4"}).describe()
    }
    assert set(described) == set(BakerySettings.__struct_fields__)
    ovens = described["ovens"]
    assert (ovens.default, ovens.value, ovens.source) == ("2", "4", "LLMGW_BAKERY_OVENS")
    assert ovens.meaning == "How many ovens there are."
    assert ovens.variable == "LLMGW_BAKERY_OVENS"
    assert ovens.type == "whole number, from 1"
    assert described["status_port"].type == "whole number, from 0 to 65535"
    assert described["bread"].type == "rye | wheat"
    assert described["credentials"].type == "path | none"
    assert described["database"].value == "postgresql://u:***@h/d"
    assert described["data_dir"].default.endswith("llmgw/data/bakery")


def test_common_settings_are_all_described() -> None:
    assert all(each.meaning for each in load(CommonSettings, "any", None, {}).describe())
