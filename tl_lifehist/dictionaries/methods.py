"""The decompositions that there are. A new one is a function and a line:

    METHODS.register("mine", Method(fit_mine, "Mine", linear=True))

and `decompose`, the study, its command, the dry run and the report know it by that name. What fits is imported when it
is called, so that a command knows the names at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tl_lifehist.registry import Registry

if TYPE_CHECKING:
    from tl_lifehist.dictionaries.rows import Moments, Rows
    from tl_lifehist.dictionaries.svd import Fit


@dataclass(frozen=True)
class FitOptions:
    """What a fit is asked for beside the number of components.

    Attributes:
        seed: of whatever is random in it.
        offset: "minimum" or "relu", for a method that makes activations non-negative.
        max_iter: passes at most; None for the method's own limit.
        tol: when to stop; None for the method's own.
    """

    seed: int = 0
    offset: str = "minimum"
    max_iter: int | None = None
    tol: float | None = None

    @property
    def iteration(self) -> dict[str, float]:
        """The limits that were given."""
        given = {"max_iter": self.max_iter, "tol": self.tol}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Method:
    """A decomposition by its name in `METHODS`.

    Attributes:
        fit: `fit(rows, moments, n_components, options)`, which returns a `Fit`; a function at a module's top level,
            so that workers find it.
        label: for readers.
        symbol: plotly's name of the marker it is drawn with.
        deterministic: nothing in it depends on a seed, so that dictionaries of two seeds are not compared.
        linear: codes are linear in the activation: an encoder is kept, and there are at most `d_model` components.
        one_pass: the moments are all it reads, so that a generator will do.
        exact: needs the moments in float64, for directions of tiny variance.
        shifted: it subtracts `options.offset` and not the mean.
        cost: seconds beside an SVD of the same rows, roughly: measured on 16,000 rows of width 256 with 64 components.
    """

    fit: Callable[[Rows, Moments, int, FitOptions], Fit]
    label: str
    symbol: str = "circle"
    deterministic: bool = False
    linear: bool = False
    one_pass: bool = False
    exact: bool = False
    shifted: bool = False
    cost: float = 1.0


def _svd(rows: Rows, found: Moments, n_components: int, options: FitOptions) -> Fit:
    from tl_lifehist.dictionaries.svd import fit_svd

    return fit_svd(found, n_components)


def _ica(rows: Rows, found: Moments, n_components: int, options: FitOptions) -> Fit:
    from tl_lifehist.dictionaries.ica import fit_ica

    return fit_ica(rows, found, n_components, seed=options.seed, **options.iteration)  # type: ignore[arg-type]


def _nmf(rows: Rows, found: Moments, n_components: int, options: FitOptions) -> Fit:
    from tl_lifehist.dictionaries.nmf import fit_nmf

    return fit_nmf(rows, found, n_components, offset=options.offset, seed=options.seed, **options.iteration)  # type: ignore[arg-type]


def _semi_nmf(rows: Rows, found: Moments, n_components: int, options: FitOptions) -> Fit:
    from tl_lifehist.dictionaries.semi_nmf import fit_semi_nmf

    return fit_semi_nmf(rows, found, n_components, seed=options.seed, **options.iteration)  # type: ignore[arg-type]


METHODS: Registry[Method] = Registry(
    "decomposition",
    {
        "svd": Method(_svd, "SVD", "circle", deterministic=True, linear=True, one_pass=True),
        "ica": Method(_ica, "ICA", "square", linear=True, exact=True, cost=36),
        "nmf": Method(_nmf, "NMF", "diamond", shifted=True, cost=30),
        "semi_nmf": Method(_semi_nmf, "SemiNMF", "x", cost=20),
    },
)
