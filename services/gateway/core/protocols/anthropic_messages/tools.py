"""Tools of Anthropic's whose schema its models know by heart and whose calls the client runs, as plain functions.

Names, commands and fields: Anthropic's references of the bash, text editor and memory tools. Their calls come back as
``tool_use`` blocks like any other's, so only the offer is translated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from services.gateway.core.json.fields import Json


class ClientTool(NamedTuple):
    description: str
    parameters: Json


def _object(required: tuple[str, ...], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description, **more}


def _number(description: str) -> Json:
    return {"type": "integer", "description": description}


_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "For 'view' of a file: the first and the last line to show, counted from 1; -1 is the end.",
}
_BASH = ClientTool(
    "Run a command in a bash session that is kept between calls; what it prints is the result.",
    _object(
        (),
        command=_text("The command to run; required unless 'restart' is true."),
        restart={"type": "boolean", "description": "Start the session anew instead of running a command."},
    ),
)


def _editor(*commands: str, inserted: str) -> ClientTool:
    return ClientTool(
        "View, create and edit text files.",
        _object(
            ("command", "path"),
            command=_text("What to do.", enum=list(commands)),
            path=_text("Absolute path of a file or folder."),
            view_range=_RANGE,
            file_text=_text("For 'create': the file's content."),
            old_str=_text("For 'str_replace': the text to replace; it must stand in the file exactly once."),
            new_str=_text(
                "The text to put in its place; with 'insert' the text to insert, where no other field has it."
            ),
            insert_line=_number("For 'insert': the line after which to insert; 0 is the beginning."),
            **({} if inserted == "new_str" else {inserted: _text("For 'insert': the text to insert.")}),
        ),
    )


_EDIT = ("view", "create", "str_replace", "insert")
_MEMORY = ClientTool(
    "Keep notes in files under /memories that last beyond this conversation.",
    _object(
        ("command",),
        command=_text("What to do.", enum=[*_EDIT, "delete", "rename"]),
        path=_text("Path under /memories."),
        view_range=_RANGE,
        file_text=_text("For 'create': the file's content."),
        old_str=_text("For 'str_replace': the text to replace."),
        new_str=_text("For 'str_replace': the text to put in its place."),
        insert_line=_number("For 'insert': the line at which to insert; 0 is the beginning."),
        insert_text=_text("For 'insert': the text to insert."),
        old_path=_text("For 'rename': the path now."),
        new_path=_text("For 'rename': the path afterwards."),
    ),
)
_TOOLS = {
    "bash_20": _BASH,
    "text_editor_2024": _editor(*_EDIT, "undo_edit", inserted="new_str"),
    "text_editor_20250124": _editor(*_EDIT, "undo_edit", inserted="new_str"),
    "text_editor_20": _editor(*_EDIT, inserted="insert_text"),
    "memory_20": _MEMORY,
}
"""By how the type begins; the first that fits counts. The rest is a date."""


def client_tool(kind: str) -> ClientTool | None:
    """The function behind a tool's type; None: the tool runs at Anthropic."""
    return next((tool for begins, tool in _TOOLS.items() if kind.startswith(begins)), None)
