"""What the stages of a sufficiency study take, at most: positions that a model runs on, bytes that are stored."""

from __future__ import annotations

from dataclasses import dataclass

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.dictionaries.decomposition import N_CODES, count_components
from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.stages import Cost
from tl_lifehist.sufficiency.config import SufficiencyConfig
from tl_lifehist.sufficiency.target_kinds import TARGETS
from tl_lifehist.tokens import TokenSet

_FLOAT = 4


@dataclass(frozen=True, eq=False)
class SufficiencyCosts:
    """Costs by stage, each of one checkpoint and an upper bound; a pass above a hook point counts as a whole one."""

    series: CheckpointSeries
    n_hooks: int
    train: TokenSet
    calibration: TokenSet
    test: TokenSet
    config: SufficiencyConfig
    close_ups: tuple[str, ...]

    @property
    def _n_methods(self) -> int:
        return len(self.config.dictionaries.methods)

    @property
    def _further(self) -> int:
        """Masks of other penalties and seeds, for each hook point."""
        other = self.config.comparisons
        down = "downstream" in self.config.masks.targets
        return (len(other.sweep) + len(other.seeds) - 1) * len(self.close_ups) * down

    @property
    def _leaves_out(self) -> bool:
        return self.config.dictionaries.leave_out_massive > 0

    @property
    def _components(self) -> int:
        options = self.config.dictionaries
        d_model = self.series.shape.d_model
        return max(
            count_components(options.n_components, m, n_rows=self.train.n_valid, d_model=d_model)
            for m in options.methods
        )

    def fits(self, *, last: bool) -> Cost:
        """One pass of the train text; dictionaries, fixed heads, alignments, and activations of the last checkpoint."""
        d_model, k, n = self.series.shape.d_model, self._components, self._n_methods
        linear = sum(METHODS[m].linear for m in self.config.dictionaries.methods)  # these keep an encoder
        sample = min(N_CODES, self.train.n_valid)
        one = n * (d_model * (k + 2) + k * (sample + 2)) + linear * d_model * k
        one += (4 + len(self.close_ups)) * d_model * (d_model + 2)  # a head and the maps that are written out
        one += self.train.n_valid * d_model * last
        lines = 16 * self.config.heads.translator_steps + 8_000  # histories and what files need of their own
        return Cost(positions=_positions(self.train), bytes=self.n_hooks * (_FLOAT * one + lines))

    def refits(self) -> Cost:
        """Overlaps of dictionaries; their rows are there already."""
        return Cost(bytes=50_000)

    def masks(self, *, last: bool) -> Cost:
        """One clean pass of the calibration text by each model, and every step of every mask that is injected."""
        masks, calibration = self.config.masks, self.calibration
        injected = self._n_methods * sum(TARGETS[t].injects(masks.transfer_loss) for t in masks.targets)
        step = min(masks.batch_size, len(calibration)) * calibration.ids.shape[1]
        descent = self.n_hooks * (injected + self._further) * masks.mask_steps * step
        models = 2 if "transfer" in masks.targets and not last else 1
        # mean ablation of every dictionary that has its own mean
        once = self._n_methods * self.n_hooks * (masks.relative_to == "mean_ablation")
        return Cost(positions=descent + (models + once) * _positions(calibration), gradients=descent, bytes=self._gates)

    @property
    def _gates(self) -> float:
        masks = self._n_methods * len(self.config.masks.targets) + self._further
        lines = self._components + 2 + self.config.masks.mask_steps / 10
        return self.n_hooks * masks * 48 * lines + 40_000

    def scores(self, *, last: bool) -> Cost:
        """Every mask and its nulls injected, and the gradients that sensitivity and curvature are made of."""
        n, down = self._n_methods, "downstream" in self.config.masks.targets
        main = 2 + len(self.config.masks.targets)  # empty, full and the targets'
        injected = n * (main + 1 + (self.config.comparisons.n_random + 6) * down)  # with mean ablation; two a ranking
        injected += n * (main + 3 * 2) + 2 * len(self.close_ups)  # transfers
        injected += len(self.close_ups) * 3 * (1 + len(self.config.comparisons.sweep)) * down
        test, calibration = _positions(self.test), _positions(self.calibration)
        # gate scores, two Fisher matrices and permutations; scores and a Fisher matrix to rank components by
        sensitive = n * ((3 + self.config.geometry.label_draws) * test + 2 * calibration)
        clean = (1 if last else 2) * test + (test + calibration) * self._leaves_out
        rows = n * (self._components * 48 + 300 * (main + self.config.comparisons.n_random + 20))
        positions = self.n_hooks * (injected * test + sensitive) + clean
        return Cost(positions=positions, gradients=self.n_hooks * sensitive, bytes=self.n_hooks * rows + 120_000)

    def feature_masks(self, n_hooks: int) -> Cost:
        """Two masks over the SAE of each hook point, and what they cost."""
        masks, window = self.config.masks, self.calibration.ids.shape[1]
        descent = 2 * n_hooks * masks.mask_steps * min(masks.batch_size, len(self.calibration)) * window
        once = _positions(self.train) + (1 + 2 * n_hooks) * _positions(self.calibration)
        return Cost(positions=descent + once + 10 * n_hooks * _positions(self.test), gradients=descent, bytes=20_000)

    def tables(self) -> Cost:
        """The checkpoints' tables once more, joined."""
        one = self.scores(last=True).bytes + self._gates
        return Cost(bytes=len(self.series) * one + 100_000)


def _positions(tokens: TokenSet) -> int:
    return tokens.ids.numel()
