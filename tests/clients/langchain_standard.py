"""LangChain: its standard integration tests of chat models and of embeddings, on langchain-openai."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from checks import BASE_URL, KEY, REAL, REAL_EMBEDDINGS, SIM, THINKS, told
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests


class Chat(ChatModelIntegrationTests):
    served = SIM
    more: dict[str, Any] = {}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        fixed = {"base_url": BASE_URL, "api_key": KEY, "max_retries": 0, "stream_usage": True}
        return {"model": self.served, **fixed, **self.more}

    @property
    def model_override_value(self) -> str:
        return THINKS

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestChat(Chat):
    """Chat, where the model is one that calls tools."""


class TestResponses(Chat):
    """The same through Responses."""

    more = {"use_responses_api": True}


class TestRealChat(Chat):
    """The real model is too small to call a tool because it was asked to, and rambles inside the JSON of a schema."""

    served = REAL
    more = {"max_tokens": 100, "temperature": 0}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False


class Vectors(EmbeddingsIntegrationTests):
    served = SIM

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        # LangChain sends tokens of OpenAI's own tokenizer unless it is told not to.
        return {"model": self.served, "base_url": BASE_URL, "api_key": KEY, "check_embedding_ctx_length": False}


class TestEmbeddings(Vectors):
    """Invented vectors."""


class TestRealEmbeddings(Vectors):
    """Real ones."""

    served = REAL_EMBEDDINGS


MODELS = {
    "TestChat": SIM,
    "TestResponses": SIM,
    "TestRealChat": REAL,
    "TestEmbeddings": SIM,
    "TestRealEmbeddings": REAL_EMBEDDINGS,
}


class Lines:
    """Prints each test as a check. One that is skipped asks for what no model here can do, such as images."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or (report.when != "call" and report.passed):
            return
        group, _, name = report.nodeid.partition("::")[2].partition("::")
        crash = getattr(report.longrepr, "reprcrash", None)
        last = (crash.message if crash else str(report.longrepr)).replace("\n", " ") if report.failed else ""
        told(f"{'responses: ' if group == 'TestResponses' else ''}{name}", MODELS[group], last)


if __name__ == "__main__":
    here = Path(__file__)
    options = ["-c", os.devnull, "--rootdir", str(here.parent), "-p", "no:cacheprovider", "-p", "no:terminal"]
    # langchain-openai keeps one client for all its models: one loop for all tests, or it meets a closed one.
    loops = ("asyncio_default_test_loop_scope=session", "asyncio_default_fixture_loop_scope=session")
    options += [part for option in ("asyncio_mode=auto", *loops) for part in ("-o", option)]
    options += ["--benchmark-disable", "--disable-socket", "--allow-hosts=127.0.0.1"]
    pytest.main([*options, str(here)], plugins=[Lines()])
