"""Who may say and hear what on the bus: one nkey and one allow-list for each service and each node.

The table below is what nats-server enforces. A service publishes only its own facts, writes only its own views,
works only through its own consumers; a node does so only for its own machine and reads only what it should run.
Replies go to ``_INBOX.<identity>.…``, which nobody else may listen to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import nkeys

from libs.events.subjects import decode_token, encode_token

from .topology import CONSUMERS, KEEPERS, SEEN_BY_NODES

SERVICES = ("gateway", "scheduler", "accounting", "guard", "mirror")
OPERATOR = "operator"
"""Whoever holds this one runs the cluster: the command line uses it."""
NAME_OTHERS = ("gateway",)
"""Who may say for whom it publishes a command: who asks people for their keys and checks their roles."""


def node_identity(machine_id: str) -> str:
    """The identity of a machine's agent. One subject token, whatever the machine is called."""
    return f"node-{encode_token(machine_id)}"


def machine_of(identity: str) -> str:
    """The machine whose agent has this identity."""
    return decode_token(identity.removeprefix("node-"))


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What one identity may do, in the bus's own terms."""

    says: tuple[str, ...] = ()
    """Subjects it publishes to, streams or not."""
    hears: tuple[str, ...] = ()
    """Subjects it listens to besides its own inbox."""
    answers: tuple[str, ...] = ()
    """Questions it answers, as a NATS service."""
    writes: tuple[str, ...] = ()
    """Buckets it writes."""
    keeps: str | None = None
    """The volatile stream it makes again when a restarted server lost it."""
    clears: str | None = None
    """The stream it removes messages from, once it has dealt with them."""
    leads: str | None = None
    """The lease it may take."""
    reads: tuple[str, ...] = ()
    """Streams (a bucket's is ``KV_<bucket>``) it may read as a whole."""
    looks_up: Mapping[str, tuple[str, ...]] = {}
    """Streams it may ask for the last message of single subjects."""
    reads_only: Mapping[str, tuple[str, ...]] = {}
    """Streams it may read single subjects of."""
    works: tuple[str, ...] = ()
    """Durable consumers of the topology it works through."""
    looks: tuple[str, ...] = ("*",)
    """Streams it may ask whether they are what the topology says. The answer can name every subject in them."""

    def publish(self) -> list[str]:
        """Subjects the server lets it publish to."""
        allowed = [*self.says, "_INBOX.>"]
        allowed += [f"$KV.{bucket}.>" for bucket in self.writes]
        allowed.append("$JS.API.INFO")
        for stream in self.looks:
            allowed += [f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.CONSUMER.INFO.{stream}.*"]
        for stream in self.reads:
            allowed += [f"$JS.API.STREAM.MSG.GET.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}.>"]
        for stream, subjects in self.reads_only.items():
            allowed += [f"$JS.API.CONSUMER.CREATE.{stream}.*.{subject}" for subject in subjects]
        for stream, subjects in self.looks_up.items():
            allowed += [f"$JS.API.DIRECT.GET.{stream}.{subject}" for subject in subjects]
        for stream in (*self.reads, *self.reads_only):
            allowed += [f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*", f"$JS.API.CONSUMER.DELETE.{stream}.*"]
        for durable in self.works:
            stream = CONSUMERS[durable].stream
            allowed += [f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", f"$JS.ACK.{stream}.{durable}.>"]
            allowed.append(f"llmgw.dlq.{stream}.{durable}")
        if self.keeps is not None:
            allowed += [f"$JS.API.STREAM.CREATE.{self.keeps}", f"$JS.API.CONSUMER.DURABLE.CREATE.{self.keeps}.*"]
        if self.clears is not None:
            allowed.append(f"$JS.API.STREAM.PURGE.{self.clears}")
        if self.leads is not None:
            allowed += [f"llmgw.evt.{self.leads}.main.elected", f"$KV.leases.{self.leads}"]
            allowed.append("$JS.API.STREAM.MSG.GET.KV_leases")
        return sorted(set(allowed))

    def subscribe(self, identity: str) -> list[str]:
        """Subjects the server lets it listen to."""
        allowed = [f"_INBOX.{identity}.>", *self.hears, *self.answers]
        if self.answers:
            allowed.append("$SRV.>")  # NATS services are asked there who they are
        return sorted(allowed)


GRANTS: dict[str, Grant] = {
    "gateway": Grant(
        # Commands and questions: its admin API passes on those of people whose roles it checked.
        says=(
            *("llmgw.use.gateway.>", "llmgw.tel.gateway.>", "llmgw.chk.>", "llmgw.cmd.*.*.gateway", "llmgw.ask.>"),
            *("$KV.leases.gateway.*", "$JS.API.STREAM.MSG.GET.KV_leases"),  # that it runs, under its id
        ),
        hears=("llmgw.tel.gateway.>",),
        looks_up={"USAGE": ("llmgw.use.gateway.>",)},
        reads=(
            *("EVENTS", "TELEMETRY", "KV_routes", "KV_keys", "KV_spend", "KV_prices", "KV_policies", "KV_models"),
            "KV_nodes",
        ),
    ),
    "scheduler": Grant(
        says=(
            *("llmgw.evt.model.>", "llmgw.evt.node.>", "llmgw.evt.replica.>", "llmgw.evt.system.>"),
            "llmgw.tel.scheduler.>",
        ),
        answers=("llmgw.ask.scheduler.>",),
        writes=("routes", "desired", "nodes", "models"),
        keeps=KEEPERS["scheduler"],
        leads="scheduler",
        reads=("EVENTS", "TELEMETRY", "KV_routes", "KV_desired", "KV_nodes", "KV_models", "KV_library"),
        hears=("llmgw.tel.>", "llmgw.use.gateway.>"),  # trials are judged on what gateways served
        works=("cmd-scheduler",),
    ),
    "accounting": Grant(
        says=("llmgw.evt.org.>", "llmgw.evt.team.>", "llmgw.evt.project.>", "llmgw.evt.key.>", "llmgw.evt.price.>"),
        answers=("llmgw.ask.accounting.>",),
        writes=("keys", "spend", "prices"),
        clears="USAGE",
        leads="accounting",
        reads=("EVENTS", "USAGE", "KV_keys", "KV_spend", "KV_prices"),
        works=("cmd-accounting", "accounting-ledger"),
    ),
    "guard": Grant(
        says=("llmgw.evt.policy.>", "llmgw.use.guard.>"),
        answers=("llmgw.ask.guard.>",),
        writes=("policies",),
        keeps=KEEPERS["guard"],
        leads="guard",
        reads=("EVENTS", "KV_policies"),
        works=("cmd-guard", "guard-checks"),
    ),
    "mirror": Grant(
        says=("llmgw.evt.library.>", "llmgw.evt.mirror.>", "llmgw.tel.mirror.>"),
        answers=("llmgw.ask.mirror.>",),
        writes=("library",),
        leads="mirror",
        reads=("EVENTS", "KV_library"),
        works=("cmd-mirror",),
    ),
    OPERATOR: Grant(
        says=("llmgw.cmd.*.*", "llmgw.ask.>", "$JS.API.>", "$SRV.>"),
        hears=("llmgw.cmd.>", "llmgw.evt.>", "llmgw.use.>", "llmgw.tel.>", "$SRV.>"),
    ),
}


def node_grant(machine_id: str) -> Grant:
    """What the agent of one machine may do."""
    token = encode_token(machine_id)
    return Grant(
        says=(
            *(f"llmgw.evt.machine.{token}.>", f"llmgw.evt.shard.{token}.>"),
            *(f"llmgw.tel.machine.{token}.>", f"llmgw.tel.shard.{token}.>"),
        ),
        answers=(f"llmgw.ask.node.{token}.>",),
        looks_up={"EVENTS": (f"llmgw.evt.machine.{token}.>", f"llmgw.evt.shard.{token}.>")},
        reads_only={"KV_desired": (f"$KV.desired.{token}",)},
        looks=SEEN_BY_NODES,
    )


def grants(machine_ids: Iterable[str]) -> dict[str, Grant]:
    """Every identity of a cluster with these machines."""
    return {**GRANTS, **{node_identity(machine_id): node_grant(machine_id) for machine_id in machine_ids}}


def ensure_seed(path: Path) -> str:
    """The public key of the nkey seed in a file, which is made (mode 0600) when it is not there.

    Raises ValueError when the file holds no seed.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
        beside.replace(path)
    try:
        public: bytes = nkeys.from_seed(bytearray(path.read_bytes().strip())).public_key
    except Exception as error:
        raise ValueError(
            f"{path} holds no nkey seed ({error or type(error).__name__}): remove it to make one"
        ) from None
    return public.decode()


def authorization(public_keys: Mapping[str, str], allowed: Mapping[str, Grant]) -> str:
    """The ``authorization`` block of nats-server's configuration: identity to public key, identity to grant."""
    users = []
    for identity, key in sorted(public_keys.items()):
        grant = allowed[identity]
        users.append(
            f"    # {identity}\n"
            f"    {{ nkey: {key}, permissions: {{\n"
            f"      publish: {{ allow: [{_list(grant.publish())}] }}\n"
            f"      subscribe: {{ allow: [{_list(grant.subscribe(identity))}] }}\n"
            f"    }} }}\n"
        )
    return "authorization {\n  users: [\n" + "".join(users) + "  ]\n}\n"


def users_in(text: str) -> dict[str, str]:
    """The identities of an ``authorization`` block written by this module, with their public keys."""
    return dict(re.findall(r"^    # (\S+)\n    \{ nkey: (\w+),", text, re.MULTILINE))


def _list(subjects: Iterable[str]) -> str:
    return ", ".join(f'"{subject}"' for subject in subjects)
