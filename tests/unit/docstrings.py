"""Which public functions have no docstring, and which let an exception of ours out and do not name it.

    python -m tests.unit.docstrings            counts by folder
    python -m tests.unit.docstrings libs/fit   every finding below a folder

An exception comes out of a function where it is raised there, or in what is called by a name that the source alone
resolves (a function of the module or an imported one, a class, a method of ``self``), and no ``except`` around it holds
it. What other objects' methods raise is not seen. It is named in a sentence of the docstring that says ``Raises``.
A method is also documented where a base (a library's too) or a Protocol of ours that its class satisfies documents it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import pydoc
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("libs", "services", "cli", "bench")
PROTOCOL = "typing.Protocol"

Function = ast.FunctionDef | ast.AsyncFunctionDef
NO_NAMES: frozenset[str] = frozenset()
UNNAMED = (AssertionError, NotImplementedError, StopIteration, StopAsyncIteration)
"""Built-in exceptions no docstring needs to name."""


@dataclass
class Module:
    """A module's own names: what it defines, and where what it imports is defined."""

    name: str
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)
    """Name in this module to full name."""


@dataclass(frozen=True)
class Definition:
    """A function or method: ``owner`` is the full name of its class, empty for a function of a module."""

    name: str
    module: str
    owner: str
    node: Function

    @property
    def public(self) -> bool:
        parts = self.name.removeprefix(self.module + ".").split(".")
        return not any(part.startswith("_") and part != "__init__" for part in parts)


