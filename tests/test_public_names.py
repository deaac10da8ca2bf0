"""The names at the top and one dot further: each resolves, none clashes, and those of the version before still work."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import tl_lifehist as lh
from tl_lifehist.deprecated import NEW_PLACES
from tl_lifehist.tokens import TokenSet

ROOT = Path(inspect.getfile(lh)).parent
PLACES = [
    "tl_lifehist",
    *(f"tl_lifehist.{name}" for name in ("checkpoints", "dictionaries", "lifehistory", "sufficiency")),
]


def stub_of(place: str) -> dict[str, str]:
    """Each name of a package's stub with the module it comes from; for a package, the package around it."""
    tree = ast.parse(ROOT.joinpath(*place.split(".")[1:], "__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {name.name: f"{place}.{node.module}" if node.module else place for node in imports for name in node.names}


@pytest.mark.parametrize("place", PLACES)
def test_every_name_of_a_stub_resolves_to_what_the_stub_says(place: str):
    package, names = importlib.import_module(place), stub_of(place)
    assert sorted(package.__all__) == sorted(dir(package)) == sorted(names)
    for name, module in names.items():
        found = getattr(package, name)
        if inspect.ismodule(found):
            assert found is sys.modules[f"{place}.{name}"]
        else:
            assert found is getattr(importlib.import_module(module), name)
            assert inspect.getdoc(found), name


@pytest.mark.parametrize("place", PLACES)
def test_no_name_is_that_of_a_module_beside_it(place: str):
    """Importing `package.name` sets the attribute `name` to the module, which would hide a function of that name."""
    modules = {module.name for module in pkgutil.iter_modules(importlib.import_module(place).__path__)}
    assert modules & set(stub_of(place)) == (
        {name.split(".")[1] for name in PLACES[1:]} if place == PLACES[0] else set()
    )


def test_each_name_has_one_place():
    names = [name for place in PLACES for name in stub_of(place)]
    assert len(names) == len(set(names))


def test_few_names_are_at_the_top():
    assert 40 <= len(lh.__all__) <= 48


@pytest.mark.parametrize("old", NEW_PLACES)
def test_a_former_name_works_and_says_where_it_is_now(old: str):
    new = NEW_PLACES[old]
    package, _, name = new.rpartition(".")
    assert old not in lh.__all__
    assert old not in dir(lh)
    with pytest.warns(DeprecationWarning, match=rf"tl_lifehist\.{old} is deprecated .* use {new} instead"):
        found = getattr(lh, old)
    assert found is getattr(importlib.import_module(package), name)
    public = stub_of(package) if package in PLACES else {name: package}  # else a type that stays in its module
    assert name in public


def test_a_former_name_can_be_imported_and_the_warning_names_the_line(tmp_path: Path):
    script = tmp_path / "old.py"
    script.write_text("import tl_lifehist as lh\nfrom tl_lifehist import load_bearing\nlh.load_bearing\n")
    done = subprocess.run([sys.executable, "-W", "default", str(script)], capture_output=True, text=True, check=True)
    assert f"{script}:2: DeprecationWarning" in done.stderr
    assert f"{script}:3: DeprecationWarning" in done.stderr


def test_former_methods_of_token_sets():
    tokens = TokenSet.pocket("test")
    with pytest.warns(DeprecationWarning, match=r"TokenSet\.take is deprecated .* TokenSet\.head"):
        assert len(tokens.take(300)) == len(tokens.head(300))
    with pytest.warns(DeprecationWarning, match=r"TokenSet\.thin is deprecated .* TokenSet\.subsample"):
        assert tokens.thin(7).ids.equal(tokens.subsample(7).ids)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        lh.nonsense  # noqa: B018
    with warnings.catch_warnings():
        assert not hasattr(lh.lifehistory, "nonsense")


def test_importing_the_packages_costs_nothing():
    """Neither torch nor pandas, and below a tenth of a second beyond an interpreter that does nothing."""
    code = (
        "import sys, time; t = time.perf_counter(); import tl_lifehist as lh; t = time.perf_counter() - t\n"
        "lh.checkpoints, lh.dictionaries, lh.lifehistory, lh.sufficiency\n"
        "heavy = {'torch', 'pandas', 'numpy', 'scipy', 'transformer_lens', 'sae_lens'} & set(sys.modules)\n"
        "print(t, *heavy)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    assert all(len(run.stdout.split()) == 1 for run in runs), runs[0].stdout
    assert min(float(run.stdout) for run in runs) < 0.1
