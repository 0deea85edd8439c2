"""Start a program as an ordinary user from root: ``python -m libs.runtime.servers.unprivileged USER PROGRAM …``.

PostgreSQL refuses to run as root. Its files may lie where an ordinary user cannot even pass (below ``/root``, or in a
fresh temporary directory); then the program keeps one capability, passing through directories, and no other.
Replaces itself by the program, so the process id stays what the supervisor saw.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

CANDIDATES = ("postgres", "nobody")
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PR_SET_KEEPCAPS, PR_CAPBSET_READ, PR_CAP_AMBIENT = 8, 23, 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522


def ordinary_user() -> str:
    """A system user that servers may run as. Raises LookupError when the machine has none."""
    for name in CANDIDATES:
        try:
            if pwd.getpwnam(name).pw_uid != 0:
                return name
        except KeyError:
            continue
    raise LookupError(f"PostgreSQL cannot run as root and none of the users {', '.join(CANDIDATES)} exists: create one")


def passable(path: Path) -> bool:
    """Whether everybody may pass through every directory above ``path``."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.absolute().parents)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _become(user: pwd.struct_passwd, capability: int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    check(libc.prctl(PR_SET_KEEPCAPS, 1 if capability is not None else 0, 0, 0, 0), "keeping capabilities")
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    if capability is not None:
        bit = 1 << capability
        sets = (_Sets * 2)(_Sets(bit, bit, bit), _Sets(0, 0, 0))
        check(libc.capset(ctypes.byref(_Header(CAPABILITY_VERSION_3, 0)), sets), "reducing capabilities")
        check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0), "handing on a capability")


def _passing_capability() -> int:
    """The weakest capability this process may hand on that lets a user pass through closed directories."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
        if libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            return capability
    raise PermissionError(
        "the files of PostgreSQL are below a directory only root may pass: use a --state-dir and an installation "
        "that other users can reach, or do not run as root"
    )


def command(arguments: Iterable[str], owner: str | None) -> list[str]:
    """``arguments`` to run as ``owner``; unchanged when ``owner`` is None (we are an ordinary user already)."""
    if owner is None:
        return list(arguments)
    return [sys.executable, "-m", "libs.runtime.servers.unprivileged", owner, *arguments]


def main(arguments: list[str]) -> None:
    """``arguments``: user, program, its arguments. Absolute paths among them must be reachable."""
    user = pwd.getpwnam(arguments[0])
    program = arguments[1:]
    closed = any(not passable(Path(part)) for part in program if part.startswith("/") and os.path.exists(part))
    _become(user, _passing_capability() if closed else None)
    os.environ["HOME"] = "/"
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