class Source:
    """All modules below the packages, with what each of their functions lets out."""

    def __init__(self, root: Path = ROOT) -> None:
        self.modules: dict[str, Module] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.definitions: dict[str, Definition] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                self._add(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path, parts[-1] == "__init__")

    def _add(self, name: str, path: Path, is_package: bool) -> None:
        tree = ast.parse(path.read_text())
        module = self.modules[name] = Module(name, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    module.names[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                base = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    module.names[alias.asname or alias.name] = f"{origin}.{alias.name}"
        for statement in tree.body:
            if isinstance(statement, Function):
                module.names[statement.name] = f"{name}.{statement.name}"
                self.definitions[f"{name}.{statement.name}"] = Definition(
                    f"{name}.{statement.name}", name, "", statement
                )
            elif isinstance(statement, ast.ClassDef):
                owner = f"{name}.{statement.name}"
                module.names[statement.name] = owner
                self.classes[owner] = statement
                for inner in statement.body:
                    if isinstance(inner, Function):
                        full = f"{owner}.{inner.name}"
                        self.definitions.setdefault(full, Definition(full, name, owner, inner))

    def resolve(self, module: str, node: ast.expr) -> str:
        """The full name an expression of names and dots means; empty: not known."""
        if isinstance(node, ast.Name):
            return self._follow(self.modules[module].names.get(node.id, ""))
        if isinstance(node, ast.Attribute):
            base = self.resolve(module, node.value)
            return self._follow(f"{base}.{node.attr}") if base else ""
        return ""

    def _follow(self, name: str) -> str:
        """Through the re-exports of packages to where a name is defined."""
        for _ in range(8):
            if not name or name in self.definitions or name in self.classes or name in self.modules:
                return name
            module, _, last = name.rpartition(".")
            known = self.modules.get(module)
            if known is None or known.names.get(last, name) == name:
                return name
            name = known.names[last]
        return name

    def bases(self, name: str) -> list[str]:
        """A class and all its bases by their full names, built-in ones by their own, nearest first."""
        found, queue = [], [name]
        while queue:
            at = queue.pop(0)
            if at in found:
                continue
            found.append(at)
            if at in self.classes:
                module = at.rpartition(".")[0]
                for base in self.classes[at].bases:
                    inner = base.value if isinstance(base, ast.Subscript) else base
                    queue.append(self.resolve(module, inner) or (inner.id if isinstance(inner, ast.Name) else ""))
            elif isinstance(kind := getattr(builtins, at, None), type):
                queue += [base.__name__ for base in kind.__bases__]
        return [one for one in found if one]

    @cached_property
    def exceptions(self) -> frozenset[str]:
        """Full names of the exceptions the packages define."""
        return frozenset(name for name in self.classes if "BaseException" in self.bases(name))

    def method(self, owner: str, name: str) -> str:
        """Where a class or a base of it defines a method; empty: nowhere here."""
        for base in self.bases(owner):
            if f"{base}.{name}" in self.definitions:
                return f"{base}.{name}"
        return ""

    def members(self, owner: str) -> frozenset[str]:
        """Names of the methods and fields a class and its bases define, but for those that begin with ``_``."""
        found: set[str] = set()
        for base in self.bases(owner):
            for inner in self.classes[base].body if base in self.classes else ():
                if isinstance(inner, Function):
                    found.add(inner.name)
                elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    found.add(inner.target.id)
        return frozenset(name for name in found if not name.startswith("_"))

    @cached_property
    def protocols(self) -> Mapping[str, frozenset[str]]:
        """Protocols of ours and the methods whoever satisfies one must have; those with one method are too many's."""
        out = {}
        for name in self.classes:
            if PROTOCOL in self.bases(name):
                methods = {one for one in self.members(name) if self.method(name, one)}
                if len(methods) > 1:
                    out[name] = frozenset(methods)
        return out

    @cached_property
    def satisfied(self) -> Mapping[str, tuple[str, ...]]:
        """Each class's Protocols of ours, declared or not."""
        members = {name: self.members(name) for name in self.classes}
        return {
            name: tuple(protocol for protocol, methods in self.protocols.items() if methods <= members[name])
            for name in self.classes
        }

    @cached_property
    def raised(self) -> Mapping[str, frozenset[str]]:
        """For every function the exceptions of ours that come out of it."""
        out: dict[str, frozenset[str]] = dict.fromkeys(self.definitions, NO_NAMES)
        changed = True
        while changed:
            changed = False
            for name, definition in self.definitions.items():
                new = frozenset(_Escapes(self, definition, out).of(definition.node.body, NO_NAMES))
                if new != out[name]:
                    out[name], changed = new, True
        return out

    def documented(self, definition: Definition) -> str:
        """Docstrings that speak of a function: its own, those of methods it overrides or that a Protocol asks for, its
        class's for __init__."""
        texts = [ast.get_docstring(definition.node) or ""]
        if definition.owner:
            for base in (*self.bases(definition.owner), *self.satisfied[definition.owner]):
                if (overridden := self.definitions.get(f"{base}.{definition.node.name}")) is not None:
                    texts.append(ast.get_docstring(overridden.node) or "")
                elif base not in self.classes:
                    texts.append(inspect.getdoc(getattr(pydoc.locate(base), definition.node.name, None)) or "")
            of_class = ast.get_docstring(self.classes[definition.owner]) or ""
            texts += re.findall(r"Every method raises[^.]*\.", of_class)
            if definition.node.name == "__init__":
                texts.append(of_class)
        return "\n".join(texts)

    def bare(self, definition: Definition) -> bool:
        """Whether nothing speaks of it. Of ``__init__`` its class does."""
        return definition.node.name != "__init__" and not self.documented(definition).strip()

    def unsaid(self, definition: Definition) -> list[str]:
        """Exceptions a function lets out of which neither it nor a base of theirs is named after ``Raises``."""
        said = set()
        for sentence in re.findall(r"\b[Rr]aises?\b(.*?)(?:\.\s|\.?$|\n\n)", self.documented(definition), re.DOTALL):
            said |= set(re.findall(r"\w+", sentence))
        out = []
        for name in sorted(self.raised[definition.name]):
            if not said & {base.rpartition(".")[2] for base in self.bases(name)}:
                out.append(name.rpartition(".")[2])
        return out


class _Escapes:
    """The exceptions of ours that leave a function's body."""

    def __init__(
        self,
        source: Source,
        definition: Definition,
        known: Mapping[str, frozenset[str]],
        thrown: frozenset[str] = NO_NAMES,
    ) -> None:
        """``known``: what comes out of other functions. ``thrown``: what is thrown in at a ``yield``."""
        self._source = source
        self._definition = definition
        self._known = known
        self._thrown = thrown

    def of(self, body: Iterable[ast.AST], handled: frozenset[str]) -> Iterator[str]:
        """``handled``: what a bare ``raise`` raises here."""
        for node in body:
            yield from self._node(node, handled)

    def _node(self, node: ast.AST, handled: frozenset[str]) -> Iterator[str]:
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            return
        if isinstance(node, ast.Try):
            yield from self._try(node, handled)
            return
        if isinstance(node, ast.With | ast.AsyncWith):
            inside = frozenset(self.of(node.body, handled))
            for item in reversed(node.items):
                inside = self._through(item.context_expr, inside)
                yield from self._node(item.context_expr, handled)
            yield from inside
            return
        if isinstance(node, ast.Raise):
            if node.exc is None:
                yield from handled
            else:
                kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                name = self._kind(kind)
                if name in self._source.exceptions or self._is_built_in(name):
                    yield name
        elif isinstance(node, ast.Call):
            yield from self._known.get(self._called(node), NO_NAMES) & self._source.exceptions
        elif isinstance(node, ast.Yield):
            yield from self._thrown
        yield from self.of(ast.iter_child_nodes(node), handled)

    def _through(self, manager: ast.expr, inside: frozenset[str]) -> frozenset[str]:
        """What is left of exceptions raised inside a ``with`` statement behind its context manager."""
        if not isinstance(manager, ast.Call):
            return inside
        called = self._called(manager) or self._method_of_part(manager.func)
        if called == "contextlib.suppress":
            kinds = {self._kind(kind) for kind in manager.args}
            return frozenset(name for name in inside if not kinds & set(self._source.bases(name)))
        definition = self._source.definitions.get(called)
        if definition is None or not any(isinstance(node, ast.Yield) for node in ast.walk(definition.node)):
            return inside
        behind = _Escapes(self._source, definition, self._known, inside).of(definition.node.body, NO_NAMES)
        return frozenset(behind) & (self._source.exceptions | inside)

    def _method_of_part(self, function: ast.expr) -> str:
        """Where ``self._part.method`` is defined, if ``__init__`` takes the part and says its class; empty: unknown."""
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Attribute):
            return ""
        name, owner = function.value.attr.removeprefix("_"), self._definition.owner
        init = self._source.definitions.get(f"{owner}.__init__")
        for argument in init.node.args.args if init is not None else ():
            if argument.arg == name and argument.annotation is not None:
                return self._source.method(self._name(argument.annotation), function.attr)
        return ""

    def _try(self, node: ast.Try, handled: frozenset[str]) -> Iterator[str]:
        inside = set(self.of(node.body, handled))
        for handler in node.handlers:
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            kinds = {"BaseException" if kind is None else self._kind(kind) for kind in types}
            caught = {name for name in inside if kinds & set(self._source.bases(name))}
            inside -= caught
            yield from self.of(handler.body, frozenset(caught))
        yield from inside
        yield from self.of([*node.orelse, *node.finalbody], handled)

    def _called(self, node: ast.Call) -> str:
        """Full name of the function a call runs, a class's ``__init__`` included; empty: not known."""
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
            return self._source.method(self._definition.owner, function.attr) if self._definition.owner else ""
        called = self._name(function)
        if called in self._source.classes:
            return self._source.method(called, "__init__")
        return called

    def _name(self, node: ast.expr) -> str:
        return self._source.resolve(self._definition.module, node)

    def _is_built_in(self, name: str) -> bool:
        kind = getattr(builtins, name, None)
        return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UNNAMED)

    def _kind(self, node: ast.expr) -> str:
        return self._name(node) or (node.id if isinstance(node, ast.Name) else "")


