"""Guard policies: what of a request may go to an engine."""

from __future__ import annotations

import logging

from services.gateway.cluster.views import ApplicablePolicies
from services.gateway.core import faults
from services.gateway.core.request.policy_text import PolicyText

from .checks import Checks, fits
from .request import InferenceRequest

log = logging.getLogger("llmgw.gateway")


class PolicyEnforcement:
    """Puts requests to the guard, and does what it says."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    async def changes(self, request: InferenceRequest, policies: ApplicablePolicies) -> dict[str, bytes | None]:
        """The fields of the body the guard changes, as JSON; None: the field goes. Waits only where a policy enforces.

        Raises Fault: 400 where a policy refuses the request or cannot read it, 413 where it is too long to be judged,
        503 where it must be judged and was not.
        """
        try:
            return await self._changes(request, policies)
        except RecursionError:
            raise faults.too_deep() from None

    async def _changes(self, request: InferenceRequest, policies: ApplicablePolicies) -> dict[str, bytes | None]:
        if policies.missing:
            raise faults.no_such_policy(policies.missing[0])
        text = PolicyText(request.body)
        segments = text.segments()
        request_id, project = request.exchange.request_id, request.key.project
        if not policies.enforced:
            self._checks.observe(request_id, project, policies.names, segments)
            return {}
        if (field := text.unreadable) is not None:
            raise faults.not_judgeable(field)
        if not fits(segments):
            raise faults.too_long_to_judge()
        verdict = await self._checks.judge(request_id, project, policies.names, segments)
        if verdict is not None and not verdict.allow:
            raise faults.refused_by_policy(verdict.rule or "unnamed", verdict.policy)
        if verdict is not None:
            try:
                return text.edit(verdict.edits)
            except (LookupError, ValueError, TypeError) as error:
                log.error("an edit of the guard does not fit the request %s: %s", request_id, error)
        if policies.fail_closed:
            raise faults.not_judged()
        return {}
