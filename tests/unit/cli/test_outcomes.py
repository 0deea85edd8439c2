"""What is said of a command that was refused."""

from __future__ import annotations

from cli.cluster import outcome_words, refusal_words
from libs.events.commands import Outcome, Problem
from libs.events.refusal import Refused


def test_a_name_nothing_has_is_said_once_and_without_its_field_on_the_wire() -> None:
    problems = (Problem(path="spec.org", message="there is no organisation 'nope'"),)

    assert outcome_words(refused(problems)) == "there is no organisation 'nope'"


def test_what_is_wrong_with_a_field_is_said_with_its_path() -> None:
    problems = (Problem(path="scaling.min", message="-1 replicas: state 0 to 9"),)

    assert outcome_words(refused(problems)) == "scaling.min: -1 replicas: state 0 to 9"


def refused(problems: tuple[Problem, ...]) -> Outcome:
    return Outcome(command_id="c-1", status="refused", message=str(Refused(problems)), problems=problems)


def test_a_question_about_what_there_is_not_is_answered_without_a_field() -> None:
    assert refusal_words("model: there is no model 'nope'") == "there is no model 'nope'"
