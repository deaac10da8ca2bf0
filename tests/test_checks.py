"""A contributor runs the commands that a release must pass, and checks of our own catch what they are for."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import tl_lifehist

PACKAGE = Path(inspect.getfile(tl_lifehist)).parent
ROOT = PACKAGE.parent
RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_passes_what_a_contributor_is_told_to_run() -> None:
    told = re.search(r"^make (lint .*)$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    looped = re.search(r"^for target in (.*); do", RUN, re.MULTILINE)
    assert told is not None
    assert looped is not None
    assert set(told[1].split()) < set(looped[1].split())
    for tool in ("ruff check", "ruff format", "pyright --", "mkdocs build", "pip wheel"):  # a second way to call one
        assert tool not in RUN, tool


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("lint", ["ruff check .", "ruff format --check ."]),
        ("types", ["pyright --pythonpath"]),
        ("docs", ["docs/check_api.py", "mkdocs build --strict"]),
        ("wheel", ["pip wheel", ".ci/check_wheel.py"]),
        ("test", ["pytest -n 2"]),
        ("setup", ["pip check"]),
    ],
)
def test_a_target_calls_all_of_its_checks(target: str, commands: list[str], tmp_path: Path) -> None:
    asked = ["make", "-n", target, f"VENV={tmp_path / 'venv'}"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for command in commands:
        assert command in shown


def test_a_public_name_that_no_page_has_or_that_two_have_is_named(tmp_path: Path) -> None:
    check = script("docs/check_api.py")
    assert check.faults() == []
    pages = Path(shutil.copytree(check.PAGES, tmp_path / "api"))
    entry = "::: tl_lifehist.trace_lineages\n"
    page = next(page for page in pages.glob("*.md") if entry in page.read_text(encoding="utf-8"))
    page.write_text(page.read_text(encoding="utf-8").replace(entry, ""), encoding="utf-8")
    assert check.faults(pages) == ["no page in api/ has tl_lifehist.trace_lineages"]
    page.write_text(page.read_text(encoding="utf-8") + f"\n{entry}\n{entry}", encoding="utf-8")
    assert check.faults(pages) == ["tl_lifehist.trace_lineages stands twice"]


def test_a_file_that_the_wheel_lacks_is_named(tmp_path: Path) -> None:
    check = script(".ci/check_wheel.py")
    package = tmp_path / "some_package"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    for left_out in ("", "data/words.txt", "py.typed"):
        names = ["__init__.py", "data/words.txt", "py.typed"]
        for name in names:
            (package / name).touch()
        wheel = tmp_path / f"{len(left_out)}.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            for name in names:
                if name != left_out:
                    file.write(package / name, f"some_package/{name}")
        assert check.missing(wheel, package) == ([f"some_package/{left_out}"] if left_out else [])
    (package / "py.typed").unlink()
    assert check.missing(wheel, package) == ["some_package/py.typed"]  # also where the package has none itself


def test_all_that_name_a_python_version_name_the_same_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["pyright"]["pythonVersion"] == oldest
    assert project["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    listed = [c.rpartition(" :: ")[2] for c in project["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert oldest in listed
    for page in ("README.md", "CONTRIBUTING.md", "docs/installation.md"):
        found = re.findall(r"Python (3\.\d+)", (ROOT / page).read_text(encoding="utf-8"))
        assert found, page
        assert set(found) == {oldest}, page
