"""No module of the package imports itself by way of others, be it inside a function or for a type checker alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import networkx as nx
import pytest

PACKAGE = "tl_lifehist"
ROOT = Path(__file__).resolve().parent.parent / PACKAGE

SHOWN = 20  # one import at the wrong place can close thousands of circles


def modules_of(root: Path, package: str) -> dict[str, Path]:
    """Dotted name -> file; a package's name stands for its `__init__.py`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join((package, *parts[: -1 if parts[-1] == "__init__" else None]))] = path
    return found


def imports_of(module: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file names in an import, wherever in the file it stands."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*around, *([node.module] if node.module else [])])
            for name in node.names:  # of a package, a name is either one of its modules or something in its __init__
                inner = f"{source}.{name.name}"
                if inner in modules:
                    yield inner
                elif source in modules:
                    yield source


def graph_of(root: Path, package: str) -> nx.DiGraph:
    modules = modules_of(root, package)
    graph = nx.DiGraph()
    graph.add_nodes_from(modules)
    graph.add_edges_from((name, other) for name, path in modules.items() for other in imports_of(name, path, modules))
    return graph


def circles(graph: nx.DiGraph) -> list[list[str]]:
    """At most `SHOWN` circles, the shortest first."""
    return sorted(islice(nx.simple_cycles(graph), SHOWN), key=len)


def test_no_module_imports_itself_by_way_of_others():
    found = circles(graph_of(ROOT, PACKAGE))
    assert not found, "circles of imports:\n" + "\n".join(" -> ".join([*circle, circle[0]]) for circle in found)


@pytest.mark.parametrize(
    "line",
    [
        "import toy.low",
        "from toy import low",
        "from toy.low import name",
        "from .low import name",
        "from . import low",
        "def later():\n    from toy.low import name",
        "if TYPE_CHECKING:\n    from toy.low import name",
        "from toy.sub import through",
        "import toy.sub as s",
    ],
)
def test_every_form_of_import_counts(tmp_path: Path, line: str):
    """`low` imports `high`, and `high` imports it back, itself or through the `__init__` of a package."""
    files = {
        "__init__.py": "",
        "low.py": "import toy.high",
        "high.py": line,
        "sub/__init__.py": "import toy.low",
    }
    for name, text in files.items():
        (tmp_path / "toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / name).write_text(text)
    (circle,) = circles(graph_of(tmp_path / "toy", "toy"))
    assert set(circle) == {"toy.low", "toy.high"} | ({"toy.sub"} if "sub" in line else set())
    (tmp_path / "toy" / "high.py").write_text("import json\nfrom toy import __version__")
    assert not circles(graph_of(tmp_path / "toy", "toy"))
