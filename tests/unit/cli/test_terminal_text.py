"""Names, reasons and engines' output on a terminal: nothing in them is obeyed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.console import Console
from cli.failure import Failed
from cli.output import Json, Text
from libs.runtime.terminal_text import in_json, in_one_line, visible

EVIL = "\x1b]0;title\x07\x1b[2J\x9b5n\r\x08gone\u202eevil\x7f"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b5n\r\x08gone\u202eevil\x7f"


def raw(text: str) -> bool:
    return re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text) is not None


def test_control_characters_are_written_as_their_codes_and_colours_are_dropped() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("\x1b[1;31mred\x1b[0m\tand\nplain ü 🙂") == "red\tand\nplain ü 🙂"
    assert in_one_line("a\nb\tc") == r"a\nb\tc"


@given(st.text())
def test_nothing_goes_out_raw_and_json_stays_the_same_value(text: str) -> None:
    assert not raw(visible(text))
    encoded = in_json(json.dumps(text, ensure_ascii=False))
    assert not raw(encoded)
    assert json.loads(encoded) == text


def test_every_output_is_clean(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Text().rows([{"name": EVIL + "\nsecond"}], [("NAME", "name")], "")
    Text().result(None, [EVIL])
    Text().event(None, EVIL)
    Json().result({"name": EVIL}, ())
    Json().event({"name": EVIL}, "")
    Failed(EVIL).show()
    Console(tmp_path / "up.log").say("guard", EVIL)

    captured = capsys.readouterr()

    # The console colours the name of a part: click takes that out where nobody watches.
    assert not raw(captured.out.replace("\n", ""))
    assert not raw(captured.err.replace("\n", ""))
    assert captured.out.splitlines()[1] == SHOWN + r"\nsecond"


def test_commands_print_in_no_other_way() -> None:
    own = {"say.py", "output.py", "failure.py", "console.py", "progress.py", "main.py", "watch.py"}
    for file in (Path(__file__).parents[3] / "cli").glob("*.py"):
        if file.name in own:
            continue
        found = re.findall(r"click\.(?:echo|secho)\(|\bprint\(|sys\.std(?:out|err)\.write", file.read_text())
        assert found == [], f"{file.name}: print with cli.say.say or the command's Output"
