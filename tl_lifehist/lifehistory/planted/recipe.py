"""What a planted history is made of: a few numbers, from which everything else follows."""

from __future__ import annotations

from dataclasses import dataclass

from tl_lifehist.errors import InputError, one_of

N_IDS = 1024  # vocabulary
LABEL_NOISE = 0.1  # share of positions whose next id is drawn from the document and is not the successor
STEPS = (0, 128, 512, 2048, 8192, 16384)


@dataclass(frozen=True)
class Recipe:
    """The knobs of `planted_suite`, checked. It is what travels to a worker in place of models."""

    seed: int = 0
    n_layers: int = 4
    n_features: int = 96
    steps: tuple[int, ...] = STEPS
    n_documents: int = 32
    late: float = 0.6
    dying: float = 0.25
    noise: float = 0.3
    breadth: str = "independent"
    load: str = "history"
    forecastable: bool = True
    containment: str = "real"

    def __post_init__(self) -> None:
        one_of("breadth", self.breadth, ("independent", "confounded", "disjoint"))
        one_of("load", self.load, ("history", "mass", "neither"))
        one_of("containment", self.containment, ("real", "carriers", "chance"))
        for name, least in (("seed", 0), ("n_layers", 1), ("n_features", 8), ("n_documents", 16), ("noise", 0)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}.")
        if len(self.steps) < 3 or list(self.steps) != sorted(set(self.steps)) or self.steps[0] < 0:
            raise InputError(f"steps={list(self.steps)}: name at least three steps, ascending, none below 0.")
        if min(self.late, self.dying) < 0 or self.n_carriers < 1:
            raise InputError(
                f"late={self.late} and dying={self.dying} must be shares that leave some of the {self.n_features} "
                "features of a layer to be carriers."
            )

    @property
    def n_carriers(self) -> int:
        """Carriers of a layer: what is neither born late nor dies."""
        return self.n_features - round(self.late * self.n_features) - round(self.dying * self.n_features)

    @property
    def hook_names(self) -> tuple[str, ...]:
        """Where the SAEs read, in depth order."""
        return tuple(f"blocks.{layer}.hook_resid_post" for layer in range(self.n_layers))
