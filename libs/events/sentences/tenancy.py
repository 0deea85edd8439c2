"""Sentences of organisations, teams, projects, keys, prices and policies."""

from __future__ import annotations

from libs.events import policy, tenancy

from .registry import says
from .words import because, count


@says(tenancy.OrgDefined)
def _org_defined(event: tenancy.OrgDefined) -> str:
    return f"organisation {event.org} defined{_allows(event.spec.allowance)}"


@says(tenancy.OrgRemoved)
def _org_removed(event: tenancy.OrgRemoved) -> str:
    return f"organisation {event.org} removed"


@says(tenancy.TeamDefined)
def _team_defined(event: tenancy.TeamDefined) -> str:
    return f"team {event.team} defined{_allows(event.spec.allowance)}"


@says(tenancy.TeamRemoved)
def _team_removed(event: tenancy.TeamRemoved) -> str:
    return f"team {event.team} removed"


@says(tenancy.ProjectDefined)
def _project_defined(event: tenancy.ProjectDefined) -> str:
    return f"project {event.project} defined{_allows(event.spec.allowance)}"


@says(tenancy.ProjectRemoved)
def _project_removed(event: tenancy.ProjectRemoved) -> str:
    return f"project {event.project} removed"


@says(tenancy.KeyCreated)
def _key_created(event: tenancy.KeyCreated) -> str:
    named = f" {event.name!r}" if event.name else ""
    return (
        f"key {event.key_id}{named} created for {event.project} as {', '.join(event.roles)}{_allows(event.allowance)}"
    )


@says(tenancy.KeyChanged)
def _key_changed(event: tenancy.KeyChanged) -> str:
    return f"key {event.key_id} changed{_allows(event.allowance)}"


@says(tenancy.KeyRevoked)
def _key_revoked(event: tenancy.KeyRevoked) -> str:
    return f"key {event.key_id} revoked{because(event.reason)}"


@says(tenancy.KeyForgotten)
def _key_forgotten(event: tenancy.KeyForgotten) -> str:
    what = f"key {event.key_ids[0]}" if len(event.key_ids) == 1 else f"{len(event.key_ids)} keys"
    return f"{what} that ended long ago (kept until {event.day}) left the list"


@says(tenancy.PriceDefined)
def _price_defined(event: tenancy.PriceDefined) -> str:
    what = "every other model" if event.model == "*" else event.model
    return (
        f"price of {what}: {event.price.prompt_micros} micros per 1,000 prompt tokens, "
        f"{event.price.completion_micros} per 1,000 completion tokens"
    )


@says(policy.PolicyDefined)
def _policy_defined(event: policy.PolicyDefined) -> str:
    rules = [*(["secrets"] if event.spec.input.secrets else []), *sorted(event.spec.input.pii)]
    rules += [f"deny {rule.name}" for rule in event.spec.input.deny]
    scope = "for every request" if event.spec.default else "where it is named"
    verb = "enforces" if event.spec.mode == "enforce" else "observes"
    return f"policy {event.policy} {verb} {', '.join(rules) or 'nothing'} {scope}"


@says(policy.PolicyRemoved)
def _policy_removed(event: policy.PolicyRemoved) -> str:
    return f"policy {event.policy} removed"


@says(policy.VerdictBatch)
def _verdict_batch(event: policy.VerdictBatch) -> str:
    found = [finding for record in event.records for finding in record.findings]
    rules = ", ".join(sorted({f"{finding.rule} ({finding.action})" for finding in found}))
    refused = sum(not record.allow for record in event.records)
    return (
        f"guard {event.guard_id} judged {count(len(event.records), 'request')}: {refused} refused"
        f"{f', found {rules}' if rules else ''}"
    )


def _allows(allowance: tenancy.Allowance) -> str:
    parts = []
    if allowance.models is not None:
        parts.append(f"only {', '.join(allowance.models) or 'no model'}")
    if allowance.rpm is not None:
        parts.append(f"{count(allowance.rpm, 'request')} a minute")
    if allowance.tpm is not None:
        parts.append(f"{count(allowance.tpm, 'token')} a minute")
    if allowance.budgets:
        parts.append(f"a budget of {' and '.join(map(str, allowance.budgets))}")
    if allowance.policies:
        parts.append(f"under {', '.join(allowance.policies)}")
    return f" with {', '.join(parts)}" if parts else ""
