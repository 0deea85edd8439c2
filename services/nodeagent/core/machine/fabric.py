"""InfiniBand and RoCE: what the kernel and the subnet tools say of a port, and which physical fabric it is on."""

from __future__ import annotations

import ipaddress
import re

import msgspec

COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_xmit_discards", "port_xmit_wait", "excessive_buffer_overrun_errors", "local_link_integrity_errors",
    "port_xmit_data", "port_rcv_data",
)  # fmt: skip
"""Of ``counters/``; data in units of four bytes, as the adapter counts it."""

HARDWARE_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "np_cnp_sent", "rp_cnp_handled")
"""Of ``hw_counters/``: what a congested or lossy RoCE network shows."""


def word(text: str | None) -> str:
    """``4: ACTIVE`` is ``active``; ``5: LinkUp`` is ``linkup``."""
    return (text or "").partition(":")[2].strip().lower() or (text or "").strip().lower()


def rate_gbps(text: str | None) -> float | None:
    """``400 Gb/sec (4X NDR)`` is 400."""
    match = re.match(r"([\d.]+)\s*Gb/sec", text or "")
    return float(match.group(1)) if match else None


def guid(text: str | None) -> str | None:
    """``fc6a:1c03:00aa:0001`` and ``0x100001`` as sixteen hex digits; None for zeros and for none."""
    digits = re.sub(r"[^0-9a-f]", "", (text or "").lower().removeprefix("0x"))
    padded = digits.rjust(16, "0")
    return padded if digits and int(padded, 16) else None


class Manager(msgspec.Struct, frozen=True):
    """A subnet manager."""

    guid: str
    state: str
    """``master``, ``standby``, ``discovering`` or ``not active``."""
    priority: int
    lid: int | None = None


_STATES = {0: "not active", 1: "discovering", 2: "standby", 3: "master"}


def master(sminfo: str) -> Manager | None:
    """The manager ``sminfo`` names, or None when it names none."""
    match = re.search(r"sm lid (\d+) sm guid (0x[0-9a-f]+),.*priority (\d+) state (\d+)", sminfo)
    identity = guid(match.group(2)) if match else None
    if match is None or identity is None:
        return None
    return Manager(identity, _STATES.get(int(match.group(4)), "unknown"), int(match.group(3)), int(match.group(1)))


def managers(saquery: str) -> tuple[Manager, ...]:
    """Every manager of ``saquery SMIR``, by GUID."""
    listed = []
    for record in saquery.split("SMInfoRecord dump:")[1:]:
        fields = dict(re.findall(r"^\s*(\w+)\.{2,}\s*(\S+)", record, re.MULTILINE))
        identity = guid(fields.get("GUID"))
        if identity is None:
            continue
        state = _STATES.get(int(fields.get("SMState", "-1")), "unknown")
        lid = int(fields["LID"]) if fields.get("LID", "").isdigit() else None
        listed.append(Manager(identity, state, int(fields.get("Priority", "0")), lid))
    return tuple(sorted(listed, key=lambda manager: manager.guid))


def subnet(of_master: Manager, all_managers: tuple[Manager, ...]) -> str:
    """The name of a physical InfiniBand fabric: the lowest GUID of its managers, which stays when another one takes
    over. Prefixes prove nothing: every manager uses the same one unless it was told otherwise."""
    return f"sm:{min([of_master.guid, *(manager.guid for manager in all_managers if manager.state != 'not active')])}"


def roce_address(gid: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address a GID stands for; None for a link-local or an empty one."""
    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError:
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return None if address.is_link_local or address.is_unspecified else address


def network_of(address: ipaddress.IPv4Address, interface: str, routes: str) -> str | None:
    """``ip:10.20.0.0/16``: the network of an address by ``/proc/net/route``, the most particular of the interface."""
    best: ipaddress.IPv4Network | None = None
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[0] != interface or fields[2] != "00000000":
            continue
        numbers = [int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 7)]
        try:
            network = ipaddress.IPv4Network((numbers[0], str(ipaddress.IPv4Address(numbers[1]))))
        except ValueError:
            continue
        if network.prefixlen and address in network and (best is None or network.prefixlen > best.prefixlen):
            best = network
    return f"ip:{best}" if best is not None else None
