"""Architectures that TransformerLens cannot wrap yet, and how it hears of them.

`pyproject.toml` lists the same names as entry points of the group `transformer_lens.architectures`, which is where
TransformerLens looks for adapters. Booting *by name*, `TransformerBridge.boot_transformers("EuroBERT/EuroBERT-210m")`,
looks the architecture up in two tables that entry points do not fill, so `register` fills them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from tl_lifehist.registry import Registry

GROUP = "transformer_lens.architectures"


@dataclass(frozen=True)
class Family:
    """An architecture of Hugging Face that is given an adapter here.

    Attributes:
        adapter: the class, as "module:name", so that TransformerLens is not imported before it is needed.
        masked: whether it is a masked language model.
    """

    adapter: str
    masked: bool = False


FAMILIES: Registry[Family] = Registry(
    "model family",
    {
        "EuroBertForMaskedLM": Family("tl_lifehist.checkpoints.adapters.eurobert:EuroBertArchitectureAdapter", True),
        "ModernBertForMaskedLM": Family(
            "tl_lifehist.checkpoints.adapters.modernbert:ModernBertArchitectureAdapter", True
        ),
    },
)
_TABLES = "transformer_lens.factories.architecture_adapter_factory"


def register() -> None:
    """Add the architectures to TransformerLens' tables; those that it knows by itself are left to it. A family that is
    added to `FAMILIES` later is there from the next model that is booted.
    """
    from transformer_lens.factories.architecture_adapter_factory import (
        SUPPORTED_ARCHITECTURES,
        ArchitectureAdapterFactory,
    )
    from transformer_lens.utilities.architectures import MASKED_LM_ARCHITECTURES

    declared = {entry.name for entry in entry_points(group=GROUP)}
    for name, family in FAMILIES.items():
        if name in SUPPORTED_ARCHITECTURES:
            continue
        module, _, cls = family.adapter.partition(":")
        adapter: Any = getattr(import_module(module), cls)
        SUPPORTED_ARCHITECTURES[name] = adapter
        if family.masked:
            MASKED_LM_ARCHITECTURES.add(name)
        if name not in declared:  # the package is on the path without being installed
            ArchitectureAdapterFactory.register_adapter(name, adapter)


def register_when_imported() -> None:
    """`register` now if TransformerLens has been imported, else as soon as it is.

    Importing it here would take seconds from everybody who only lists checkpoints.
    """
    if _TABLES in sys.modules:
        register()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


class _Waiting:
    """Runs `register` once, right after the module that holds the tables has been executed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != _TABLES:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute: Any = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                register()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
