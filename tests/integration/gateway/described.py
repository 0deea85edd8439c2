"""Requests made from our own OpenAPI document, the right ones and the wrong ones, and what may be answered to them.

To make one takes twenty times as long as to answer it: they are made by processes of their own, one a core, in shares.
"""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

CHECKS = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
CASES_OF_A_SHARE = 200
"""Few enough that what hypothesis remembers of a share, so as not to make a case twice, slows it down little."""


class Share(NamedTuple):
    """Requests to one operation: ``document`` is the JSON of the OpenAPI document, ``url`` where it is served."""

    document: str
    url: str
    key: str
    method: str
    path: str
    seed: int
    cases: int


def shares(document: bytes, url: str, key: str, cases: int) -> Iterator[Share]:
    """``cases`` requests in all, the same number to every operation that takes a body; a few to the others."""
    operations = [
        (method, path, "requestBody" in operation)
        for path, methods in json.loads(document)["paths"].items()
        for method, operation in methods.items()
    ]
    left = math.ceil(cases / sum(takes_body for *_, takes_body in operations))
    number = 0
    while left > 0:
        size = min(left, CASES_OF_A_SHARE)
        for method, path, takes_body in operations:
            if takes_body or not number:
                yield Share(document.decode(), url, key, method, path, number, size)
        left -= size
        number += 1


def told(share: Share) -> int:
    """Send a share; the number of requests that was. Raises AssertionError for an answer the document does not know."""
    operation = _schema(share.document)[share.path][share.method.upper()]
    sent = 0

    @seed(share.seed)
    @settings(
        max_examples=share.cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in MODES)))
    def answered(case: schemathesis.Case) -> None:
        nonlocal sent
        if isinstance(case.body, dict) and not isinstance(case.body.get("model"), int | list | dict):
            case.body["model"] = "sim"
        headers = {"authorization": f"Bearer {share.key}"}
        response = case.call(base_url=share.url, session=_session(), headers=headers, timeout=20)
        sent += 1
        assert response.status_code != 500, (case.path, case.body, response.text)
        case.validate_response(response, checks=CHECKS)

    try:
        answered()
    except BaseException as error:
        # Those of schemathesis cannot be sent to another process.
        raise AssertionError(f"{share.method} {share.path}, seed {share.seed}: {error!r} {error}") from None
    return sent


def told_on_every_core(asked: Iterator[Share]) -> int:
    """Send all of them; how many requests that was. Raises what ``told`` raises."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(told, share) for share in asked]
        try:
            return sum(each.result() for each in waiting)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@functools.cache
def _schema(document: str) -> Any:
    return schemathesis.openapi.from_dict(json.loads(document))


@functools.cache
def _session() -> requests.Session:
    return requests.Session()
