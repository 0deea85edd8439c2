"""Sentences of models, their replicas and the shards of those."""

from __future__ import annotations

from libs.events import model, replica, shard
from libs.events.times import rfc3339

from .registry import says
from .words import because, count, seconds, size


@says(model.ModelDefined)
def _model_defined(event: model.ModelDefined) -> str:
    engines = ", ".join(dict.fromkeys(profile.engine for profile in event.spec.profiles))
    weights = f" with weights {event.spec.source}" if event.spec.source else ""
    wanted = count(event.spec.scaling.min, "replica")
    return f"model {event.model} defined: {wanted} on {engines}{weights}, definition {event.fingerprint}"


@says(model.ModelScaled)
def _model_scaled(event: model.ModelScaled) -> str:
    least, most = event.scaling.min, event.scaling.max
    wanted = f"{least}" if most in (None, least) else f"{least} to {most}"
    return f"model {event.model} scaled: {wanted} {'replica' if wanted == '1' else 'replicas'} wanted"


@says(model.ModelRemoved)
def _model_removed(event: model.ModelRemoved) -> str:
    return f"model {event.model} removed"


@says(model.ModelUnplaced)
def _model_unplaced(event: model.ModelUnplaced) -> str:
    why = event.explanation.summary or f"see `llmgw explain {event.model}`"
    return f"one more replica of {event.model} is wanted and fits nowhere: {why}"


@says(model.ModelParked)
def _model_parked(event: model.ModelParked) -> str:
    failures = count(event.failures, "failure")
    return f"model {event.model} is parked after {failures} in a row, no more starts are tried: {event.reason}"


@says(model.ModelUnparked)
def _model_unparked(event: model.ModelUnparked) -> str:
    return f"model {event.model} is tried again"


@says(replica.ReplicaPlaced)
def _replica_placed(event: replica.ReplicaPlaced) -> str:
    machines = ", ".join(dict.fromkeys(shard.machine_id for shard in event.shards))
    where = event.explanation.summary or f"{machines} with the profile {event.profile}"
    why = f" ({event.reason})" if event.reason else ""
    return f"replica {event.replica_id} of {event.model} placed on {where}{why}"


@says(replica.ReplicaReady)
def _replica_ready(event: replica.ReplicaReady) -> str:
    return f"replica {event.replica_id} of {event.model} serves at {event.url}"


@says(replica.ReplicaFailed)
def _replica_failed(event: replica.ReplicaFailed) -> str:
    again = f"; the next try is at {rfc3339(event.retry_at)}" if event.retry_at else "; another is placed at once"
    return (
        f"replica {event.replica_id} of {event.model} failed (number {event.failures} in a row): {event.reason}{again}"
    )


@says(replica.ReplicaDraining)
def _replica_draining(event: replica.ReplicaDraining) -> str:
    return f"replica {event.replica_id} of {event.model} takes no new requests: {event.reason}"


@says(replica.ReplicaStopping)
def _replica_stopping(event: replica.ReplicaStopping) -> str:
    return f"replica {event.replica_id} of {event.model} is told to stop: {event.reason}"


@says(replica.ReplicaLost)
def _replica_lost(event: replica.ReplicaLost) -> str:
    return (
        f"another is to take the place of replica {event.replica_id} of {event.model}: node {event.machine_id} is lost"
    )


@says(replica.ReplicaMeasured)
def _replica_measured(event: replica.ReplicaMeasured) -> str:
    figures = f"{event.tokens_per_s:.0f} tokens a second, {event.estimated_tokens_per_s:.0f} were estimated"
    measured = count(event.requests, "request")
    return f"replica {event.replica_id} of {event.model} answers one request with {figures} ({measured})"


@says(replica.ReplicaRecovered)
def _replica_recovered(event: replica.ReplicaRecovered) -> str:
    return f"replica {event.replica_id} of {event.model} is back and serves at {event.url}"


@says(replica.ReplicaStopped)
def _replica_stopped(event: replica.ReplicaStopped) -> str:
    return f"replica {event.replica_id} of {event.model} is stopped{because(event.reason)}"


@says(model.ModelStopped)
def _model_stopped(event: model.ModelStopped) -> str:
    return f"model {event.model} is stopped by an administrator{because(event.reason)}"


@says(model.ModelStarted)
def _model_started(event: model.ModelStarted) -> str:
    return f"model {event.model} is started again"


@says(model.ModelRestarted)
def _model_restarted(event: model.ModelRestarted) -> str:
    how = "each is stopped before its successor starts" if event.in_place else "one by one, the new one ready first"
    return f"replicas of {event.model} are replaced, {how}{because(event.reason)}"


@says(model.ModelWoken)
def _model_woken(event: model.ModelWoken) -> str:
    return f"model {event.model} is asked for and wanted now"


@says(model.ModelSlept)
def _model_slept(event: model.ModelSlept) -> str:
    return f"model {event.model} goes to sleep: {event.reason}"


@says(model.ModelAutoscaled)
def _model_autoscaled(event: model.ModelAutoscaled) -> str:
    return f"model {event.model} scales from {event.before} to {count(event.replicas, 'replica')}: {event.reason}"


@says(model.ModelPromoted)
def _model_promoted(event: model.ModelPromoted) -> str:
    return f"the definition {event.fingerprint} of {event.model} passed its trial: {event.reason}"


@says(model.ModelRolledBack)
def _model_rolled_back(event: model.ModelRolledBack) -> str:
    return f"the definition {event.fingerprint} of {event.model} is dropped: {event.reason}"


@says(shard.ShardStarting)
def _shard_starting(event: shard.ShardStarting) -> str:
    return f"{event.machine_id} starts {event.engine} for {event.model} (shard {event.shard_id})"


@says(shard.ShardLoading)
def _shard_loading(event: shard.ShardLoading) -> str:
    fetched = f"{size(event.fetched_bytes)} of weights fetched" if event.fetched_bytes else "weights were here"
    return f"{event.machine_id} loads {event.model}: {fetched} and checked, engine process {event.pid} runs"


@says(shard.ShardReady)
def _shard_ready(event: shard.ShardReady) -> str:
    engine = f" ({event.engine} {event.engine_version})".replace(" )", ")") if event.engine else ""
    layers = f", {event.gpu_layers} of its {event.layers} layers on GPUs" if event.gpu_layers and event.layers else ""
    after = seconds(event.loaded_ms)
    return f"{event.machine_id} has {event.model} ready after {after} at {event.url}{engine}{layers}"


@says(shard.ShardAdopted)
def _shard_adopted(event: shard.ShardAdopted) -> str:
    return f"{event.machine_id} found {event.model} still running (process {event.pid}) and took it over"


@says(shard.ShardFailed)
def _shard_failed(event: shard.ShardFailed) -> str:
    code = f", exit status {event.exit_code}" if event.exit_code is not None else ""
    return (
        f"{event.machine_id} could not run {event.model} (shard {event.shard_id}, while {event.phase}{code}): "
        f"{event.reason}"
    )


@says(shard.ShardStopped)
def _shard_stopped(event: shard.ShardStopped) -> str:
    return f"{event.machine_id} stopped {event.model} (shard {event.shard_id}){because(event.reason)}"
