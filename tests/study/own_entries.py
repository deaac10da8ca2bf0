"""One entry of each registry, as another package would add it; importable, so that worker processes find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from tl_lifehist.checkpoints.adapters import FAMILIES, Family
from tl_lifehist.dictionaries.methods import METHODS, FitOptions, Method
from tl_lifehist.dictionaries.svd import Fit, fit_svd
from tl_lifehist.lifehistory.control_kinds import CONTROLS, Control
from tl_lifehist.report import SECTIONS, Content, Section
from tl_lifehist.sufficiency.target_kinds import TARGETS, TargetKind
from tl_lifehist.sufficiency.targets import Reconstruction, TargetContext


def fit_halves(rows: Any, moments: Any, n_components: int, options: FitOptions) -> Fit:
    """SVD directions at half their length."""
    fit = fit_svd(moments, n_components)
    assert fit.W_enc is not None
    return Fit(fit.W_dec / 2, fit.b_dec, fit.W_enc * 2)


@dataclass(frozen=True)
class Twice(Reconstruction):
    """Reconstruction under another name."""

    name: ClassVar[str] = "twice"


def make_twice(context: TargetContext) -> Twice:
    return Twice()


def entropy_of(profile: Any) -> np.ndarray:
    return np.nan_to_num(profile.entropy, nan=1e-6)


def build_mine(run: Any) -> Content:
    fig = go.Figure(go.Bar(y=run.get("load_summary")["carriers"]))
    fig.update_layout(title="A figure of one's own", height=300)
    return Content("My text.", "defined", "controlled", "sampled", "misleading", figures={"mine": fig})


ENTRIES: list[tuple[Any, str, Any]] = [
    (METHODS, "halves", Method(fit_halves, "Halves", deterministic=True, linear=True, one_pass=True)),
    (TARGETS, "twice", TargetKind(make_twice, "twice over", "#8a919c")),
    (CONTROLS, "entropy", Control("entropy", "as many features of equal entropy", "same entropy", entropy_of)),
    (SECTIONS, "mine", Section("A section of one's own", "life-history", ("load_summary",), build_mine)),
    (FAMILIES, "ToyForCausalLM", Family("own_family:ToyAdapter")),
]


@contextmanager
def registered() -> Iterator[None]:
    for registry, name, entry in ENTRIES:
        registry.register(name, entry)
    try:
        yield
    finally:
        for registry, name, _ in ENTRIES:
            registry.unregister(name)
