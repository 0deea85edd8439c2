"""Every event as one sentence a person understands: ``llmgw events tail``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from libs.events import leadership, library, machine, model, node, policy, replica, shard, system, tenancy, usage
from libs.events.contract import Contract, tag_of

E = TypeVar("E", bound=Contract)

_sentences: dict[str, Callable[[Any], str]] = {}


def known() -> frozenset[str]:
    """The tags that have a sentence."""
    return frozenset(_sentences)


def sentence(message: Contract) -> str:
    """One line, without the time."""
    tag = tag_of(message)
    say = _sentences.get(tag)
    return say(message) if say else tag


def _says(contract: type[E]) -> Callable[[Callable[[E], str]], Callable[[E], str]]:
    def register(say: Callable[[E], str]) -> Callable[[E], str]:
        _sentences[tag_of(contract)] = say
        return say

    return register


# machines and nodes


@_says(machine.MachineRegistered)
def _machine_registered(e: machine.MachineRegistered) -> str:
    gpus = f"{len(e.gpus)} x {e.gpus[0].name}" if e.gpus else f"no GPU ({e.gpus_reason})" if e.gpus_reason else "no GPU"
    engines = ", ".join(f"{one.engine} {one.version}".strip() for one in e.engines) or "no engine"
    kind = "simulated machine" if e.simulated else "machine"
    cores = f"{e.cpu_count} cores" + (f" (of {e.cpu_quota:g} allowed)" if e.cpu_quota is not None else "")
    return (
        f"{kind} {e.machine_id} registered: {cores}, {e.memory_total_mb / 1024:.0f} GiB memory, "
        f"{gpus}; it can run {engines}"
    )


@_says(node.NodeJoined)
def _node_joined(e: node.NodeJoined) -> str:
    return f"node {e.machine_id} joined and may be given work"


@_says(node.NodeLost)
def _node_lost(e: node.NodeLost) -> str:
    return f"node {e.machine_id} is lost: silent for {_seconds(e.silent_ms)}, the deadline is {_seconds(e.deadline_ms)}"


@_says(node.NodeReturned)
def _node_returned(e: node.NodeReturned) -> str:
    return f"node {e.machine_id} is back after {_seconds(e.away_ms)}"


@_says(node.NodeCordoned)
def _node_cordoned(e: node.NodeCordoned) -> str:
    return f"node {e.machine_id} is cordoned: it gets nothing new{_because(e.reason)}"


@_says(node.NodeDrained)
def _node_drained(e: node.NodeDrained) -> str:
    stopped = ", or stopped where it has nowhere to go" if e.force else ""
    return f"node {e.machine_id} is drained: what runs there is moved away{stopped}{_because(e.reason)}"


@_says(node.NodeUncordoned)
def _node_uncordoned(e: node.NodeUncordoned) -> str:
    return f"node {e.machine_id} takes work again"


@_says(node.NodeLent)
def _node_lent(e: node.NodeLent) -> str:
    return f"node {e.machine_id} is lent{f' to {e.to}' if e.to else ''}: what runs there is moved away"


@_says(node.NodeReclaimed)
def _node_reclaimed(e: node.NodeReclaimed) -> str:
    return f"node {e.machine_id} is ours again and takes work"


@_says(node.NodeRetired)
def _node_retired(e: node.NodeRetired) -> str:
    return f"node {e.machine_id}, lost since {e.lost_at:%Y-%m-%d %H:%M} UTC, is known no more{_because(e.reason)}"


_ERRANDS = {
    "restart_agent": "its agent is to start anew",
    "restart_shard": "the engine of {shard_id} is to start anew",
    "change_settings": "its agent's settings are to change: {settings}",
    "remove_weights": "its copy of {weights} is to be removed",
}


@_says(node.NodeErrandGiven)
def _node_errand_given(e: node.NodeErrandGiven) -> str:
    errand = e.errand
    changes = ", ".join(f"{name}={value}" for name, value in errand.settings.items())
    what = _ERRANDS[errand.kind].format(shard_id=errand.shard_id, weights=errand.weights, settings=changes)
    return f"node {e.machine_id}: {what}{_because(e.reason)}"


@_says(machine.MachineErrandEnded)
def _machine_errand_ended(e: machine.MachineErrandEnded) -> str:
    return f"node {e.machine_id}: what #{e.errand} asked for is {e.outcome}{_because(e.reason)}"


# the whole system


@_says(system.SystemStopped)
def _system_stopped(e: system.SystemStopped) -> str:
    return f"the system is stopped: no model is wanted{_because(e.reason)}"


@_says(system.SystemStarted)
def _system_started(e: system.SystemStarted) -> str:
    return "the system is started: models are wanted as before"


@_says(system.RackCapped)
def _rack_capped(e: system.RackCapped) -> str:
    most = f"may use {e.watts} W" if e.watts is not None else "may use as much power as they like"
    return f"GPUs of rack {e.rack} {most}"


@_says(system.PlacingPaused)
def _placing_paused(e: system.PlacingPaused) -> str:
    return (
        f"{e.silent} of {e.of} nodes fell silent together: each may be so for {_seconds(e.lasts_ms)} before what runs "
        f"on it is placed anew"
    )


@_says(system.PlacingResumed)
def _placing_resumed(e: system.PlacingResumed) -> str:
    return f"nodes that fall silent are lost as soon as usual, after {_seconds(e.paused_ms)}: {e.reason}"


# models and replicas


@_says(model.ModelDefined)
def _model_defined(e: model.ModelDefined) -> str:
    engines = ", ".join(dict.fromkeys(profile.engine for profile in e.spec.profiles))
    weights = f" with weights {e.spec.source}" if e.spec.source else ""
    return f"model {e.model} defined: {_count(e.spec.scaling.min, 'replica')} on {engines}{weights}"


@_says(model.ModelScaled)
def _model_scaled(e: model.ModelScaled) -> str:
    most = f" to {e.scaling.max}" if e.scaling.max is not None and e.scaling.max != e.scaling.min else ""
    return f"model {e.model} scaled: {e.scaling.min}{most} replicas wanted"


@_says(model.ModelRemoved)
def _model_removed(e: model.ModelRemoved) -> str:
    return f"model {e.model} removed"


@_says(model.ModelUnplaced)
def _model_unplaced(e: model.ModelUnplaced) -> str:
    return f"model {e.model} fits nowhere: {e.explanation.summary or 'see `llmgw explain ' + e.model + '`'}"


@_says(model.ModelParked)
def _model_parked(e: model.ModelParked) -> str:
    return f"model {e.model} is parked after {_count(e.failures, 'failure')} in a row: {e.reason}"


@_says(model.ModelUnparked)
def _model_unparked(e: model.ModelUnparked) -> str:
    return f"model {e.model} is tried again"


@_says(replica.ReplicaPlaced)
def _replica_placed(e: replica.ReplicaPlaced) -> str:
    where = ", ".join(dict.fromkeys(one.machine_id for one in e.shards))
    why = e.explanation.summary or e.reason
    return f"replica {e.replica_id} of {e.model} placed on {where} (profile {e.profile}){_because(why)}"


@_says(replica.ReplicaReady)
def _replica_ready(e: replica.ReplicaReady) -> str:
    return f"replica {e.replica_id} of {e.model} serves at {e.url}"


@_says(replica.ReplicaFailed)
def _replica_failed(e: replica.ReplicaFailed) -> str:
    again = f"; the next try is at {e.retry_at:%H:%M:%S}" if e.retry_at else "; another is placed at once"
    return f"replica {e.replica_id} of {e.model} failed (number {e.failures} in a row): {e.reason}{again}"


@_says(replica.ReplicaDraining)
def _replica_draining(e: replica.ReplicaDraining) -> str:
    return f"replica {e.replica_id} of {e.model} takes no new requests: {e.reason}"


@_says(replica.ReplicaStopping)
def _replica_stopping(e: replica.ReplicaStopping) -> str:
    return f"replica {e.replica_id} of {e.model} is told to stop: {e.reason}"


@_says(replica.ReplicaLost)
def _replica_lost(e: replica.ReplicaLost) -> str:
    return f"another is to take the place of replica {e.replica_id} of {e.model}: node {e.machine_id} is lost"


@_says(replica.ReplicaMeasured)
def _replica_measured(e: replica.ReplicaMeasured) -> str:
    figures = f"{e.tokens_per_s:.0f} tokens a second, {e.estimated_tokens_per_s:.0f} were estimated"
    return f"replica {e.replica_id} of {e.model} answers one request with {figures} ({e.requests} requests)"


@_says(replica.ReplicaRecovered)
def _replica_recovered(e: replica.ReplicaRecovered) -> str:
    return f"replica {e.replica_id} of {e.model} is back and serves at {e.url}"


@_says(replica.ReplicaStopped)
def _replica_stopped(e: replica.ReplicaStopped) -> str:
    return f"replica {e.replica_id} of {e.model} is stopped{_because(e.reason)}"


@_says(model.ModelStopped)
def _model_stopped(e: model.ModelStopped) -> str:
    return f"model {e.model} is stopped by an administrator{_because(e.reason)}"


@_says(model.ModelStarted)
def _model_started(e: model.ModelStarted) -> str:
    return f"model {e.model} is started again"


@_says(model.ModelRestarted)
def _model_restarted(e: model.ModelRestarted) -> str:
    how = "each is stopped before its successor starts" if e.in_place else "one by one, the new one ready first"
    return f"replicas of {e.model} are replaced, {how}{_because(e.reason)}"


@_says(model.ModelWoken)
def _model_woken(e: model.ModelWoken) -> str:
    return f"model {e.model} is asked for and wanted now"


@_says(model.ModelSlept)
def _model_slept(e: model.ModelSlept) -> str:
    return f"model {e.model} goes to sleep: {e.reason}"


@_says(model.ModelAutoscaled)
def _model_autoscaled(e: model.ModelAutoscaled) -> str:
    return f"model {e.model} scales from {e.before} to {_count(e.replicas, 'replica')}: {e.reason}"


@_says(model.ModelPromoted)
def _model_promoted(e: model.ModelPromoted) -> str:
    return f"the definition {e.fingerprint} of {e.model} passed its trial: {e.reason}"


@_says(model.ModelRolledBack)
def _model_rolled_back(e: model.ModelRolledBack) -> str:
    return f"the definition {e.fingerprint} of {e.model} is dropped: {e.reason}"


# shards: what an agent does on its machine


@_says(shard.ShardStarting)
def _shard_starting(e: shard.ShardStarting) -> str:
    return f"{e.machine_id} starts {e.engine} for {e.model} (shard {e.shard_id})"


@_says(shard.ShardLoading)
def _shard_loading(e: shard.ShardLoading) -> str:
    fetched = f"{_size(e.fetched_bytes)} of weights fetched" if e.fetched_bytes else "weights were here"
    return f"{e.machine_id} loads {e.model}: {fetched} and checked, engine process {e.pid} runs"


@_says(shard.ShardReady)
def _shard_ready(e: shard.ShardReady) -> str:
    engine = f" ({e.engine} {e.engine_version})".replace(" )", ")") if e.engine else ""
    layers = f", {e.gpu_layers} of its {e.layers} layers on GPUs" if e.gpu_layers and e.layers else ""
    return f"{e.machine_id} has {e.model} ready after {_seconds(e.loaded_ms)} at {e.url}{engine}{layers}"


@_says(shard.ShardAdopted)
def _shard_adopted(e: shard.ShardAdopted) -> str:
    return f"{e.machine_id} found {e.model} still running (process {e.pid}) and took it over"


@_says(shard.ShardFailed)
def _shard_failed(e: shard.ShardFailed) -> str:
    code = f", exit status {e.exit_code}" if e.exit_code is not None else ""
    return f"{e.machine_id} could not run {e.model} ({e.phase}{code}): {e.reason}"


@_says(shard.ShardStopped)
def _shard_stopped(e: shard.ShardStopped) -> str:
    return f"{e.machine_id} stopped {e.model} (shard {e.shard_id}){_because(e.reason)}"


# the library


@_says(library.ImportStarted)
def _import_started(e: library.ImportStarted) -> str:
    return f"weights {e.name} are being imported from {e.source}"


@_says(library.ImportEnded)
def _import_ended(e: library.ImportEnded) -> str:
    return f"import of weights {e.name} ended: {e.problem or 'the library had that version already'}"


@_says(library.VersionAdded)
def _version_added(e: library.VersionAdded) -> str:
    size = _size(sum(file.size_bytes for file in e.version.files))
    return (
        f"weights {e.name} version {e.version.version} added: {_count(len(e.version.files), 'file')}, {size}, "
        f"from {e.version.source}"
    )


@_says(library.VersionRemoved)
def _version_removed(e: library.VersionRemoved) -> str:
    kept = f", {_size(e.kept_bytes)} shared with other versions stay" if e.kept_bytes else ""
    return f"weights {e.name} version {e.version} removed: {_size(e.freed_bytes)} freed{kept}"


@_says(library.MirrorServing)
def _mirror_serving(e: library.MirrorServing) -> str:
    return f"mirror {e.mirror_id} serves weights at {e.url}"


@_says(library.MirrorRetired)
def _mirror_retired(e: library.MirrorRetired) -> str:
    return f"mirror {e.mirror_id}, last heard {e.said_at:%Y-%m-%d %H:%M} UTC, is asked for nothing any more"


# tenancy


@_says(tenancy.OrgDefined)
def _org_defined(e: tenancy.OrgDefined) -> str:
    return f"organisation {e.org} defined{_allows(e.spec.allowance)}"


@_says(tenancy.OrgRemoved)
def _org_removed(e: tenancy.OrgRemoved) -> str:
    return f"organisation {e.org} removed"


@_says(tenancy.TeamDefined)
def _team_defined(e: tenancy.TeamDefined) -> str:
    return f"team {e.team} defined{_allows(e.spec.allowance)}"


@_says(tenancy.TeamRemoved)
def _team_removed(e: tenancy.TeamRemoved) -> str:
    return f"team {e.team} removed"


@_says(tenancy.ProjectDefined)
def _project_defined(e: tenancy.ProjectDefined) -> str:
    return f"project {e.project} defined{_allows(e.spec.allowance)}"


@_says(tenancy.ProjectRemoved)
def _project_removed(e: tenancy.ProjectRemoved) -> str:
    return f"project {e.project} removed"


@_says(tenancy.KeyCreated)
def _key_created(e: tenancy.KeyCreated) -> str:
    named = f" {e.name!r}" if e.name else ""
    return f"key {e.key_id}{named} created for {e.project} as {', '.join(e.roles)}{_allows(e.allowance)}"


@_says(tenancy.KeyChanged)
def _key_changed(e: tenancy.KeyChanged) -> str:
    return f"key {e.key_id} changed{_allows(e.allowance)}"


@_says(tenancy.KeyRevoked)
def _key_revoked(e: tenancy.KeyRevoked) -> str:
    return f"key {e.key_id} revoked{_because(e.reason)}"


@_says(tenancy.KeyForgotten)
def _key_forgotten(e: tenancy.KeyForgotten) -> str:
    what = f"key {e.key_ids[0]}" if len(e.key_ids) == 1 else f"{len(e.key_ids)} keys"
    return f"{what} that ended long ago (kept until {e.day}) left the list"


@_says(tenancy.PriceDefined)
def _price_defined(e: tenancy.PriceDefined) -> str:
    what = "every other model" if e.model == "*" else e.model
    return (
        f"price of {what}: {e.price.prompt_micros} micros per 1,000 prompt tokens, "
        f"{e.price.completion_micros} per 1,000 completion tokens"
    )


# policies


@_says(policy.PolicyDefined)
def _policy_defined(e: policy.PolicyDefined) -> str:
    rules = [*(["secrets"] if e.spec.input.secrets else []), *sorted(e.spec.input.pii)]
    rules += [f"deny {rule.name}" for rule in e.spec.input.deny]
    scope = "for every request" if e.spec.default else "where it is named"
    verb = "enforces" if e.spec.mode == "enforce" else "observes"
    return f"policy {e.policy} {verb} {', '.join(rules) or 'nothing'} {scope}"


@_says(policy.PolicyRemoved)
def _policy_removed(e: policy.PolicyRemoved) -> str:
    return f"policy {e.policy} removed"


@_says(policy.VerdictBatch)
def _verdict_batch(e: policy.VerdictBatch) -> str:
    found = [finding for record in e.records for finding in record.findings]
    rules = ", ".join(sorted({f"{finding.rule} ({finding.action})" for finding in found}))
    refused = sum(not record.allow for record in e.records)
    return (
        f"guard {e.guard_id} judged {_count(len(e.records), 'request')}: {refused} refused"
        f"{f', found {rules}' if rules else ''}"
    )


# usage


@_says(usage.UsageBatch)
def _usage_batch(e: usage.UsageBatch) -> str:
    if len(e.records) == 1:
        one = e.records[0]
        how = "streamed" if one.stream else "answered"
        first = f", first token after {one.first_token_ms:.0f} ms" if one.first_token_ms is not None else ""
        if one.status == "ok":
            return (
                f"{one.model} {how} {one.request_id} for {one.project}: {one.prompt_tokens} prompt and "
                f"{one.completion_tokens} completion tokens in {_seconds(one.duration_ms)}{first}"
            )
        return (
            f"{one.request_id} for {one.project} ended as {one.status} (HTTP {one.http_status}) at {one.model_asked}: "
            f"{one.prompt_tokens} prompt and {one.completion_tokens} completion tokens"
        )
    ok = sum(one.status == "ok" for one in e.records)
    tokens = sum(one.completion_tokens for one in e.records)
    prompts = sum(one.prompt_tokens for one in e.records)
    return (
        f"gateway {e.gateway_id} finished {len(e.records)} requests, {ok} of them well: {prompts} prompt and "
        f"{tokens} completion tokens"
    )


# elections


def _elected(e: leadership.Elected) -> str:
    return f"{e.instance} leads {tag_of(e).partition('.')[0]} now"


for _election in leadership.ELECTIONS.values():
    _says(_election)(_elected)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _seconds(elapsed_ms: float) -> str:
    return f"{elapsed_ms / 1000:.1f} s" if elapsed_ms >= 100 else f"{elapsed_ms:.0f} ms"


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _allows(allowance: tenancy.Allowance) -> str:
    parts = []
    if allowance.models is not None:
        parts.append(f"only {', '.join(allowance.models) or 'no model'}")
    if allowance.rpm is not None:
        parts.append(f"{allowance.rpm} requests a minute")
    if allowance.tpm is not None:
        parts.append(f"{allowance.tpm} tokens a minute")
    if allowance.budgets:
        parts.append(f"a budget of {' and '.join(map(str, allowance.budgets))}")
    if allowance.policies:
        parts.append(f"under {', '.join(allowance.policies)}")
    return f" with {', '.join(parts)}" if parts else ""
