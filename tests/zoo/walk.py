"""One model through everything that replaces activations, beside full hooked passes: `from zoo.walk import WALK`.

Each way takes a model and hook point and gives pairs of numbers: what the library says and what plain hooks say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from zoo.architectures import POSITIONS, VOCAB

import tl_lifehist as lh
from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.fisher import gate_fisher
from tl_lifehist.sufficiency.objectives import injected_losses
from tl_lifehist.sufficiency.targets import Downstream
from tl_lifehist.sufficiency.translator import scored_rows
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet

K = 2
TOLERANCE = 1e-5  # of central differences
Pair = tuple[Any, Any]


def tokens_of(n: int = 4) -> TokenSet:
    """Causal text; the first position of each sequence is not valid."""
    ids = torch.randint(0, VOCAB, (n, POSITIONS), generator=torch.Generator().manual_seed(4))
    labels = torch.cat([ids[:, 1:], torch.full((n, 1), -100)], dim=1)
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[:, 0] = False
    return TokenSet(ids, valid, labels)


@dataclass
class Site:
    """A model at a hook point, with a dictionary that is not the model's own, and what plain hooks say."""

    model: Any
    hook_name: str

    @cached_property
    def tokens(self) -> TokenSet:
        return tokens_of()

    @cached_property
    def acts(self) -> Tensor:
        """Clean activations, by a hook."""
        return self.passed(None)[1]

    @cached_property
    def dictionary(self) -> Any:
        return lh.decompose(self.acts, n_components=K)

    @cached_property
    def gates(self) -> Tensor:
        return torch.tensor([0.9, 0.2], dtype=torch.float64)

    def passed(self, edit: Callable[[Tensor], Tensor] | None) -> tuple[Tensor, Tensor]:
        """Logits at scored positions and activations at valid ones, of one full pass."""
        seen: list[Tensor] = []

        def hook_fn(value: Tensor, hook: Any) -> Tensor | None:
            rows = value.flatten(2)[self.tokens.valid]
            seen.append(rows.detach().clone())
            if edit is None:
                return None
            flat = value.flatten(2).clone()
            flat[self.tokens.valid] = edit(rows)
            return flat.reshape(value.shape)

        with self.model.hooks(fwd_hooks=[(self.hook_name, hook_fn)]):
            logits = self.model(self.tokens.ids)
        return logits[self.tokens.scored], seen[0]

    def masked(self, gates: Tensor) -> Tensor:
        """Logits with the masked reconstruction in place."""
        d = self.dictionary
        codes = (self.acts - d.b_dec) @ d.W_enc - d.code_mean
        rows = d.x_mean + (gates * codes) @ d.W_dec
        return self.passed(lambda _: rows)[0]

    @cached_property
    def clean(self) -> Tensor:
        return self.passed(None)[0].detach()


def kl(clean: Tensor, changed: Tensor) -> Tensor:
    return (clean.softmax(-1) * (clean.log_softmax(-1) - changed.log_softmax(-1))).sum(-1)


def collect(site: Site) -> list[Pair]:
    return [(lh.collect_activations(site.model, site.hook_name, site.tokens, batch_size=2), site.acts)]


def ablation(site: Site) -> list[Pair]:
    d = site.dictionary
    codes = (site.acts - d.b_dec) @ d.W_enc
    changed, _ = site.passed(lambda rows: rows - codes[:, :1] @ d.W_dec[:1])
    found = lh.ablation_effect(
        site.model, lh.FeatureAblation({site.hook_name: d}, {site.hook_name: [0]}), site.tokens, batch_size=2
    )
    return [(found.kl, kl(site.clean, changed).mean().detach())]


def evaluation(site: Site) -> list[Pair]:
    found = lh.evaluate_mask(
        site.model, site.dictionary, site.gates, site.tokens, hook_name=site.hook_name, batch_size=2
    )
    masks = {"mask": site.gates, "empty": torch.zeros(K, dtype=torch.float64)}
    wanted = {name: kl(site.clean, site.masked(z)).mean().detach() for name, z in masks.items()}
    return [(found.kl, wanted["mask"]), (found.empty.kl, wanted["empty"])]


