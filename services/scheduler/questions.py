"""Questions, answered from this instance's own state, whether it leads or stands by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from libs.bus import Authority
from libs.events import Question, decode
from libs.events.commands import DefineModel
from libs.events.questions import (
    Examined,
    ExamineScheduler,
    ExplainModel,
    ListModels,
    ListNodes,
    ModelExplained,
    ModelsAnswer,
    NodesAnswer,
    SchedulerState,
    StateAnswer,
)

from .adapters.listener import Listener
from .core.commands.decide import model_named
from .core.placement.memory_fit import problems_of_headers
from .core.reconciler.silence import why_paused
from .core.state.facts import Model
from .core.state.state import State
from .core.views.history import explain
from .core.views.model_views import model_view, with_progress
from .core.views.node_views import node_view, racks


class Questions:
    """Reads only."""

    def __init__(self, authority: Authority[State], listener: Listener) -> None:
        self._authority = authority
        self._listener = listener

    def handlers(self) -> Mapping[type[Question], Callable[[Any], Awaitable[Any]]]:
        """Kind of question to who answers it."""
        return {
            ExamineScheduler: self.examine,
            ExplainModel: self.explain,
            ListNodes: self.nodes,
            ListModels: self.models,
            SchedulerState: self.state,
        }

    async def examine(self, question: ExamineScheduler) -> Examined:
        """What would become of a command, with what the weights' headers in the question say of it.

        Raises BadPayload and UnknownTag for a command that cannot be read.
        """
        examined = self._authority.examine(question)
        if question.headers is None or examined.unchanged:
            return examined
        command = decode(question.command.encode())
        if not isinstance(command, DefineModel):
            return examined
        found = problems_of_headers(self._authority.state, command.spec, examined.problems, question.headers)
        return msgspec.structs.replace(examined, problems=(*examined.problems, *found))

    async def explain(self, question: ExplainModel) -> ModelExplained:
        """Raises Refused when there is no such model."""
        state = self._authority.state
        model = _by_alias(state, question.model) or model_named(state, question.model)
        return explain(state, model, self._listener.heartbeats(state.facts.machines))

    async def nodes(self, question: ListNodes) -> NodesAnswer:
        """All machines, by id."""
        state = self._authority.state
        return NodesAnswer(
            nodes=tuple(node_view(state, machine) for _, machine in sorted(state.facts.machines.items()))
        )

    async def models(self, question: ListModels) -> ModelsAnswer:
        """All models that are not removed, by name, with how far each start is."""
        state = self._authority.state
        models = [model for _, model in sorted(state.facts.models.items()) if not model.removed]
        heartbeats = self._listener.heartbeats(state.facts.machines)
        return ModelsAnswer(
            models=tuple(with_progress(model_view(state, model), heartbeats) for model in models),
            specs=tuple(model.declared for model in models),
        )

    async def state(self, question: SchedulerState) -> StateAnswer:
        """How far this instance is, and what concerns the whole system."""
        state = self._authority.state
        return StateAnswer(
            position=state.position,
            hash=state.hash(),
            leader=self._authority.leading,
            instance=self._authority.instance,
            stopped=state.facts.stopped,
            paused=why_paused(state),
            racks=racks(state),
        )


def _by_alias(state: State, name: str) -> Model | None:
    return next((m for m in state.facts.models.values() if not m.removed and name in m.spec.aliases), None)
