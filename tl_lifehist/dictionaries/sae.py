"""SAEs per checkpoint, trained by SAELens. This file and `sae_folders` are all that touches `sae_lens`.

All hook points of a checkpoint are trained from one forward pass by SAELens' `MultiSAETrainer`. Our part is the stream
of activations and the seeds: SAELens' own `seed` has no effect, so the order of the rows and the initial weights are
drawn here, each from a seed of its own.
"""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from tl_lifehist.activations import NonFiniteActivations, stream_activations
from tl_lifehist.dictionaries.sae_folders import Loaded, is_sae_folder, read_folder, readable
from tl_lifehist.errors import InputError, nearest, one_of
from tl_lifehist.hook_names import parse_hook_name
from tl_lifehist.models import HookedModel, require_hooks
from tl_lifehist.seeds import derive_seed
from tl_lifehist.tokens import TokenSet

BUFFER_ROWS = 1 << 16  # rows mixed at a time
NORM_ROWS = 1 << 14  # rows whose mean norm scales the input


def _sae_lens() -> Any:
    try:
        import sae_lens
    except ImportError as error:
        raise InputError(
            "Training and loading SAEs needs SAELens: install the extra with  pip install 'tl_lifehist[sae]'."
        ) from error
    return sae_lens


@dataclass(frozen=True)
class TrainedSAE:
    """One trained SAE: what is used, and what a warm start needs.

    Attributes:
        sae: a plain inference `sae_lens.SAE` that takes raw activations.
        state: weights of the training SAE in its own, scaled space, and under "input." the whitening of that space
            where there is one (`init="previous"` starts from them).
        config: the training configuration.
        input_scale: the factor that was folded into the inference weights.
    """

    sae: Any
    state: Mapping[str, Tensor] = field(repr=False)
    config: Any = field(repr=False)
    input_scale: float = 1.0


class SAEs(Mapping[tuple[int, str], Any]):
    """The SAEs of a series: `saes[step, hook_name]`, and `saes.at(step)` as `{hook_name: sae}`."""

    def __init__(self, saes: Mapping[tuple[int, str], Any]) -> None:
        self._saes = dict(saes)
        self.steps = tuple(sorted({step for step, _ in self._saes}))
        self.hook_names = tuple(dict.fromkeys(name for _, name in self._saes))

    def __getitem__(self, key: tuple[int, str]) -> Any:
        if key not in self._saes:
            raise InputError(
                f"There is no SAE for {key}: steps are {list(self.steps)}, hook points {list(self.hook_names)}."
            )
        return self._saes[key]

    def __contains__(self, key: object) -> bool:
        return key in self._saes

    def at(self, step: int) -> dict[str, Any]:
        """All SAEs of one checkpoint by hook point, in depth order."""
        if step not in self.steps:
            raise InputError(f"There are no SAEs for step {step}; the nearest steps are: {nearest(step, self.steps)}.")
        return {name: self._saes[step, name] for name in self.hook_names if (step, name) in self._saes}

    def __repr__(self) -> str:
        return f"SAEs({len(self)} at steps {', '.join(map(str, self.steps))}; {', '.join(self.hook_names)})"

    def __len__(self) -> int:
        return len(self._saes)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._saes)

    def save(self, folder: str | Path) -> Path:
        """Write every SAE in SAELens' own format: `step{N}/{hook_name}/cfg.json` and `sae_weights.safetensors`."""
        for (step, name), sae in self._saes.items():
            sae.save_model(Path(folder) / f"step{step}" / name)
        return Path(folder)