def room_of(module: str) -> str:
    """The folder a module's findings are counted under."""
    parts = module.split(".")
    return "/".join(parts[:2]) if parts[0] in ("libs", "services") else parts[0]


def main() -> None:
    """Print the counts, or what there is below a folder."""
    source = Source()
    below = sys.argv[1].strip("/").replace("/", ".") if len(sys.argv) > 1 else ""
    counts: dict[str, Counter[str]] = {}
    for name, definition in sorted(source.definitions.items()):
        if not definition.public:
            continue
        here = counts.setdefault(room_of(definition.module), Counter())
        init = definition.node.name == "__init__"
        bare = source.bare(definition)
        unsaid = source.unsaid(definition)
        here.update(functions=not init, bare=bare, raising=bool(source.raised[name]), unsaid=bool(unsaid))
        if below and f"{definition.module}.".startswith(f"{below}."):
            where = f"{definition.module.replace('.', '/')}.py:{definition.node.lineno}"
            line = f"{where} {name.removeprefix(f'{definition.module}.')}"
            if bare:
                print(f"{line}: no docstring")
            if unsaid:
                print(f"{line}: does not say Raises {', '.join(unsaid)}")
    if not below:
        print(f"{'':24}functions  no docstring  raising  unsaid")
        total: Counter[str] = Counter()
        for room, here in sorted(counts.items()):
            total += here
            print(f"{room:24}{here['functions']:9}{here['bare']:14}{here['raising']:9}{here['unsaid']:8}")
        print(f"{'all':24}{total['functions']:9}{total['bare']:14}{total['raising']:9}{total['unsaid']:8}")


if __name__ == "__main__":
    main()
