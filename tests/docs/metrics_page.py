"""``docs/metrics.md``: every metric the services register."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

import libs
import services

from .table import cell, code, table

HEAD = """# Metrics

What each service answers under `/metrics` at its status port (`status_host`, `status_port` in [settings](settings.md);
0, the default, opens none; `llmgw up` gives every part one). This page is generated from the registered metrics by
`make docs`; a test fails when it is out of date. Which of them to watch, and when to be woken, is in
[operate](operate.md#monitoring).

Prometheus' own client adds `python_…` and `process_…` for each process (not for the gateway, whose figures are the sum
over its workers). A counter's name ends in `_total`; a histogram `X` is there as `X_bucket`, `X_sum` and `X_count`.
"""
ALL = "Every service"


def modules() -> Iterator[str]:
    """Every module of the libraries that services run, and of the services."""
    for package in (libs, services):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("libs.testing") and not module.name.endswith("__main__"):
                yield module.name


def metrics() -> dict[str, tuple[str, MetricWrapperBase]]:
    """Name to where it is measured (a service's name, or all of them) and the metric."""
    found: dict[str, tuple[str, MetricWrapperBase]] = {}
    for name in modules():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:  # the launchers run in an engine's own environment
            continue
        for value in vars(module).values():
            if isinstance(value, MetricWrapperBase):
                where = name.split(".")[1] if name.startswith("services.") else ALL
                metric = next(iter(value.describe()))
                kept = found.get(metric.name)
                if kept is None or (kept[0] != ALL and where == ALL):
                    found[metric.name] = (where, value)
    return found


def registered() -> set[str]:
    """Names of llmgw's metrics that prometheus_client knows."""
    modules_are_imported = metrics()
    return {
        family.name
        for family in REGISTRY.collect()
        if family.name.startswith("llmgw_") or family.name in modules_are_imported
    }


def page() -> str:
    """The whole page."""
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    for name, (where, metric) in sorted(metrics().items()):
        family = next(iter(metric.describe()))
        shown = f"{name}_total" if family.type == "counter" else name
        labels = ", ".join(code(label) for label in metric._labelnames)
        sections.setdefault(where, []).append((code(shown), family.type, labels, cell(family.documentation)))
    lines = [HEAD]
    for where in sorted(sections, key=lambda name: (name != ALL, name)):
        lines += [f"## {where}", "", *table(("metric", "type", "labels", "meaning"), sections[where])]
    return "\n".join(lines).rstrip() + "\n"