def load_sae(folder: str | Path, *, device: str = "cpu") -> Any:
    """A plain inference SAE from a folder, frozen and in evaluation mode, that takes raw activations.

    The folder is SAELens' (of any version, a checkpoint of a training included, whose scale of the input is folded into
    the weights), sparsify's or dictionary_learning's.

    Raises:
        InputError: SAELens is not installed, the folder is damaged or of another kind, or it asks for what would be
            computed in another way now: an activation function that is gone, a scale that is not there.

    How it can mislead: a checkpoint of a BatchTopK training becomes a JumpReLU SAE, by SAELens' own rule, with the
    threshold learned so far.
    """
    folder = Path(folder)
    sae_lens = _sae_lens()
    found = read_folder(folder)
    with readable(folder):
        from sae_lens.registry import SAE_CLASS_REGISTRY, SAE_TRAINING_CLASS_REGISTRY

        kind = str(found.config.get("architecture") or "standard")
        trained_as_another = kind not in SAE_CLASS_REGISTRY and kind in SAE_TRAINING_CLASS_REGISTRY
        if kind not in SAE_CLASS_REGISTRY and not trained_as_another:
            raise InputError(f"The SAE in {folder} is a {kind!r}, which this version of SAELens does not have.")
        cls: Any = sae_lens.TrainingSAE if trained_as_another else sae_lens.SAE
        sae = cls.load_from_disk(folder, device=device, converter=partial(_as_read, found))
        if found.scale is not None:
            sae.fold_activation_norm_scaling_factor(found.scale)
        if found.whitening is not None:
            whitening = found.whitening
            sae.fold_activation_whitening(whitening["mean"], whitening["matrix"], whitening["inverse_matrix"])
        if trained_as_another:
            return _inference(sae).to(device)
    sae.turn_off_forward_pass_hook_z_reshaping()  # rows have heads side by side
    return sae.requires_grad_(False).eval()


