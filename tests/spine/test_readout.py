"""Figures in chunks equal figures at once, and so do their gradients."""

from __future__ import annotations

import pytest
import torch

from tl_lifehist import readout
from tl_lifehist.metrics import cross_entropy, entropy, kl_divergence


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 9, generator=generator).double()
    rows = torch.randn(23, 5, generator=generator).double()
    changed = rows.unsqueeze(1) + torch.randn(23, 3, 5, generator=generator).double() * 0.3
    labels = torch.randint(0, 9, (23,), generator=generator)
    return (lambda r: torch.tanh(r) @ weight), rows, changed, labels


@pytest.fixture(params=[7, 40, 10**6], ids=lambda n: f"chunk{n}")
def _chunk(request, monkeypatch):
    monkeypatch.setattr(readout, "CHUNK", request.param)


@pytest.mark.usefixtures("_chunk")
def test_values_and_gradients_do_not_depend_on_the_chunk(case):
    head, rows, changed, labels = case
    ours, plain = changed.clone().requires_grad_(), changed.clone().requires_grad_()
    weights = torch.rand(23, 3, generator=torch.Generator().manual_seed(1)).double()
    kl = readout.readout_kl(head, rows, ours)
    direct = torch.stack([kl_divergence(head(rows), head(v)) for v in plain.unbind(1)], dim=1)
    assert torch.allclose(kl, direct)
    (kl * weights).sum().backward()
    (direct * weights).sum().backward()
    assert torch.allclose(ours.grad, plain.grad)

    one = rows.clone().requires_grad_()
    loss = readout.readout_cross_entropy(head, one, labels)
    assert torch.allclose(loss, cross_entropy(head(rows), labels))
    loss[3].backward()
    assert one.grad[3].abs().sum() > 0
    assert one.grad[4].abs().sum() == 0
    assert torch.allclose(readout.readout_entropy(head, rows), entropy(head(rows)))


@pytest.mark.usefixtures("_chunk")
def test_comparisons(case):
    head, rows, changed, labels = case
    found = readout.compare_readouts(head, rows, list(changed.unbind(1)), labels)
    assert torch.allclose(found.kl, readout.readout_kl(head, rows, changed).T)
    assert torch.equal(found.correct, head(rows).argmax(-1) == labels)
    assert torch.equal(found.changed_correct[2], head(changed[:, 2]).argmax(-1) == labels)
    assert torch.allclose(found.entropy, entropy(head(rows)))


def test_nothing_to_read(case):
    head, rows, _, labels = case
    none = readout.compare_readouts(head, rows[:0], [rows[:0]], labels[:0])
    assert none.kl.shape == (1, 0)
    assert readout.readout_kl(head, rows[:0], rows[:0]).shape == (0,)


def test_drawn_labels_follow_the_predictions(case):
    head, rows, _, _ = case
    generator = torch.Generator().manual_seed(3)
    many = rows[:1].expand(4000, -1)
    counts = readout.sample_labels(head, many, generator).bincount(minlength=9) / 4000
    assert torch.allclose(counts.double(), head(rows[:1]).softmax(-1)[0], atol=0.03)