def calibration(site: Site) -> list[Pair]:
    """The loss of two masks that share a pass, with their gradients; and of the first step of a descent."""
    target = Downstream("nats")
    run = CleanRun(site.model, site.hook_name, site.tokens, 2)
    objective = target.objective(run, MaskBasis.of(site.dictionary, site.hook_name))
    masks = [site.gates.clone().requires_grad_(), (1 - site.gates).requires_grad_()]
    mask = lh.calibrate_mask(
        site.model, site.dictionary, site.tokens, target, hook_name=site.hook_name, steps=1, batch_size=9
    )
    pairs: list[Pair] = []
    chosen = torch.tensor([1, 3])
    losses = injected_losses([objective] * 2, masks, chosen)
    slopes = torch.autograd.grad(sum(losses), masks)
    rows = torch.isin(torch.nonzero(site.tokens.scored)[:, 0], chosen)
    for loss, slope, z in zip(losses, slopes, masks, strict=True):
        again = z.detach().clone().requires_grad_()
        wanted = gradient_inside(site, again, rows)
        pairs += [(loss.detach(), wanted[0]), (slope, wanted[1])]
    start = torch.sigmoid(torch.full((K,), 2.0, dtype=torch.float64))
    pairs.append((mask.history["loss"][0], kl(site.clean, site.masked(start)).mean().detach()))
    return pairs


def gradient_inside(site: Site, gates: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient, by central differences: what autograd says is in question too."""

    def loss(z: Tensor) -> Tensor:
        with torch.no_grad():
            return kl(site.clean[rows], site.masked(z)[rows]).mean()

    z, h = gates.detach(), 1e-5
    eye = torch.eye(K, dtype=torch.float64) * h
    return loss(z), torch.stack([(loss(z + e) - loss(z - e)) / (2 * h) for e in eye])


def scores(site: Site) -> list[Pair]:
    found = lh.gate_scores(site.model, site.dictionary, site.tokens, hook_name=site.hook_name, batch_size=2)
    one, h = torch.ones(K, dtype=torch.float64), 1e-5
    labels = site.tokens.labels[site.tokens.scored]
    sequence = torch.nonzero(site.tokens.scored)[:, 0]

    def losses(z: Tensor) -> Tensor:
        with torch.no_grad():
            each = torch.nn.functional.cross_entropy(site.masked(z), labels, reduction="none")
        return torch.stack([each[sequence == i].mean() for i in range(len(site.tokens))])

    wanted = [(losses(one + e) - losses(one - e)) / (2 * h) for e in torch.eye(K, dtype=torch.float64) * h]
    return [(found.gradients, torch.stack(wanted, dim=1))]


def fisher(site: Site) -> list[Pair]:
    found = gate_fisher(
        site.model, site.dictionary, site.tokens, hook_name=site.hook_name, method="exact", batch_size=4
    )
    one, h = torch.ones(K, dtype=torch.float64), 1e-5
    with torch.no_grad():
        moves = [(site.masked(one + e) - site.masked(one - e)) / (2 * h) for e in torch.eye(K, dtype=torch.float64) * h]
        p = site.masked(one).softmax(-1)
    g = torch.stack(moves, dim=1)
    g = g - (p.unsqueeze(1) * g).sum(-1, keepdim=True)
    return [(found, torch.einsum("rv,riv,rjv->ij", p, g, g) / len(p))]


def translator(site: Site) -> list[Pair]:
    """The fixed head's own head on clean final rows, and its first loss."""
    made = lh.fit_translator(site.model, site.hook_name, site.tokens, steps=2, batch_size=2)
    _, final = scored_rows(ModelSuffix(site.model, site.hook_name), site.tokens, 2)
    return [(made.head(final).detach().log_softmax(-1), site.clean.log_softmax(-1))]


WALK: dict[str, Callable[[Site], list[Pair]]] = {
    "collect": collect,
    "ablation": ablation,
    "evaluation": evaluation,
    "calibration": calibration,
    "gate scores": scores,
    "gate Fisher": fisher,
    "translator": translator,
}
SECOND = ("collect", "evaluation", "calibration", "translator")  # at a model's second hook point, for time's sake


def hook_names_of(name: str) -> tuple[str, ...]:
    """Where an architecture is looked at."""
    return (
        ("hook_mid",) if name == "hook points without blocks" else ("blocks.1.hook_mlp_out", "blocks.2.hook_resid_post")
    )


def error(pairs: list[Pair]) -> float:
    """The largest difference, over the size of what it should be."""
    worst = 0.0
    for found, wanted in pairs:
        a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (found, wanted))
        worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)))
    return worst
