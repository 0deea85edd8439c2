"""``llmgw model fit`` as text: models against fleets, reviewed and kept in tests/golden/plans.

``python -m tests.unit.fit.test_plans`` writes them anew, to be read before they are committed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import code_of, llmgw
from tests.data.models import gguf_headers
from tests.unit.fit.models import FLEETS, MODELS, ROOT

GOLDEN = ROOT / "tests" / "golden" / "plans"

CASES = [
    ("llama-3-8b", "single-gpu", ()),
    ("llama-3-8b", "a100-mig", ()),
    ("llama-3-70b", "h100x8", ("--precision", "fp8,int4")),
    ("llama-3-70b", "l40s-pcie", ("--precision", "fp8,int4")),
    ("llama-3-70b", "mixed", ()),
    ("mixtral-8x7b", "h100x8", ()),
    ("mixtral-8x7b", "single-gpu", ()),
    ("gemma-3-27b", "a100-mig", ("--context-length", "32768")),
    ("gemma-3-27b", "mixed", ("--context-length", "32768")),
    ("gpt-oss-20b", "mixed", ("--context-length", "131072", "--parallel", "1")),
    ("qwen3-235b-a22b", "h100x8", ()),
    ("qwen3-235b-a22b", "two-fabrics", ("--context-length", "32768", "--parallel", "64")),
    ("deepseek-v3", "two-fabrics", ()),
    ("deepseek-v3", "two-fabrics", ("--context-length", "131072", "--parallel", "32")),
    ("deepseek-v3", "gb200-nvl72", ("--context-length", "131072", "--parallel", "16")),
    ("bge-m3", "single-gpu", ()),
    ("llama-3-8b", "a100-mig", ("--precision", "fp8")),
    ("qwen2.5-0.5b-q4_k_m.gguf", "single-gpu", ()),
    ("gemma-3-270m-q4_k_m.gguf", "mixed", ()),
]


def name_of(case: tuple[str, str, tuple[str, ...]]) -> str:
    model, fleet, options = case
    return "--".join([model.removesuffix(".gguf"), fleet, *(one.removeprefix("--") for one in options)])


def command(case: tuple[str, str, tuple[str, ...]], ggufs: Path) -> list[str]:
    model, fleet, options = case
    source = ggufs / model if model.endswith(".gguf") else MODELS / model
    return ["model", "fit", str(source), "--fleet", str(FLEETS / f"{fleet}.yaml"), *options]


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ggufs")
    gguf_headers.write(folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_plans_read_as_reviewed(case: tuple[str, str, tuple[str, ...]], ggufs: Path) -> None:
    result = CliRunner().invoke(llmgw, command(case, ggufs), catch_exceptions=False)

    assert result.exit_code == 0
    assert result.output == (GOLDEN / f"{name_of(case)}.txt").read_text()


def test_every_reviewed_plan_is_tested() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {name_of(case) for case in CASES}


def test_programs_get_every_figure(ggufs: Path) -> None:
    result = CliRunner().invoke(llmgw, [*command(CASES[2], ggufs), "--json"], catch_exceptions=False)

    made = json.loads(result.output)
    assert [model["precision"] for model in made["models"]] == ["bf16", "fp8", "int4"]
    best = [layout for layout in made["ways"] if layout["best"]]
    assert [(layout["precision"], layout["devices"], layout["fits"], layout["now"]) for layout in best] == [
        ("int4", 1, True, True)
    ]
    assert best[0]["needed_bytes"] == sum(best[0]["need"].values())
    rejected = next(layout for layout in made["ways"] if not layout["fits"])
    assert {reason["check"] for reason in rejected["rejected"]} == {"memory"}


def test_several_files_are_told_apart_by_name(ggufs: Path) -> None:
    fleet = ["--fleet", str(FLEETS / "single-gpu.yaml")]

    result = CliRunner().invoke(llmgw, ["model", "fit", str(ggufs), *fleet], catch_exceptions=False)

    rows = [line.split("  ")[0] for line in result.output.splitlines() if " on 1 card" in line]
    assert rows == ["gemma-3-270m-q4_k_m", "qwen2.5-0.5b-q4_k_m"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["--context-length", "9000"],
            1,
            "9,000 tokens is longer than llama-3-8b was trained for: 8,192 at most",
        ),
        (["--precision", "fp3"], 1, "'fp3' is not a precision that can be planned"),
        (["--nodes-from-cluster"], 2, "give one of them"),
        (["--context-length", "0"], 2, "'0' is not a whole number from 1 up"),
    ],
)
def test_mistakes_are_said_in_a_sentence(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = ["--fleet", str(FLEETS / "single-gpu.yaml")]

    assert code_of(["model", "fit", str(MODELS / "llama-3-8b"), *fleet, *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_gguf_is_in_the_precision_it_is_in(ggufs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of([*command(CASES[-1], ggufs), "--precision", "int4"]) == 1
    assert "is a GGUF file, which is in the precision it is in" in capsys.readouterr().err


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        gguf_headers.write(Path(folder))
        for one in CASES:
            text = CliRunner().invoke(llmgw, command(one, Path(folder)), catch_exceptions=False).output
            (GOLDEN / f"{name_of(one)}.txt").write_text(text)
