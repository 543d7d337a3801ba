"""The house stays small enough for one head: its size, its names, and imports that run one way."""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
LINES = {"fairbits": 51_800, "fairbits_research": 13_600}
FILES = {"fairbits": 306}
"""The limits of CONTRIBUTING.md, which says what each rise was for."""
VAGUE = {"each", "found", "own", "said", "given", "made", "known", "told", "came", "beside"}
"""Words that do not say what a variable is."""
SOURCES = {path: path.read_text("utf-8") for path in sorted(SRC.rglob("*.py"))}
TREES = {path: ast.parse(text) for path, text in SOURCES.items()}


@pytest.mark.parametrize("package", LINES)
def test_package_is_small(package: str) -> None:
    texts = [text for path, text in SOURCES.items() if path.relative_to(SRC).parts[0] == package]
    assert sum(text.count("\n") for text in texts) <= LINES[package]
    assert len(texts) <= FILES.get(package, len(texts))


def test_no_file_name_exists_twice() -> None:
    names = Counter(path.name for path in SOURCES if path.name not in ("__init__.py", "__main__.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_no_class_name_exists_twice() -> None:
    classes = Counter(node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert not [name for name, count in classes.items() if count > 1]


def test_variables_say_what_they_are() -> None:
    vague = {
        f"{path.relative_to(SRC)}:{node.lineno} {name}"
        for path, tree in TREES.items()
        for node, name in _assigned_names(tree)
        if name in VAGUE
    }
    assert not vague


def test_modules_are_short() -> None:
    assert not [path.relative_to(SRC) for path, text in SOURCES.items() if text.count("\n") > 500]


def test_imports_have_no_cycle() -> None:
    """Imports inside functions and for type checking count too."""
    modules = {_module(path): path for path in SOURCES}
    graph = {name: set(_imported(TREES[path], modules)) - {name} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def _assigned_names(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.arg, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node, node.id
        elif isinstance(node, ast.arg):
            yield node, node.arg


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def _imported(tree: ast.Module, modules: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from (module for module in (name if name in modules else node.module,) if module in modules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
