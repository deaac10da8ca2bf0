"""SAEs that a study is given instead of training them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from tl_lifehist.config import from_sections
from tl_lifehist.dictionaries.declared import require_contributions, require_own_place, require_profiles
from tl_lifehist.dictionaries.sae import SAEs, load_sae, load_saes
from tl_lifehist.errors import InputError
from tl_lifehist.hook_names import parse_hook_name
from tl_lifehist.lifehistory.config import LifeHistoryConfig, SAETraining
from tl_lifehist.lifehistory.history import sae_stage
from tl_lifehist.lifehistory.stored import whole
from tl_lifehist.stages import fingerprint, plain, state_of
from tl_lifehist.store import Store

_WANTED = "give what lh.train_saes returns, a mapping {(step, hook_name): sae} or a folder of SAEs"


@dataclass(frozen=True, eq=False)
class GivenSAEs:
    """SAEs by (step, hook point) for each replicate; "" are the study's own.

    Attributes:
        known: how an earlier run says that they were trained; None of other SAEs.
    """

    saes: Mapping[str, Mapping[tuple[int, str], Any]]
    steps: tuple[int, ...]
    hook_names: tuple[str, ...]
    known: SAETraining | None = None

    @classmethod
    def of(cls, source: Any, steps: Sequence[int], hook_names: Sequence[str]) -> GivenSAEs:
        """From a mapping, a folder of SAELens folders, or the folder of an earlier run.

        Raises:
            InputError: what is given is no SAEs, one is missing or damaged, one is of another hook point or of a kind
                whose features cannot be ablated, those of a hook point differ in width, or the run is none of a life
                history.
        """
        run = _run_in(Path(source)) if isinstance(source, (str, PathLike)) else None
        saes = _read(source) if run is None else _of_run(run, steps, hook_names)
        known = None if run is None else _training_of(run)
        found = cls({k: dict(v) for k, v in saes.items()}, tuple(steps), tuple(hook_names), known)
        own = found.saes[""]
        missing = [(s, h) for s in steps for h in hook_names if (s, h) not in own]
        if missing:
            raise InputError(
                f"saes= has none for step {missing[0][0]} at {missing[0][1]!r} ({len(missing)} are missing): leave "
                "that step or hook point out, or train it with lh.train_saes."
            )
        for key in ((s, h) for s in steps for h in hook_names):
            if not all(hasattr(own[key], name) for name in ("W_dec", "cfg", "state_dict")):
                raise InputError(f"saes= has no SAE but {type(own[key]).__name__} for {key}: {_WANTED}.")
        for (step, h), sae in ((key, sae) for held in found.saes.values() for key, sae in held.items()):
            if h in hook_names and step in steps:  # now, and not when the study comes to ablate
                require_own_place(sae, h)
                require_contributions(sae)
                require_profiles(sae, h)
        for h in hook_names:
            shapes = {tuple(own[s, h].W_dec.shape) for s in steps}
            if len(shapes) > 1:
                raise InputError(f"The SAEs at {h!r} have different sizes, {sorted(shapes)}: give SAEs of one size.")
        return found

    def require_width(self, d_model: int) -> None:
        """Refuse SAEs of another width than the model's, at hook points that are as wide as it.

        Raises:
            InputError: the SAEs are of another model.
        """
        for h in self.hook_names:
            _, site = parse_hook_name(h)
            width = self.saes[""][self.steps[-1], h].W_dec.shape[1]
            if (site.startswith("hook_resid_") or site in ("hook_mlp_out", "hook_attn_out")) and width != d_model:
                raise InputError(
                    f"The SAEs at {h!r} are for activations of width {width}, and the model's are {d_model} wide: give "
                    "SAEs of this model."
                )

    @property
    def replicates(self) -> list[tuple[int, str]]:
        """Steps and names of the replicates that are whole."""
        return sorted(
            (step, name)
            for name, held in self.saes.items()
            for step in self.steps
            if name and all((step, h) in held for h in self.hook_names)
        )

    def training(self, asked: SAETraining, names: Collection[str]) -> SAETraining:
        """How they were trained: all of it from an earlier run; of others `d_sae` and, where they have one, `k`. SAEs
        of several sizes count as the largest.

        Args:
            asked: what the study was asked for.
            names: its settings that were named one by one.

        Raises:
            InputError: something else is asked for.
        """
        found = self._sizes() if self.known is None else self.known
        for name in (one.name for one in fields(SAETraining)):
            value = getattr(asked, name)
            if value != getattr(found, name) and (name in names or value != getattr(SAETraining(), name)):
                raise InputError(
                    f"{name}={value!r} is a setting of training, and the SAEs of saes= have had theirs: leave it out."
                )
        return found

    def _sizes(self) -> SAETraining:
        own = [self.saes[""][s, h] for s in self.steps for h in self.hook_names]
        d_sae = max(int(sae.W_dec.shape[0]) for sae in own)
        active = [int(k) for sae in own if (k := getattr(sae.cfg, "k", None)) is not None]
        return replace(SAETraining(), d_sae=d_sae, k=max(active, default=min(SAETraining().k, d_sae)))

    def digest(self, step: int, replicate: str) -> str:
        """A hash of weights and configurations."""
        found = hashlib.sha256()
        for h in self.hook_names:
            sae = self.saes[replicate][step, h]
            found.update(f"{h} {fingerprint(plain_config(sae))}".encode())
            for name, tensor in sorted(sae.state_dict().items()):
                found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                # as bytes, for numpy has no bfloat16
                found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]

    def outputs(self, stage: str) -> dict[str, Any]:
        """The outputs of the stage that takes them up."""
        named = {sae_stage(step, name): (step, name) for step in self.steps for name in self.saes}
        step, replicate = named[stage]
        return {h: self.saes[replicate][step, h] for h in self.hook_names}


def plain_config(sae: Any) -> Any:
    """The configuration of an SAE as plain values."""
    return plain({name: value for name, value in sae.cfg.to_dict().items() if name != "metadata"})


def _read(source: Any) -> dict[str, Mapping[tuple[int, str], Any]]:
    if isinstance(source, (Mapping, SAEs)):
        return {"": _held(source)}
    if not isinstance(source, (str, PathLike)):
        raise InputError(f"saes= takes no {type(source).__name__}: {_WANTED}.")
    path = Path(source)
    if (path / "units" / "saes").is_dir():  # a run of the first version
        names: dict[str, dict[tuple[int, str], Any]] = {"": {}}
        for sae in sorted(path.glob("units/saes/step*/*/*/cfg.json")):
            step, name, hook_name = sae.parts[-4:-1]
            held = names.setdefault("" if name == "base" else name, {})
            held[int(step.removeprefix("step")), hook_name] = load_sae(sae.parent)
        return dict(names)
    return {"": _held(load_saes(path))}


def _run_in(path: Path) -> Store | None:
    of_first_version = (path / "units" / "saes").is_dir()
    is_run = (path / "study.json").is_file() or (path / "stages" / "saes").is_dir()
    return Store(path) if is_run and not of_first_version else None


def _of_run(store: Store, steps: Sequence[int], hook_names: Sequence[str]) -> dict[str, dict[tuple[int, str], Any]]:
    """What the last start of a run planned, so that replicates of other settings, which lie there still, stay out. The
    run's own SAEs have to be there; replicates may be missing, but none may be damaged.
    """
    found: dict[str, dict[tuple[int, str], Any]] = {"": {}}
    planned = store.plan
    replicates = {stage.split("/")[1] for stage in planned if stage.startswith("replicates/")}
    for name in ("", *sorted(replicates)):
        for step in steps:
            stage = sae_stage(step, name)
            if stage not in planned or (name and state_of(stage, planned[stage], store)[0] in ("missing", "stale")):
                continue
            held = whole(store, stage)
            found.setdefault(name, {}).update({(step, h): held[h] for h in hook_names if h in held})
    return found


def _training_of(store: Store) -> SAETraining:
    record = store.record
    if record["study"] != "life-history":
        raise InputError(f"{store.path} holds a run of another study, {record['study']!r}: give one of a life history.")
    return from_sections(LifeHistoryConfig, {"sae": record["config"]["sae"]}).sae


def _held(saes: Mapping[tuple[int, str], Any] | SAEs) -> dict[tuple[int, str], Any]:
    return {key: saes[key] for key in saes}
