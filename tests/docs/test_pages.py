"""Pages hold together: they are found from the contents, lead somewhere, and name what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .found import FENCE
from .metrics_page import metrics
from .pages import DOCS, ROOT, pages, written

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<to>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
SUFFIXES = ("_total", "_bucket", "_sum", "_count", "")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What may stand behind ``#``, as GitHub makes it of headings."""
    found = (
        re.sub(r"[^\w\- ]", "", match["text"].lower()).replace(" ", "-") for match in HEADING.finditer(prose(page))
    )
    return set(found)


def links(page: Path) -> list[tuple[Path, str]]:
    """Where the page's links into the repository lead: a file and what stands behind ``#``."""
    found = []
    for match in LINK.finditer(prose(page)):
        path, _, anchor = match["to"].partition("#")
        if "://" not in path:
            found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


def test_every_page_is_in_the_contents() -> None:
    linked = {file for file, _ in links(DOCS / "README.md")}

    assert [str(page.relative_to(ROOT)) for page in pages() if page not in linked and page != DOCS / "README.md"] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [str(file) for file, _ in links(page) if not file.exists()]
    broken += [
        f"{file}#{anchor}"
        for file, anchor in links(page)
        if anchor and file.suffix == ".md" and anchor not in anchors(file)
    ]

    assert broken == []


@pytest.mark.parametrize("page", written(), ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_that_are_named_are_measured(page: Path) -> None:
    there = {f"{name}{suffix}" for name in metrics() for suffix in SUFFIXES}
    named = set(re.findall(r"(?<![\w./-])llmgw_[a-z_]+[a-z]", page.read_text())) - {"llmgw_key"}

    assert sorted(named - there) == []


@pytest.mark.parametrize("page", written(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:bench|cli|deploy|docs|examples|libs|services|tests)/[a-z0-9_/.-]+)`", page.read_text())

    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()] == []


def _texts() -> list[str]:
    """Every text of the programs, adjacent literals joined."""
    found = []
    for part in ("cli", "libs", "services"):
        for file in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    found.append(_joined(node))
    return found


def _joined(text: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in text.values)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_events_are_shown_with_their_times_as_they_are_printed(page: Path) -> None:
    for line in page.read_text().splitlines():
        if re.search(r"^\S*\d:\d\d\S* +(usage)?#\d", line):
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line), line


def test_the_fold_of_the_log_is_shown_as_it_is_printed() -> None:
    _, _, sample = (DOCS / "quickstart.md").read_text().partition("$ llmgw event replay\n")

    assert re.match(r"(node \S+ is .*\n)+(model \S+ is .*\n)+\d+ events up to #\d+ folded: state ", sample)


def test_messages_are_those_the_programs_say() -> None:
    """Of the first column of the tables of messages: each piece between ``…`` stands in one text, in that order."""
    page = (DOCS / "troubleshooting.md").read_text()
    messages = [
        message
        for line in page.splitlines()
        if line.startswith("| ")
        for message in re.findall(r"`([^`]+)`", line.split(" | ")[0])
        if " " in message and not message.startswith("llmgw ")
    ]
    texts = _texts()

    def said(message: str) -> bool:
        wanted = re.compile(".*".join(re.escape(piece.strip()) for piece in message.split("…")), re.DOTALL)
        return any(wanted.search(text) for text in texts)

    assert len(messages) > 50
    assert [message for message in messages if not said(message)] == []
