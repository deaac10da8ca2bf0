"""What the stages of a life history take, at most: positions that a model runs on, bytes that are stored."""

from __future__ import annotations

from dataclasses import dataclass

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.dictionaries.sae import NORM_ROWS
from tl_lifehist.lifehistory.config import LifeHistoryConfig
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.stages import Cost
from tl_lifehist.tokens import TokenSet

_FLOAT = 4


@dataclass(frozen=True, eq=False)
class LifeHistoryCosts:
    """Costs by stage; each is an upper bound, as if every control could be drawn."""

    series: CheckpointSeries
    n_hooks: int
    train: TokenSet
    test: TokenSet
    config: LifeHistoryConfig

    @property
    def _d_sae(self) -> int:
        given = self.config.sae.d_sae
        return 4 * self.series.shape.d_model if given is None else given

    @property
    def _scored(self) -> int:
        return self.test.head(self.config.sampling.load_tokens).ids.numel()

    def training(self, replicate: str) -> Cost:
        """SAEs of one checkpoint. The model also runs positions that no SAE is trained on."""
        rows = self.config.sae.training_tokens + min(NORM_ROWS, self.train.n_valid)
        d_model, d_sae = self.series.shape.d_model, self._d_sae
        one = _FLOAT * (2 * d_model * d_sae + d_sae + d_model)
        copies = 2 if self.config.sae.init == "previous" and not replicate else 1  # what the next training starts from
        per_row = self.train.ids.numel() / self.train.n_valid
        return Cost(positions=rows * per_row, bytes=copies * self.n_hooks * one)

    def profiles(self, n_replicates: int) -> Cost:
        """Profiles of one checkpoint, a value and an index a firing, and the losses beside them."""
        firing = 8 * self.test.n_valid * self.config.sae.k + 16 * self._d_sae
        passes = self.test.ids.numel() + (1 + self.n_hooks) * self._scored
        return Cost(positions=passes, bytes=(1 + n_replicates) * self.n_hooks * firing)

    def load(self, kind: str) -> Cost:
        """Ablations for one kind of controls."""
        control, sets = CONTROLS[kind], self.config.control_sets
        described = 3 * control.by_role + control.among_stable + (not control.tested)
        calls = 1 + control.by_role + control.among_stable  # each with the bare model and the carriers
        return self._ablations(sets.n_draws * control.tested + sets.n_described * described + 3 * calls)

    def singles(self) -> Cost:
        """Single features, parts of the joint load, and the sets of the regression."""
        sampling = self.config.sampling
        alone = sampling.single_carriers + 4 * sampling.singles_per_role
        return self._ablations(alone + sampling.regression_sets + 3 * self.n_hooks + 20)

    def content(self) -> Cost:
        """Both classes, each beside its draws."""
        return self._ablations(2 * self.config.sampling.content_draws + 6)

    def tables(self) -> Cost:
        """Lineages, features, edges and roles, once as stages and once joined."""
        return Cost(bytes=800 * len(self.series) * self.n_hooks * self._d_sae)

    def _ablations(self, n: int) -> Cost:
        return Cost(positions=float(n * self._scored))
