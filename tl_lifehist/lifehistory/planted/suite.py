"""`planted_suite`: a training history whose truth is known, for studies to be tried on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.dictionaries.sae import SAEs, orthonormal_sae
from tl_lifehist.lifehistory.planted.recipe import STEPS, Recipe
from tl_lifehist.lifehistory.planted.source import PlantedSource, stream_directions
from tl_lifehist.lifehistory.planted.text import draw_text
from tl_lifehist.lifehistory.planted.truth import PlantedTruth
from tl_lifehist.lifehistory.planted.world import draw_world
from tl_lifehist.tokens import TokenSet


@dataclass(frozen=True, eq=False)
class PlantedSuite:
    """A planted training history and what a study needs to run on it.

    Attributes:
        recipe: the knobs it was made with.
        series: its checkpoints; portable, so that workers can make the models for themselves.
        train: text for SAEs, dictionaries and heads.
        calibration: other text, for masks.
        test: a third one, that everything is measured on.
    """

    recipe: Recipe
    series: CheckpointSeries
    train: TokenSet
    calibration: TokenSet
    test: TokenSet

    @property
    def hook_names(self) -> tuple[str, ...]:
        """Where the SAEs read, in depth order."""
        return self.recipe.hook_names

    @cached_property
    def saes(self) -> SAEs:
        """An exact SAE of SAELens for every checkpoint and hook point, for `LifeHistoryStudy(saes=...)`.

        Raises:
            InputError: SAELens is not installed.
        """
        world = draw_world(self.recipe)
        return SAEs(
            {
                (step, name): orthonormal_sae(stream_directions(world, index, layer), threshold=0.01, hook_name=name)
                for index, step in enumerate(self.recipe.steps)
                for layer, name in enumerate(self.hook_names)
            }
        )

    @cached_property
    def truth(self) -> PlantedTruth:
        """Births, deaths, carriers, containment and costs. Studies do not see it."""
        return PlantedTruth(draw_world(self.recipe))


def planted_suite(
    *,
    seed: int = 0,
    n_layers: int = 4,
    n_features: int = 96,
    steps: Sequence[int] = STEPS,
    n_documents: int = 32,
    late: float = 0.6,
    dying: float = 0.25,
    noise: float = 0.3,
    breadth: str = "independent",
    load: str = "history",
    forecastable: bool = True,
    containment: str = "real",
) -> PlantedSuite:
    """A training history whose births, deaths, carriers, containments and costs are known.

    Its models are real: hooked modules that predict the next id of a small language. At each layer a feature fires on
    a set of ids and moves the prediction of what follows them by its reading; carriers by D9's defaults are the
    features that are neither born late nor die. Both studies run on it as on any other series.

    Args:
        seed: of everything that is drawn. With one seed, what a knob has no part in is the same at all its values.
        n_layers: layers, each with a hook point and an SAE.
        n_features: features of a layer, alive or not; the size of each SAE.
        steps: the checkpoints, at least three.
        n_documents: of each text. Every text has at least 8,192 positions, so that the rarest features stay alive.
        late: share of the features that are born too late to become carriers.
        dying: share that is born early and dies.
        noise: sd of the logarithm of codes from checkpoint to checkpoint; at 0 every match is one of 1.0.
        breadth: whether carriers are heavier than others at the end. "independent": no. "confounded": the heavier a
            feature, the likelier a carrier, with equals at every mass. "disjoint": every carrier is heavier than every
            other feature, so that no equals exist.
        load: what removing a feature at the end costs. "mass": in proportion to its mass. "history": three times as
            much for a carrier of equal mass. "neither": the same for all.
        forecastable: whether features that become carriers are stronger at the onset than others of equal rate.
        containment: "real": half of the features lie inside a broader one of another layer, whoever that is;
            "carriers": half of those that are no carriers lie inside one; "chance": sets are independent.

    Raises:
        InputError: a knob out of its range.

    How it can mislead: its codes depend on the id alone, its SAEs are exact and its features independent within a
    layer. What holds here is the least that can be asked of a method; that it holds on a language model does not
    follow. The shares of `late` and `dying` also decide how many equals carriers have.
    """
    recipe = Recipe(
        seed=seed,
        n_layers=n_layers,
        n_features=n_features,
        steps=tuple(int(step) for step in steps),
        n_documents=n_documents,
        late=late,
        dying=dying,
        noise=noise,
        breadth=breadth,
        load=load,
        forecastable=forecastable,
        containment=containment,
    )
    world = draw_world(recipe)
    series = CheckpointSeries(PlantedSource(recipe), recipe.steps)
    return PlantedSuite(recipe, series, *(draw_text(world, split) for split in range(3)))
