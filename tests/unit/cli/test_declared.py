"""Files of ``apply``: what they declare, and what is wrong with them, by file and line."""

from __future__ import annotations

import json

import pytest
import yaml

from cli.declared import BadFile, Item, kinds_held, read
from cli.demo import demo_items
from libs.engines import ENGINES
from libs.events.model import ModelSpec
from libs.events.tenancy import Allowance, ProjectSpec

MODEL = """\
models:
  - name: tiny
    profiles:
      - name: cpu
        engine: sim
        memory_mb: 100
"""


def faults(*texts: str) -> list[str]:
    with pytest.raises(BadFile) as caught:
        read((f"f{number}.yaml", text) for number, text in enumerate(texts))
    return [line.strip() for line in caught.value.message.splitlines()[1:]]


def by_kind(items: list[Item]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in items:
        found.setdefault(item.kind, []).append(item.name)
    return found


def test_a_tree_of_tenancy_becomes_single_things_in_the_order_they_can_be_applied() -> None:
    text = (
        "prices:\n  - {model: tiny, prompt_micros: 5}\n"
        "orgs:\n  - name: acme\n    teams:\n      - name: web\n        projects:\n"
        "          - {name: shop, allowance: {rpm: 7}}\n"
        "policies:\n  - {name: watch}\n"
    )

    items = read([("f.yaml", text), ("g.yaml", MODEL)])

    assert [(item.kind, item.name) for item in items] == [
        ("policy", "watch"),
        ("org", "acme"),
        ("team", "acme/web"),
        ("project", "acme/web/shop"),
        ("model", "tiny"),
        ("price", "tiny"),
    ]
    assert items[3].spec == ProjectSpec(org="acme", team="web", name="shop", allowance=Allowance(rpm=7))
    assert items[3].place.at("allowance.rpm") == "f.yaml:8"


def test_an_unknown_key_is_told_with_file_line_and_the_nearest_known_key() -> None:
    text = MODEL.replace("memory_mb", "memmory_mb") + "    scalling: {min: 1}\n"

    assert faults(text) == [
        "f0.yaml:6: unknown key 'models[0].profiles[0].memmory_mb': did you mean 'memory_mb'?",
        "f0.yaml:7: unknown key 'models[0].scalling': did you mean 'scaling'?",
    ]


def test_a_key_unlike_any_other_is_told_with_those_that_are_known() -> None:
    assert faults("zzz: 1\n") == [
        "f0.yaml:1: unknown key 'zzz': known here are library, models, orgs, policies, prices"
    ]


def test_a_value_of_the_wrong_kind_is_told_with_its_line() -> None:
    (fault,) = faults(MODEL.replace("100", "lots"))

    said = "'lots': a whole number is expected, in megabytes and without a unit"
    assert fault == f"f0.yaml:6: models[0].profiles[0].memory_mb: {said}"


def test_a_missing_field_is_told_with_the_line_of_what_lacks_it() -> None:
    (fault,) = faults("models:\n  - name: tiny\n    profiles:\n      - name: cpu\n")

    assert fault == "f0.yaml:4: models[0].profiles[0].engine: it is missing"


def test_all_faults_of_a_thing_are_told_at_once() -> None:
    text = """\
models:
  - name: tiny
    context_length: 8k
    priority_class: urgent
    scaling: {min: two, on_demand: yes, evict_after_idle_s: 10m}
    profiles:
      - name: cpu
        engine: sim
        memory_mb: 0100
        env: {RANK: 089, SINCE: 2024-01-01, no: "x"}
        node_selector: {zone: no}
      - name: gpu
        engine: smi
        cores: 1.5
    scalling: {}
orgs: acme
"""

    assert faults(text) == [
        "f0.yaml:3: models[0].context_length: '8k': a whole number is expected",
        "f0.yaml:4: models[0].priority_class: 'urgent' is none of low, normal, high",
        "f0.yaml:5: models[0].scaling.evict_after_idle_s: '10m': a whole number is expected, in seconds and "
        "without a unit",
        "f0.yaml:5: models[0].scaling.min: 'two': a whole number is expected",
        "f0.yaml:9: models[0].profiles[0].memory_mb: 0100 is 64 to YAML 1.1 and 100 to YAML 1.2: "
        "write the number in full, or put it in quotes where text is meant",
        "f0.yaml:10: models[0].profiles[0].env.SINCE: 2024-01-01 is a date to YAML 1.1 and text to YAML 1.2: "
        "put it in quotes where text is meant",
        "f0.yaml:10: models[0].profiles[0].env.no: no is false to YAML 1.1 and text to YAML 1.2: "
        "write true or false, or put it in quotes where text is meant",
        "f0.yaml:11: models[0].profiles[0].node_selector.zone: no is false to YAML 1.1 and text to YAML 1.2: "
        "write true or false, or put it in quotes where text is meant",
        f"f0.yaml:13: models[0].profiles[1].engine: 'smi' is none of {', '.join(ENGINES)}",
        "f0.yaml:14: models[0].profiles[1].cores: 1.5: a whole number is expected",
        "f0.yaml:15: unknown key 'models[0].scalling': did you mean 'scaling'?",
        "f0.yaml:16: orgs: 'acme': a list is expected",
    ]


def test_what_is_written_for_others_to_read_is_read_again() -> None:
    """Text that looks like a number to one version of YAML stays text through our own files."""
    values = ["0100", "1e3", "089", "0o17", "yes", "2024-01-01", "1_000", "1:30", "=", "null"]
    spec = {
        "name": "a",
        "profiles": [{"name": "cpu", "engine": "sim", "env": {f"N{n}": v for n, v in enumerate(values)}}],
    }
    (item,) = read([("f.yaml", yaml.safe_dump({"models": [spec]}))])
    assert isinstance(item.spec, ModelSpec)
    assert list(item.spec.profiles[0].env.values()) == values


def test_every_file_is_read_before_anything_is_said() -> None:
    assert [fault.partition(":")[0] for fault in faults("modells: []\n", MODEL, "orgs:\n  - {nam: x}\n")] == [
        "f0.yaml",
        "f2.yaml",
    ]


def test_the_same_thing_declared_twice_is_told_with_both_places() -> None:
    assert faults(MODEL, "\n" + MODEL) == [
        "f1.yaml:3: model 'tiny' is declared a second time, first at f0.yaml:2: keep one"
    ]


def test_a_key_that_stands_twice_is_told() -> None:
    assert faults(MODEL + "    name: other\n") == ["f0.yaml:7: the key 'models[0].name' stands twice: keep one"]


@pytest.mark.parametrize("text", ["models: [", "a: b: c", "\tmodels:"])
def test_text_that_is_not_yaml_is_told_with_its_line(text: str) -> None:
    (fault,) = faults(text)

    assert fault.startswith("f0.yaml:1: not YAML: ")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n---\n", "models: []\n", "models:\n"])
def test_files_may_declare_nothing(text: str) -> None:
    assert read([("f.yaml", text)]) == []


def test_a_list_is_not_a_file() -> None:
    (fault,) = faults("- models\n")

    assert "f0.yaml:1" in fault
    assert "models" in fault


def test_anchors_and_merges_are_understood() -> None:
    text = (
        "models:\n"
        "  - &one\n    name: a\n    profiles: [{name: cpu, engine: sim}]\n"
        "  - <<: *one\n    name: b\n"
    )  # fmt: skip

    assert by_kind(read([("f.yaml", text)])) == {"model": ["a", "b"]}


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orgs: &o\n- *o\n", "holds itself"),
        ("orgs: " + "[" * 5_000 + "]" * 5_000, "nested too deeply"),
        (LAUGHS, "aliases make so many"),
        ('{"orgs":[{"name":"\\ud83d"}]}', "f0.yaml:1: orgs[0].name: half of a character"),
    ],
    ids=["cycle", "depth", "laughs", "half"],
)
def test_what_no_person_writes_is_told_too(text: str, said: str) -> None:
    assert any(said in fault for fault in faults(text))


