"""A described machine in place of the one below: its NVML, its kernel's files and what programs say on it."""

from __future__ import annotations

from typing import Any

import msgspec

from services.nodeagent.adapters.host.host_access import NotThere, Ran, TookTooLong

from .nvml import Library, SimulatedNvml


class Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program says when it is run so."""

    out: str = ""
    err: str = ""
    code: int = 0
    hangs: bool = False


class Description(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A machine, recorded or invented."""

    about: str = ""
    arch: str = "x86_64"
    nvml: Library | None = None
    """None: the library is not installed."""
    files: dict[str, str] = {}
    """Path to content."""
    links: dict[str, str] = {}
    """Path to what it comes to."""
    commands: dict[str, Said] = {}
    """The whole command line to what it says; a program with none is not installed."""
    kernel_log: list[str] = []
    """Lines the kernel logs next."""


class Described:
    """HostAccess made of a description."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self._nvml = SimulatedNvml(description.nvml) if description.nvml is not None else None

    def nvml(self) -> Any:
        if self._nvml is None:
            raise NotThere("the Python package nvidia-ml-py is not installed")
        return self._nvml

    def arch(self) -> str:
        return self.description.arch

    def text(self, path: str) -> str | None:
        content = self.description.files.get(self._followed(path))
        return content.strip() if content is not None else None

    def names(self, path: str) -> list[str]:
        inside = {
            entry[len(root) + 1 :].partition("/")[0]
            for root in {path.rstrip("/"), self._followed(path).rstrip("/")}
            for entry in (*self.description.files, *self.description.links)
            if entry.startswith(f"{root}/")
        }
        return sorted(inside)

    def target(self, path: str) -> str | None:
        followed = self._followed(path)
        there = followed in self.description.files or followed != path or bool(self.names(path))
        return followed if there else None

    def run(self, *command: str, timeout_s: float = 10.0) -> Ran:
        line = " ".join(command)
        answer = self.description.commands.get(line)
        if answer is not None:
            if answer.hangs:
                raise TookTooLong(f"{line} did not end within {timeout_s:g} s")
            return Ran(answer.code, answer.out, answer.err)
        if any(known.split(" ")[0] == command[0] for known in self.description.commands):
            return Ran(1, "", f"{command[0]}: it does not know {line}")
        raise NotThere(f"{command[0]} is not installed")

    def kernel_lines(self) -> list[str]:
        lines, self.description.kernel_log = self.description.kernel_log, []
        return lines

    def _followed(self, path: str) -> str:
        for link, target in self.description.links.items():
            if path == link or path.startswith(f"{link}/"):
                return self._followed(target + path[len(link) :])
        return path
