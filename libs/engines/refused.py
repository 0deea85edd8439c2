"""What no profile may set, whatever the engine.

An engine has hundreds of options and new ones with every version, so words in a name refuse as well: what is called
``…-path`` or ``…-url`` reads a file or asks an address until somebody has looked and listed it as harmless.
"""

from __future__ import annotations

from .reasons import AGENT, CODE, DOOR, ELSEWHERE, FETCH, FILE, PROMPTS, SECRET, SETTINGS

WORDS: dict[str, str] = {
    **dict.fromkeys(("path", "paths", "dir", "dirs", "directory", "folder", "file", "files", "filename"), FILE),
    **dict.fromkeys(("certfile", "keyfile", "certs", "cert", "ssl", "tls"), FILE),
    **dict.fromkeys(("url", "urls", "uri", "download", "hub"), FETCH),
    **dict.fromkeys(("host", "hosts", "addr", "address", "port", "ports", "ip", "socket", "ipc", "grpc"), DOOR),
    **dict.fromkeys(("endpoint", "endpoints", "remote", "webhook"), ELSEWHERE),
    **dict.fromkeys(("key", "keys", "auth", "password", "secret", "credential", "credentials"), SECRET),
    **dict.fromkeys(("plugin", "plugins", "module", "modules", "cls", "class", "script", "hook", "hooks"), CODE),
    **dict.fromkeys(("middleware", "connector", "loader", "import"), CODE),
    **dict.fromkeys(("config", "configs", "yaml", "preset"), SETTINGS),
    **dict.fromkeys(("dump", "trace", "traces", "record", "recorder"), PROMPTS),
}
"""Words in an option's name, each with the reason."""

ANY: dict[str, str] = {
    "--host": AGENT, "--port": AGENT, "--api-key": AGENT, "--api-key-file": SECRET, "--log-file": FILE,
    "--trust-remote-code": "it runs code that comes with the weights", "--served-model-name": AGENT,
    "--config": SETTINGS,
}  # fmt: skip
"""Options by name, each with the reason."""
