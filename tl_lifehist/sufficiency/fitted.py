"""What is fitted on the train text at one checkpoint and hook point: dictionaries, a fixed head, alignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tl_lifehist.dictionaries.decomposition import Decomposition, decompose
from tl_lifehist.metrics import top_row_share
from tl_lifehist.models import device_of
from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.alignment import Alignment, align_checkpoints, align_dictionaries, shuffled_rows
from tl_lifehist.sufficiency.config import Dictionaries, Heads
from tl_lifehist.sufficiency.passes import TrainRows
from tl_lifehist.sufficiency.translator import Translator, translator_of
from tl_lifehist.suffix import ModelSuffix

# Controls of a transfer by the kind of their map (formula 16); that of shuffled rows is a ridge too
CONTROLS = {"aligned": "ridge", "procrustes": "procrustes", "identity": "identity", "shuffled": "ridge"}


@dataclass(frozen=True, eq=False)
class Fitted:
    """Fits of one checkpoint and hook point.

    Attributes:
        hook_name: where.
        n_rows: rows of the fits.
        top_row_share: share of the variance that the farthest 0.1 % of the rows hold.
        dictionaries: by method.
        translator: the fixed head.
        alignments: to the final checkpoint, by control; they serve every method.
        dictionary_alignments: between dictionaries, by method, of the close-ups.
    """

    hook_name: str
    n_rows: int
    top_row_share: float
    dictionaries: Mapping[str, Decomposition]
    translator: Translator
    alignments: Mapping[str, Alignment]
    dictionary_alignments: Mapping[str, Alignment]

    def to_outputs(self) -> dict[str, Any]:
        """By name, as a stage stores them."""
        h = self.hook_name
        return {
            f"{h}/rows": {"n_rows": self.n_rows, "top_row_share": self.top_row_share},
            f"{h}/translator": self.translator.to_tensors(),
            **{f"{h}/dictionaries/{m}": d.to_tensors() for m, d in self.dictionaries.items()},
            **{f"{h}/alignments/{name}": a.to_tensors() for name, a in self.alignments.items()},
            **{f"{h}/dictionary_alignments/{m}": a.to_tensors() for m, a in self.dictionary_alignments.items()},
        }

    @classmethod
    def from_outputs(cls, held: Mapping[str, Any], suffix: ModelSuffix) -> Fitted:
        """The counterpart of `to_outputs`; the fixed head is read by `suffix`, of the same hook point."""
        h = suffix.hook_name

        def under(folder: str) -> dict[str, Any]:
            start = f"{h}/{folder}/"
            return {name.removeprefix(start): held[name] for name in held if name.startswith(start)}

        return cls(
            h,
            **held[f"{h}/rows"],
            dictionaries={m: Decomposition.from_tensors(t) for m, t in under("dictionaries").items()},
            translator=Translator.from_tensors(held[f"{h}/translator"], suffix.head),
            alignments={name: Alignment.from_tensors(t) for name, t in under("alignments").items()},
            dictionary_alignments={m: Alignment.from_tensors(t) for m, t in under("dictionary_alignments").items()},
        )


def fit_site(
    suffix: ModelSuffix,
    rows: TrainRows,
    final_acts: Tensor,
    final_dictionaries: Mapping[str, Decomposition],
    *,
    step: int,
    dictionaries: Dictionaries,
    heads: Heads,
    close_ups: tuple[str, ...],
    seed: int,
) -> Fitted:
    """Everything that is fitted at one checkpoint and hook point, on the train text alone.

    Args:
        suffix: the part of the model above it.
        rows: its train rows.
        final_acts: those of the final checkpoint at the same positions.
        final_dictionaries: the final checkpoint's own on exactly these rows, as far as they are known; the others that
            the close-ups need are fitted.
        step: the checkpoint, which the seeds of what is random here are derived from.
    """
    acts = rows.acts
    own = {m: decomposed(acts, m, dictionaries, seed) for m in dictionaries.methods}
    shuffled = shuffled_rows(acts, seed=derive_seed(seed, step, 1))
    sources = {name: shuffled if name == "shuffled" else acts for name in CONTROLS}
    alignments = {
        name: align_checkpoints(sources[name], final_acts, ridge=heads.ridge, kind=kind)
        for name, kind in CONTROLS.items()
    }
    first = slice(0, heads.matched_rows)
    by_dictionary = {}
    for m in close_ups:
        known = own if final_acts is acts else final_dictionaries
        final = known.get(m) or decomposed(final_acts, m, dictionaries, seed)
        by_dictionary[m] = align_dictionaries(own[m], final, acts[first], final_acts[first])
    device = device_of(suffix.model)
    translator = translator_of(
        suffix,
        rows.scored_acts.to(device),
        rows.final.to(device),
        steps=heads.translator_steps,
        batch_rows=heads.translator_rows,
        learning_rate=heads.translator_rate,
        seed=derive_seed(seed, step, 2),
    )
    return Fitted(suffix.hook_name, len(acts), top_row_share(acts), own, translator, alignments, by_dictionary)


def decomposed(acts: Tensor, method: str, options: Dictionaries, seed: int) -> Decomposition:
    """One dictionary of a study."""
    k = options.n_components or min(100, acts.shape[1])
    return decompose(
        acts,
        method=method,
        n_components=k,
        seed=seed,
        offset=options.offset,
        max_iter=options.max_iter,
        tol=options.tol,
    )
