"""SAEs that a study is given instead of training them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from tl_lifehist.dictionaries.sae import SAEs, load_sae, load_saes
from tl_lifehist.errors import InputError
from tl_lifehist.hook_names import parse_hook_name
from tl_lifehist.lifehistory.history import sae_stage
from tl_lifehist.stages import fingerprint, plain

_WANTED = "give what lh.train_saes returns, a mapping {(step, hook_name): sae} or a folder of SAEs"


@dataclass(frozen=True, eq=False)
class GivenSAEs:
    """SAEs by (step, hook point) for each replicate; "" are the study's own."""

    saes: Mapping[str, Mapping[tuple[int, str], Any]]
    steps: tuple[int, ...]
    hook_names: tuple[str, ...]

    @classmethod
    def of(cls, source: Any, steps: Sequence[int], hook_names: Sequence[str]) -> GivenSAEs:
        """From a mapping, a folder of SAELens folders, or the folder of an earlier run.

        Raises:
            InputError: what is given is no SAEs, one is missing, or SAEs of one hook point differ in width.
        """
        found = cls({k: dict(v) for k, v in _read(source).items()}, tuple(steps), tuple(hook_names))
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

    def digest(self, step: int, replicate: str) -> str:
        """A hash of weights and configurations."""
        found = hashlib.sha256()
        for h in self.hook_names:
            sae = self.saes[replicate][step, h]
            found.update(f"{h} {fingerprint(plain_config(sae))}".encode())
            for name, tensor in sorted(sae.state_dict().items()):
                found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
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
    if (path / "stages" / "saes").is_dir():  # a run
        again = sorted((path / "stages" / "replicates").glob("*"))
        found = {"": path / "stages" / "saes", **{folder.name: folder for folder in again}}
        return {name: _held(load_saes(folder)) for name, folder in found.items()}
    if (path / "units" / "saes").is_dir():  # a run of the first version
        names: dict[str, dict[tuple[int, str], Any]] = {"": {}}
        for sae in sorted(path.glob("units/saes/step*/*/*/cfg.json")):
            step, name, hook_name = sae.parts[-4:-1]
            held = names.setdefault("" if name == "base" else name, {})
            held[int(step.removeprefix("step")), hook_name] = load_sae(sae.parent)
        return dict(names)
    return {"": _held(load_saes(path))}


def _held(saes: Mapping[tuple[int, str], Any] | SAEs) -> dict[tuple[int, str], Any]:
    return {key: saes[key] for key in saes}