def _as_read(
    found: Loaded, path: Any, device: str = "cpu", cfg_overrides: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What SAELens' `load_from_disk` asks a converter for."""
    config = {**found.config, "device": device, **(cfg_overrides or {})}
    dtype = getattr(torch, config["dtype"].removeprefix("torch."))
    return config, {name: tensor.to(device, dtype) for name, tensor in found.state.items()}


def load_saes(folder: str | Path, *, device: str = "cpu") -> SAEs:
    """All SAEs under `folder/step{N}/{hook_name}/`, as `SAEs.save` and `train_saes(out=...)` write them.

    Raises:
        InputError: no such folder, or an incomplete one.
    """
    found: dict[tuple[int, str], Any] = {}
    for at_step in sorted(Path(folder).glob("step*"), key=lambda p: int("".join(filter(str.isdigit, p.name)) or -1)):
        step = at_step.name.removeprefix("step")
        if step.isdigit():
            for path in sorted(filter(_holds_sae, at_step.iterdir()), key=_depth):
                found[int(step), path.name] = load_sae(path, device=device)
    if not found:
        raise InputError(
            f"{folder} holds no step folders with SAEs: expected step0/blocks.1.hook_resid_post/cfg.json and so on."
        )
    return SAEs(found)


def _holds_sae(folder: Path) -> bool:
    # a folder with a configuration alone is an incomplete one, and an error says so
    return is_sae_folder(folder) or (folder / "cfg.json").exists()


def _depth(path: Path) -> tuple[int, str]:
    return parse_hook_name(path.name)[0], path.name


def orthonormal_sae(directions: Float[Tensor, "feature d_model"], *, threshold: float, hook_name: str) -> Any:
    """A JumpReLU SAE of SAELens that reads and writes along orthonormal directions, without a bias.

    Codes above `threshold` come back as they went in; what rounding leaves of the others lies below it, and is 0.

    Raises:
        InputError: SAELens is not installed.
    """
    _sae_lens()
    from sae_lens.saes.jumprelu_sae import JumpReLUSAE, JumpReLUSAEConfig

    with torch.random.fork_rng(devices=[]):  # SAELens draws weights first
        sae = JumpReLUSAE(JumpReLUSAEConfig(d_in=directions.shape[1], d_sae=directions.shape[0]))
    sae.W_dec.data, sae.W_enc.data = directions.clone(), directions.T.contiguous()
    sae.threshold.data.fill_(threshold)
    sae.cfg.metadata.hook_name = hook_name
    return sae.requires_grad_(False).eval()


def activation_batches(
    model: HookedModel,
    hook_names: Sequence[str],
    tokens: TokenSet,
    *,
    batch_rows: int,
    seed: int,
    buffer_rows: int = BUFFER_ROWS,
) -> Generator[dict[str, Float[Tensor, "row d_model"]], None, None]:
    """Endless training batches: sequences in a seeded order, their rows mixed within a buffer, the same rows
    everywhere.

    One forward pass feeds every hook point. Each epoch has a new order. Memory is `buffer_rows` rows per hook point.
    """
    rng = np.random.default_rng(seed)
    per_chunk = max(1, int(buffer_rows * len(tokens) / max(tokens.n_valid, 1)))
    carried: dict[str, Tensor] | None = None
    while True:
        order = rng.permutation(len(tokens))
        for start in range(0, len(order), per_chunk):
            chunk = tokens[order[start : start + per_chunk]]
            parts = list(stream_activations(model, hook_names, chunk))
            buffer = {name: torch.cat([part[name] for part in parts]) for name in hook_names}
            if carried is not None:
                buffer = {name: torch.cat([carried[name], rows]) for name, rows in buffer.items()}
            mix = torch.from_numpy(rng.permutation(len(buffer[hook_names[0]])))
            n = len(mix) // batch_rows
            for i in range(n):
                pick = mix[i * batch_rows : (i + 1) * batch_rows]
                yield {name: rows[pick] for name, rows in buffer.items()}
            carried = {name: rows[mix[n * batch_rows :]] for name, rows in buffer.items()}


def train_at(
    model: HookedModel,
    hook_names: Sequence[str],
    tokens: TokenSet,
    *,
    init_seeds: Mapping[str, int],
    order_seed: int,
    d_sae: int | None = None,
    k: int = 32,
    training_tokens: int = 600_000,
    config: Any = None,
    trainer: Any = None,
    start_from: Mapping[str, TrainedSAE] | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Any = None,
) -> dict[str, TrainedSAE]:
    """Train the SAEs of one checkpoint, all hook points in step. See `train_saes` for the arguments not listed.

    Args:
        init_seeds: seed of the initial weights, by hook point.
        order_seed: seed of the order of the rows.
        start_from: warm start from these instead of from the seeds.
        progress: called with the number of rows of each batch.
    """
    _sae_lens()
    from sae_lens.config import LoggingConfig, SAETrainerConfig
    from sae_lens.registry import get_sae_training_class
    from sae_lens.saes.topk_sae import TopKTrainingSAEConfig
    from sae_lens.training.multi_sae_trainer import MultiSAETrainer

    require_hooks(model, hook_names)
    first = next(stream_activations(model, hook_names, tokens[:1]))
    if trainer is None:
        batch = min(1024, max(64, training_tokens // 256))
        n_steps = max(training_tokens // batch, 1)
        trainer = SAETrainerConfig(
            total_training_samples=n_steps * batch,
            train_batch_size_samples=batch,
            lr=2e-3,
            lr_end=2e-4,
            lr_warm_up_steps=n_steps // 20,
            lr_decay_steps=n_steps // 5,
            # The library's window of 1,000 steps is longer than a short run: nothing would ever count as dead
            dead_feature_window=min(1000, max(n_steps // 8, 20)),
            logger=LoggingConfig(log_to_wandb=False),
        )
    trainer = replace(trainer, n_batches_for_norm_estimate=min(trainer.n_batches_for_norm_estimate, 20))
    saes: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    for name in hook_names:
        d_in = first[name].shape[1]
        if config is None:
            width = 4 * d_in if d_sae is None else d_sae
            made = TopKTrainingSAEConfig(d_in=d_in, d_sae=width, k=k, normalize_activations="expected_average_only_in")
        else:
            # metadata of its own, or every hook point's name would be written into one object, and that the caller's
            made = replace(config, d_in=d_in, metadata=copy.deepcopy(config.metadata))
            _require_trainable(made, name)
        if tokens.n_valid < made.d_sae:
            raise InputError(
                f"There are {tokens.n_valid} training positions for {made.d_sae} features: "
                "give at least as many tokens as features, or a smaller d_sae."
            )
        if getattr(made, "k", 1) > made.d_sae:
            raise InputError(f"k={made.k} active features are more than the d_sae={made.d_sae} there are.")
        for key, value in {**(metadata or {}), "hook_name": name}.items():
            setattr(made.metadata, key, value)
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(init_seeds[name])  # noqa: TID251 - within fork_rng
            configs[name] = made
            saes[name] = get_sae_training_class(made.architecture())[0](made)

    # equal buffers that together hold the rows asked for: none is filled and then thrown away
    n_rows = trainer.total_training_samples
    batches = activation_batches(
        model,
        hook_names,
        tokens,
        batch_rows=trainer.train_batch_size_samples,
        seed=order_seed,
        buffer_rows=-(-n_rows // -(-n_rows // BUFFER_ROWS)),
    )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive_seed(order_seed, 1))  # noqa: TID251 - within fork_rng
        multi = MultiSAETrainer(trainer, saes, {name: name for name in hook_names}, _reported(batches, progress))
        scales = _input_scales(model, hook_names, tokens, configs, order_seed)
        for name, scale in scales.items():
            multi.trainers[name].activation_scaler.scaling_factor = scale
        whitened = _whitenings(model, hook_names, tokens, configs, order_seed)
        for name, whitening in whitened.items():
            multi.trainers[name].activation_scaler.whitening = whitening
        if start_from is not None:
            for name, sae in saes.items():
                _start_from(sae, start_from[name].state, whitened.get(name))
        # SAELens draws a bar of its own to standard error whatever the caller wants: ours is `progress`
        with _before_folding(saes) as states, contextlib.redirect_stderr(io.StringIO()):
            trained = multi.fit()
    batches.close()
    result = {}
    for name, sae in trained.items():
        state = states.get(name) or _state_of(sae)
        if name in whitened:
            state |= {f"{_INPUT}{part}": getattr(whitened[name], part) for part in _WHITENING}
        result[name] = TrainedSAE(_inference(sae), state, configs[name], scales.get(name, 1.0))
    return result


def _require_trainable(config: Any, hook_name: str) -> None:
    """Refuse, before hours of training, what no feature of has a contribution."""
    if config.normalize_activations in ("layer_norm", "constant_norm_rescale"):
        raise InputError(
            f"An SAE trained with normalize_activations={config.normalize_activations!r} rescales each input by "
            "itself, so that its features have no contribution of their own and nothing could be ablated: use "
            "'expected_average_only_in', 'covariance_whitening' or 'none'."
        )
    if config.reshape_activations != "none":
        raise InputError(
            f"reshape_activations={config.reshape_activations!r} is for hook points of several heads, and "
            f"{hook_name!r} has one vector a position: leave it out."
        )


def _state_of(sae: Any) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in sae.state_dict().items()}


@contextlib.contextmanager
def _before_folding(saes: Mapping[str, Any]) -> Generator[dict[str, dict[str, Tensor]], None, None]:
    """The weights as training left them, of each SAE into which the scale of its input is folded at the end.

    SAELens folds within `fit`, and what is folded cannot be unfolded: a TopK SAE then has other decoder norms, and
    float32 has forgotten what a whitening shrank.
    """
    states: dict[str, dict[str, Tensor]] = {}
    names = ("fold_activation_norm_scaling_factor", "fold_activation_whitening")

    def keeping(name: str, fold: Any) -> Any:
        def kept(*args: Any, **kwargs: Any) -> None:
            states.setdefault(name, _state_of(saes[name]))
            fold(*args, **kwargs)

        return kept

    held = [(sae, fold) for sae in saes.values() for fold in names if hasattr(sae, fold)]
    for name, sae in saes.items():
        for fold in names:
            if hasattr(sae, fold):
                object.__setattr__(sae, fold, keeping(name, getattr(sae, fold)))
    try:
        yield states
    finally:
        for sae, fold in held:
            object.__delattr__(sae, fold)


_INPUT = "input."  # of the parts of a whitening, among the weights
_WHITENING = ("mean", "matrix", "inverse_matrix")


def _start_from(sae: Any, state: Mapping[str, Tensor], whitening: Any) -> None:
    """Load what an earlier training ended with, and carry it over where the input is whitened in another way.

    With z = (x - m) M before and z' = (x - m') M' now, z = (z' - (m - m') M') M'^-1 M: an affine map of the input,
    which SAELens folds as it folds a whitening. The SAE then does to x what it did.
    """
    sae.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith(_INPUT)})
    if whitening is None or not any(name.startswith(_INPUT) for name in state):
        return
    before = {part: state[f"{_INPUT}{part}"].to(whitening.matrix) for part in _WHITENING}
    settings = dict(vars(sae.cfg))  # folding also says in the configuration that nothing is whitened any more
    sae.fold_activation_whitening(
        mean=(before["mean"] - whitening.mean) @ whitening.matrix,
        whitening_matrix=whitening.inverse_matrix @ before["matrix"],
        unwhitening_matrix=before["inverse_matrix"] @ whitening.matrix,
    )
    vars(sae.cfg).update(settings)


def _reported(batches: Iterator[dict[str, Tensor]], progress: Any) -> Iterator[dict[str, Tensor]]:
    for batch in batches:
        if progress is not None:
            progress(len(next(iter(batch.values()))))
        yield batch


def _input_scales(
    model: HookedModel, hook_names: Sequence[str], tokens: TokenSet, configs: Mapping[str, Any], seed: int
) -> dict[str, float]:
    """sqrt(d_in) over the mean norm, where the configuration asks for it; no training row is spent on it."""
    wanted = [n for n in hook_names if configs[n].normalize_activations == "expected_average_only_in"]
    if not wanted:
        return {}
    total, count = dict.fromkeys(wanted, 0.0), 0
    for batch in stream_activations(model, wanted, _norm_sample(tokens, seed)):
        for name, rows in batch.items():
            total[name] += float(rows.double().norm(dim=1).sum())
        count += len(batch[wanted[0]])
    return {name: float(configs[name].d_in ** 0.5 * count / total[name]) for name in wanted}


def _whitenings(
    model: HookedModel, hook_names: Sequence[str], tokens: TokenSet, configs: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """SAELens' whitening of the input, where the configuration asks for it; no training row is spent on it."""
    wanted = [n for n in hook_names if configs[n].normalize_activations == "covariance_whitening"]
    if not wanted:
        return {}
    from sae_lens.training.activation_scaler import ActivationScaler

    batches = list(stream_activations(model, wanted, _norm_sample(tokens, seed)))
    found = {}
    for name in wanted:
        scaler = ActivationScaler()
        with contextlib.redirect_stderr(io.StringIO()):  # a bar of SAELens' own
            scaler.estimate_whitening(configs[name].d_in, iter([batch[name] for batch in batches]), len(batches))
        found[name] = scaler.whitening
    return found


def _norm_sample(tokens: TokenSet, seed: int) -> TokenSet:
    order = np.random.default_rng(derive_seed(seed, 2)).permutation(len(tokens))
    return tokens[order].head(NORM_ROWS)


def _inference(training_sae: Any) -> Any:
    # Through the folder format, so that whatever an architecture does on saving is done
    with tempfile.TemporaryDirectory() as folder:
        training_sae.save_inference_model(folder)
        return load_sae(folder)


def train_saes(
    series: Mapping[int, HookedModel],
    hook_names: Sequence[str],
    tokens: TokenSet,
    *,
    d_sae: int | None = None,
    k: int = 32,
    training_tokens: int = 600_000,
    init: str = "shared",
    seed: int = 0,
    order_seed: int | None = None,
    out: str | Path | None = None,
    config: Any = None,
    trainer: Any = None,
    progress: bool | None = None,
) -> SAEs:
    """Train SAEs at every checkpoint and hook point with SAELens (D1).

    Args:
        series: a `CheckpointSeries`, or a mapping of step to hooked model.
        hook_names: the hook points; one forward pass feeds them all.
        tokens: training text.
        d_sae: features of an SAE; 4 times the width by default ([prior]).
        k: active features per token ([prior]: 32).
        training_tokens: activation rows each SAE sees, over as many epochs as that takes (ours).
        init: "shared" starts every checkpoint of a hook point from one set of weights, "independent" from a set of its
            own, "previous" from the SAE of the checkpoint before.
        seed: of weights and row order. The order differs from checkpoint to checkpoint, drawn from (seed, step).
        order_seed: of the row order alone, where it is to differ while the weights stay (`data` noise, C1).
        out: also write each SAE under `out/step{N}/{hook_name}`.
        config: any SAELens training configuration instead of TopK; its `d_in` is set for each hook point.
        trainer: a `sae_lens.SAETrainerConfig` instead of ours.
        progress: a progress bar; by default only on a terminal.

    Returns:
        SAEs whose members are plain inference `sae_lens.SAE`s that take raw activations.

    How it can mislead: two trainings on one model agree only in part (see `rematch_rate`), less so from different
    initial weights; what changes between checkpoints has to exceed that. A finished BatchTopK SAE is stored by SAELens
    as JumpReLU, with a threshold far off after a short run: TopK is the default for that reason.

    Raises:
        InputError: SAELens is not installed, an unknown `init`, fewer tokens than features, NaN activations.
    """
    check_init(init)
    steps = list(series)
    total = training_tokens * len(steps) if trainer is None else trainer.total_training_samples * len(steps)
    found: dict[tuple[int, str], Any] = {}
    before: Mapping[str, TrainedSAE] | None = None
    with tqdm(
        total=total, desc="training SAEs", unit=" rows", disable=None if progress is None else not progress
    ) as bar:
        for step in steps:
            try:
                trained = train_at(
                    series[step],
                    hook_names,
                    tokens,
                    init_seeds=init_seeds(hook_names, init=init, seed=seed, step=step),
                    order_seed=derive_seed(seed if order_seed is None else order_seed, step, 7),
                    d_sae=d_sae,
                    k=k,
                    training_tokens=training_tokens,
                    config=config,
                    trainer=trainer,
                    start_from=before if init == "previous" else None,
                    metadata={"model_name": str(getattr(series, "name", "model")), "checkpoint_step": step},
                    progress=bar.update,
                )
            except NonFiniteActivations as error:
                raise NonFiniteActivations(f"Step {step}: {error}") from error
            before = trained
            found.update({(step, name): one.sae for name, one in trained.items()})
            if out is not None:
                SAEs({(step, name): one.sae for name, one in trained.items()}).save(out)
    return SAEs(found)


def check_init(init: str) -> None:
    """Refuse an unknown way to initialise."""
    one_of("init", init, ("shared", "independent", "previous"))


def init_seeds(hook_names: Sequence[str], *, init: str, seed: int, step: int) -> dict[str, int]:
    """Seed of the initial weights at each hook point: a function of the step only when they are "independent"."""
    extra = (step + 1,) if init == "independent" else ()
    return {name: derive_seed(seed, i, 11, *extra) for i, name in enumerate(hook_names)}


def save_training_state(trained: Mapping[str, TrainedSAE], folder: Path) -> None:
    """Keep what a warm start needs beside the inference SAEs: weights in the space that training uses."""
    from safetensors.torch import save_file

    for name, one in trained.items():
        save_file({key: value.contiguous() for key, value in one.state.items()}, folder / name / "training.safetensors")


def load_training_state(folder: Path, hook_names: Sequence[str]) -> dict[str, TrainedSAE]:
    """The counterpart of `save_training_state`."""
    from safetensors.torch import load_file

    return {name: TrainedSAE(None, load_file(folder / name / "training.safetensors"), None) for name in hook_names}
