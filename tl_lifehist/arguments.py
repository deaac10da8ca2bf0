"""What can be said of a command's arguments before anything heavy is imported: a mistake is answered at once.

Everything here is checked again where it counts, in the study. What only the model or the hub can say is left to that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tl_lifehist.checkpoints.folders import places_in
from tl_lifehist.checkpoints.revisions import require_steps
from tl_lifehist.config import options
from tl_lifehist.errors import InputError
from tl_lifehist.hook_names import require_blocks
from tl_lifehist.lifehistory.onset import require_onset
from tl_lifehist.record import require_history
from tl_lifehist.registry import registry_of
from tl_lifehist.written import listed, read_documents

POCKET = Path(__file__).resolve().parent / "checkpoints" / "pocket"
LAYOUT = ("stage", "ingredient", "pattern", "subfolder", "config_from")  # what says where checkpoints lie


@dataclass(frozen=True)
class Place:
    """Checkpoints in a local folder.

    Attributes:
        name: what reports call the series.
        steps: those that were asked for, all by default.
        config: of the last one's model, as its `config.json` has it; empty where that lies elsewhere.
    """

    name: str
    steps: tuple[int, ...]
    config: Mapping[str, Any]


def check_arguments(values: Mapping[str, Any], config: Any) -> None:
    """Refuse what can be seen to be wrong in the options and the configuration of a study.

    Raises:
        InputError: what a study would say, of: lists, names of registered entries, steps, blocks, files and folders.
    """
    steps = listed(values["steps"], int, "--steps")
    names = require_places(values)
    for section, one in options(config):
        chosen = getattr(getattr(config, section), one.name)
        if one.metadata["registry"] and chosen is not None:
            registry_of(one.metadata["registry"]).require(chosen, one.name)
    place = find_checkpoints(values["model"], steps, {name: values[name] for name in LAYOUT})
    if place is not None and isinstance(n_layers := place.config.get("num_hidden_layers"), int):
        require_blocks(names, n_layers)
    texts = require_texts(values["model"] if place is None else place.name, values["texts"])
    if str(texts) != "pocket":
        read_documents(texts)
    if place is not None:
        masked = any("ForMaskedLM" in str(kind) for kind in place.config.get("architectures") or [])
        if values["masked"] and place.config and not masked:
            raise InputError(f"{place.name} is a causal language model by its configuration: leave out --masked.")
        if hasattr(config, "forecast"):
            require_onset(config.forecast.onset, place.steps)
        if values.get("life_history") is not None:
            require_history(values["life_history"], place.name, place.steps)
    if values.get("saes") is not None and not Path(values["saes"]).is_dir():
        raise InputError(f"There is no folder {values['saes']} with SAEs: check --saes.")


def require_places(values: Mapping[str, Any]) -> list[str]:
    """Hook points as far as they are named, in blocks or in whole."""
    named, sites = listed(values["hook_names"]), listed(values["sites"])
    blocks = listed(values["layers"], int, "--layers")
    if not sites:
        raise InputError("--sites names no hook point within a block: give at least one, such as hook_resid_post.")
    return list(named) or [f"blocks.{i}.{site}" for i in blocks for site in sites]


def find_checkpoints(model: str, steps: Sequence[int], layout: Mapping[str, Any]) -> Place | None:
    """What a local folder, or the pocket suite, holds; None for a hub repository, which only the hub knows.

    Raises:
        InputError: neither a folder nor a repository's name, no checkpoint in it, or a step that it has not.
    """
    root = local_folder(model, layout)
    if root is None:
        return None
    name = "pocket" if model == "pocket" else root.name
    given = {key: value for key, value in layout.items() if value is not None and key != "config_from"}
    places = places_in(root, **given)
    require_steps(steps, places, name)
    homes = (root, root / places[max(places)]) if layout.get("config_from") is None else ()
    return Place(name, tuple(steps) or tuple(sorted(places)), _config_in(homes))


def local_folder(model: str, layout: Mapping[str, Any]) -> Path | None:
    """The folder of a local series; None for a hub repository.

    Raises:
        InputError: neither a folder nor a repository's name, or a layout for the pocket suite.
    """
    if model == "pocket":
        given = ", ".join("--" + name.replace("_", "-") for name, value in layout.items() if value is not None)
        if given:
            raise InputError(f"The pocket suite takes no {given}: these are for a folder or a repository.")
        return POCKET
    if Path(model).is_dir():
        return Path(model).expanduser().resolve()
    if model.count("/") != 1 or model[0] in "./~" or Path(model).parent.is_dir():
        raise InputError(
            f"There is no folder {model!r}. A hub repository is written owner/name, for example EleutherAI/pythia-160m."
        )
    return None


def _config_in(homes: Iterable[Path]) -> Mapping[str, Any]:
    path = next((home / "config.json" for home in homes if (home / "config.json").is_file()), None)
    try:
        found = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # what loads the model says what is wrong
    return found if isinstance(found, dict) else {}


def require_texts(name: str, path: str | Path | None) -> Path:
    """The file of text that was named; "pocket" for the pocket suite's own, for which none need be.

    Raises:
        InputError: none was named for another series.
    """
    if path is None and name != "pocket":
        raise InputError(
            f"{name} has no text of its own: name a file of its language with --texts, or the pocket suite's "
            "English and Python with --texts pocket."
        )
    return Path("pocket" if path is None else path)
