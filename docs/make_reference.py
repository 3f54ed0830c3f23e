"""Write docs/reference.md from the docstrings of the public names.

    python docs/make_reference.py

A test compares the page with what this would write.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Generic

import banyankv
import msgspec
from banyankv import asyncio, testing, threads
from banyankv.components.contract import TreeComponent
from banyankv.components.policies import EvictionView
from banyankv.runtime.messages import EvictReport, Peeked
from banyankv.telemetry import CATALOGUE
from banyankv.tiers.messages import PoolUsage
from banyankv.tiers.store.messages import StoreTierStatistics
from banyankv.tiers.store.protocol import Store, StoreStatistics

PAGE = Path(__file__).parent / "reference.md"

_SECTIONS = {
    "Opening a cache": ("open_cache", "Cache", "Lease"),
    "Configuration": ("CacheConfig", "StoreConfig"),
    "Models": ("ModelSpec", "PagedSpec", "SnapshotSpec", "StateTensor", "Namespace", "Tier"),
    "Answers": ("CacheStats", "HitTokens", "Verdict"),
    "Parts of your own": (),
    "Telemetry": ("Telemetry", "configure_telemetry"),
    "Errors": (
        "BanyanError",
        "ConfigError",
        "NoCapacity",
        "DeadlineExceeded",
        "StaleLease",
        "LeaseInUse",
        "TicketCancelled",
        "TierUnavailable",
        "IntegrityError",
        "Closed",
        "ActorCrashed",
        "ActorStopped",
        "MailboxFull",
        "Reentry",
        "WouldWait",
        "WrongHost",
    ),
    "Warnings": ("StoreSetAside", "StoreNotKept"),
}
_FURTHER = {
    "Answers": (Peeked, EvictReport, PoolUsage, StoreTierStatistics),
    "Parts of your own": (Store, StoreStatistics, EvictionView, TreeComponent),
}
"""What public calls answer, or take, without being a name at the top."""

_OPENING = {
    "Parts of your own": "What `open_cache` takes: a store as `store=`, a function of an `EvictionView` as "
    "`policy=`, and subclasses of `TreeComponent` by the name of their rule as `rules=`. A policy "
    "answers any ordered key; the smallest goes first, and a key may rise over time but never fall.",
}
"""What stands below a section's title."""

_MADE = {"Telemetry", "FaultyStore", "MemoryStore", "SeededFaults", "SimulatedDevice"}
"""Classes that are made by a call, whose arguments are shown."""

_INTERNAL = {
    "leave",
    "through",
    "begin",
    "fact",
    "finish",
    "hop",
    "register_metrics",
} | {
    "call",
    "extending",
    "give_back",
    "leaving",
    "left",
    "publishing",
    "settle_call",
    "stream",
    "wait_out",
}
"""Methods that `Cache` and `Lease` have for each other, and `Telemetry` for a cache."""


_WIDTH = 96


def make_reference() -> str:
    """Return the whole page."""
    listed = {name for names in _SECTIONS.values() for name in names}
    if listed != set(banyankv.__all__):
        raise SystemExit(f"names without a section: {listed ^ set(banyankv.__all__)}")
    lines = [
        "# Reference",
        "",
        "Written by `docs/make_reference.py` from the docstrings; change those.",
    ]
    for title, names in _SECTIONS.items():
        lines += ["", f"## {title}"]
        lines += ["", _OPENING[title]] if title in _OPENING else []
        for thing in (*(getattr(banyankv, name) for name in names), *_FURTHER.get(title, ())):
            lines += ["", *_describe(thing)]
    for title, module in (("asyncio", asyncio), ("Threads", threads), ("Testing", testing)):
        lines += ["", f"## {title}", "", *_prose(module)]
        for name in module.__all__:
            lines += ["", *_describe(getattr(module, name))]
    lines += ["", "## Metrics", "", *_metrics()]
    return "\n".join(lines) + "\n"


def _prose(module: ModuleType) -> Iterator[str]:
    name = f"{banyankv.__name__}.{module.__name__.rpartition('.')[2]}"
    yield f"`{name}`: {_doc(module)}"