def test_characters_as_json_writes_them_are_whole() -> None:
    text = json.dumps({"models": [{"name": "a", "description": "🙂", "profiles": [{"name": "cpu", "engine": "sim"}]}]})
    assert "ud83d" in text
    (item,) = read([("f.yaml", text)])
    assert isinstance(item.spec, ModelSpec)
    assert item.spec.description == "🙂"


def test_the_demo_is_well_formed() -> None:
    assert by_kind(demo_items()) == {
        "library": ["gemma3-270m"],
        "policy": ["watch-secrets"],
        "org": ["demo"],
        "team": ["demo/demo"],
        "project": ["demo/demo/demo"],
        "model": ["gemma3-270m"],
        "price": ["gemma3-270m"],
    }


@pytest.mark.parametrize(
    ("text", "kinds"), [("", set()), ("# later\n", set()), ("models:\n", set()), ("models: []\n", {"model"})]
)
def test_what_a_file_without_anything_declares(text: str, kinds: set[str]) -> None:
    assert read([("f.yaml", text)]) == []
    assert kinds_held([("f.yaml", text)]) == kinds


def test_what_stands_where_a_list_is_expected_is_not_shown_as_python_writes_it() -> None:
    with pytest.raises(BadFile, match=r"f\.yaml:1: orgs: a mapping stands there: a list is expected"):
        read([("f.yaml", "orgs:\n  name: x\n")])