def _describe(thing: type | Callable[..., object]) -> Iterator[str]:
    name = thing.__name__
    if not inspect.isclass(thing):
        yield f"### `{name}`"
        yield from ("", *_code(_signature(thing)), "", _doc(thing))
        return
    base = (
        ""
        if thing.__base__ in (object, msgspec.Struct, Generic, None)
        else f"({thing.__base__.__name__})"
    )
    yield f"### `{name}{base}`"
    yield from ("", _doc(thing))
    if name in _MADE:
        made = _signature(vars(thing)["__init__"])
        made = made.removesuffix(" -> None").replace("def __init__", name, 1)
        yield from ("", *_code(made))
    if thing.__module__.startswith(("banyankv.tiers.store.protocol", "banyankv.components")):
        module = thing.__module__
        module = "banyankv.tiers.store" if name == "Store" else module
        yield from ("", *_code(f"from {module} import {name}"))
    fields = _fields(thing)
    if fields:
        yield from ("", *_code(fields))
    attributes = _attributes(thing)
    if attributes:
        yield ""
        yield from (f"- `.{attribute}`: {text}" for attribute, text in attributes)
    for method_name, method in vars(thing).items():
        if method_name.startswith("_") or method_name in _INTERNAL:
            continue
        if isinstance(method, property):
            yield from ("", f"**`.{method_name}`** {_doc(method)}")
        elif inspect.isfunction(method):
            yield from ("", *_code(_signature(method)), "", _doc(method))


def _code(text: str) -> tuple[str, str, str]:
    return "```python", text, "```"


def _doc(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def _signature(function: Callable[..., object]) -> str:
    """Write a function's head as its source has it, without `self`."""
    function = inspect.unwrap(function)
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        raise TypeError(f"{function!r} is no function")
    start = "async def" if isinstance(definition, ast.AsyncFunctionDef) else "def"
    answer = "" if definition.returns is None else f" -> {ast.unparse(definition.returns)}"
    if any(ast.unparse(each) == "blocking" for each in definition.decorator_list):
        answer = re.sub(r"^ -> Ticket\[(.+)\]$", r" -> \1", answer)  # that is what `submit` answers
    context = re.fullmatch(r" -> AsyncGenerator\[(\w+), None\]", answer)
    if context is not None:
        start, answer = "def", f" -> AsyncContextManager[{context[1]}]"
    arguments = [ast.unparse(argument) for argument in _arguments(definition)]
    head = f"{start} {definition.name}({', '.join(arguments)}){answer}"
    if len(head) > _WIDTH:
        lines = "".join(f"    {argument},\n" for argument in arguments)
        head = f"{start} {definition.name}(\n{lines}){answer}"
    return _plain(head)


def _plain(code: str) -> str:
    """Drop the short names of message modules from annotations; quote as everywhere here."""
    return re.sub(r"\b[mt]\.(?=[A-Z])", "", code).replace("'", '"')


def _arguments(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Split a head's arguments, each with its default."""
    given = definition.args
    plain = [argument for argument in given.args if argument.arg != "self"]
    gap = len(plain) - len(given.defaults)
    for index, argument in enumerate(plain):
        yield _with_default(argument, given.defaults[index - gap] if index >= gap else None)
    if given.vararg is not None:
        yield ast.Name(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        yield ast.Name("*")
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _with_default(argument, default)
    if given.kwarg is not None:
        yield ast.Name(f"**{ast.unparse(given.kwarg)}")


def _with_default(argument: ast.arg, default: ast.expr | None) -> ast.AST:
    text = ast.unparse(argument)
    return ast.Name(text if default is None else f"{text} = {ast.unparse(default)}")


def _fields(thing: type) -> str:
    """List a struct's fields as its source has them."""
    if not issubclass(thing, msgspec.Struct):
        return ""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    if not isinstance(definition, ast.ClassDef):
        raise TypeError(f"{thing!r} is no class")
    fields = [line for line in definition.body if isinstance(line, ast.AnnAssign)]
    return _plain("\n".join(ast.unparse(line) for line in fields))


def _attributes(thing: type) -> list[tuple[str, str]]:
    """List the public attributes that `__init__` sets and describes."""
    initial = vars(thing).get("__init__")
    if not inspect.isfunction(initial):
        return []
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(initial))).body
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"{initial!r} is no function")
    found: list[tuple[str, str]] = []
    for line, following in zip(definition.body, definition.body[1:], strict=False):
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))) if isinstance(target, ast.Attribute):
                if not target.attr.startswith("_"):
                    found.append((target.attr, " ".join(text.split())))
    return found


def _metrics() -> Iterator[str]:
    yield "| name | kind | unit | labels | what |"
    yield "|---|---|---|---|---|"
    yield "| `banyankv.acquire.duration` | histogram | s |  | Time from acquire to lease |"
    for metric in CATALOGUE.values():
        labels = ", ".join(sorted(metric.labels))
        yield (
            f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} "
            f"| {metric.description} |"
        )


if __name__ == "__main__":
    PAGE.write_text(make_reference())
