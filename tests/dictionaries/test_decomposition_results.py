"""A `Decomposition` as an object: inputs, dtypes, streaming, the rest of the library, files and mistakes."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from planted_parts import spread
from safetensors.torch import save_file
from torch import Tensor

from tl_lifehist.dictionaries.decomposition import Decomposition, decompose, dictionary_overlap, load_decomposition
from tl_lifehist.dictionaries.methods import METHODS, FitOptions, Method
from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions
from tl_lifehist.dictionaries.rows import BLOCK, Moments, Rows
from tl_lifehist.dictionaries.svd import Fit
from tl_lifehist.errors import InputError
from tl_lifehist.interventions import FeatureAblation, MaskedReconstruction


def same(a: Decomposition, b: Decomposition) -> bool:
    values = [(getattr(a, field.name), getattr(b, field.name)) for field in fields(a)]
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in values)


@pytest.mark.parametrize("method", METHODS)
def test_batches_give_what_one_matrix_gives(method: str):
    x = spread(2 * BLOCK + 300, 7, 1)
    whole = decompose(x, method=method, n_components=3, max_iter=20)
    cuts = [100, 5000, 5001, 8200]
    batches = list(torch.tensor_split(x, cuts))
    assert same(decompose(batches, method=method, n_components=3, max_iter=20), whole)
    assert same(decompose(lambda: iter(batches), method=method, n_components=3, max_iter=20), whole)
    for unseen in (x[:1], x[3000:3007], x[::500]):
        torch.testing.assert_close(
            whole.encode(unseen), torch.cat([whole.encode(row[None]) for row in unseen]), rtol=1e-9, atol=1e-9
        )


def test_a_generator_can_be_read_once():
    x = spread(500, 6)
    assert same(decompose(iter(x.split(64)), n_components=3), decompose(x, n_components=3))
    with pytest.raises(InputError, match="fresh iterator"):
        decompose(iter(x.split(64)), method="ica", n_components=3)


def test_a_source_must_repeat_itself():
    sizes = iter([200, 190, 190])
    with pytest.raises(InputError, match="200 rows and then 190"):
        decompose(lambda: [spread(next(sizes), 6)], method="nmf", n_components=2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_types_are_raised_and_double_stays(method: str, dtype: torch.dtype):
    x = spread(300, 6, 2).to(dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    found = decompose(x, method=method, n_components=3, max_iter=30)
    tensors = [getattr(found, f.name) for f in fields(found) if isinstance(getattr(found, f.name), Tensor)]
    assert {tensor.dtype for tensor in tensors} == {expected}
    assert found.encode(x).dtype == found.decode(found.encode(x)).dtype == expected
    assert found.to(torch.float64).encode(x).dtype == torch.float64
    raised = decompose(x.double(), method=method, n_components=3, max_iter=30)
    assert found.explained_variance == pytest.approx(raised.explained_variance, abs=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_codes_keep_the_shape_before_the_width(method: str):
    x = spread(60, 6, 3)
    found = decompose(x, method=method, n_components=3, max_iter=30)
    codes = found.encode(x.reshape(5, 12, 6))
    torch.testing.assert_close(codes.flatten(0, 1), found.encode(x))
    assert found.decode(codes).shape == (5, 12, 6)
    assert found.encode(x[0]).shape == (3,)
    assert found.encode(x[:0]).shape == (0, 3)
    with pytest.raises(InputError, match="width 6"):
        found.encode(x[:, :5])


@pytest.mark.parametrize("method", METHODS)
def test_it_is_a_dictionary_with_its_reference(method: str):
    x = spread(400, 6, 4)
    found = decompose(x, method=method, n_components=4, max_iter=50)
    assert isinstance(found, Dictionary)
    torch.testing.assert_close(decoder_directions(found), found.W_dec)
    torch.testing.assert_close(found.x_mean, x.mean(dim=0))
    torch.testing.assert_close(found.code_mean, found.encode(x).mean(dim=0), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.code_sample, found.encode(x))  # all rows where there are few

    def hooked(intervention: MaskedReconstruction | FeatureAblation) -> Tensor:
        ((name, hook),) = intervention.fwd_hooks()
        assert name == "h"
        return hook(x[None], None)[0]

    empty = hooked(MaskedReconstruction("h", found, torch.zeros(4, dtype=torch.float64)))
    torch.testing.assert_close(empty, x.mean(dim=0).expand_as(x))
    full = hooked(MaskedReconstruction("h", found, torch.ones(4, dtype=torch.float64), center_codes=False))
    torch.testing.assert_close(full, found.decode(found.encode(x)))
    kept = hooked(MaskedReconstruction("h", found, torch.ones(4, dtype=torch.float64), keep_error=True))
    torch.testing.assert_close(kept, x)  # open gates with the error kept are the activation
    for mode in ("mean", "resample"):
        changed = hooked(FeatureAblation({"h": found}, {"h": [1]}, mode=mode))
        assert not torch.equal(changed, x)


def test_the_sample_of_codes_is_bounded_and_of_these_rows():
    x = spread(BLOCK * 3, 5, 5)
    found = decompose(x, n_components=2)
    assert found.code_sample.shape == (4096, 2)
    codes = found.encode(x)
    where = (found.code_sample[:, None, 0] - codes[None, :, 0]).abs().argmin(dim=1)
    torch.testing.assert_close(codes[where], found.code_sample)
    assert bool((where.diff() > 0).all())  # every row at most once, in order
    assert where.float().mean() == pytest.approx(len(x) / 2, rel=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_a_file_gives_back_the_same_decomposition(method: str, tmp_path: Path):
    x = spread(300, 6, 6).float()
    found = decompose(x, method=method, n_components=3, max_iter=10, offset="relu")
    found.save(tmp_path / "one.safetensors")
    loaded = load_decomposition(tmp_path / "one.safetensors")
    assert same(found, loaded)
    assert torch.equal(loaded.encode(x), found.encode(x))
    assert loaded.offset == ("relu" if method == "nmf" else "mean")


def test_damaged_and_foreign_files_are_refused(tmp_path: Path):
    path = tmp_path / "one.safetensors"
    with pytest.raises(InputError, match="no decomposition at"):
        load_decomposition(path)
    found = decompose(spread(100, 5), n_components=2)
    found.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(InputError, match="damaged"):
        load_decomposition(path)
    path.write_bytes(b"no safetensors at all")
    with pytest.raises(InputError, match="damaged"):
        load_decomposition(path)
    save_file({"W_dec": torch.ones(2, 5)}, path)
    with pytest.raises(InputError, match="holds no decomposition"):
        load_decomposition(path)
    stored = found.to_tensors()
    for change in ("not json", json.dumps({"method": "svd"}), json.dumps({"format": "another"}), json.dumps(7)):
        about = torch.tensor(list(change.encode()), dtype=torch.uint8)
        save_file({**stored, "about": about}, path)
        with pytest.raises(InputError, match="holds no decomposition"):
            load_decomposition(path)
    for name, wrong in (("b_dec", torch.ones(4)), ("code_mean", torch.ones(3)), ("W_enc", torch.ones(2, 5))):
        save_file({**stored, name: wrong}, path)
        with pytest.raises(InputError, match="holds no decomposition"):
            load_decomposition(path)


def fit_axes(rows: Rows, found: Moments, n_components: int, options: FitOptions) -> Fit:
    """The first coordinates, in an order that the seed draws."""
    order = torch.randperm(len(found.mean), generator=torch.Generator().manual_seed(options.seed))
    axes = torch.eye(len(found.mean))[order[:n_components]].to(found.mean)
    return Fit(axes, found.mean, axes.T.contiguous())


def test_a_decomposition_of_ones_own_is_one_line():
    METHODS.register("axes", Method(fit_axes, "Axes", linear=True))
    try:
        x = spread(80, 5)
        found = decompose(x, method="axes", n_components=3, seed=1)
        assert found.method == "axes"
        assert torch.equal(found.W_dec.sort(dim=1).values[:, :4], torch.zeros(3, 4))
        assert found.encode(x).shape == (80, 3)
        with pytest.raises(InputError, match='no 6 components under "axes"'):
            decompose(x, method="axes", n_components=6)
    finally:
        METHODS.unregister("axes")
    with pytest.raises(InputError, match="'axes' is unknown"):
        decompose(x, method="axes")


def test_mistakes_are_named():
    x = spread(50, 6)
    with pytest.raises(InputError, match="method='pca' is unknown"):
        decompose(x, method="pca")
    with pytest.raises(InputError, match="offset='none' is unknown"):
        decompose(x, method="nmf", offset="none")
    for method in ("svd", "ica"):
        with pytest.raises(InputError, match="at most 6"):
            decompose(x, method=method, n_components=7)
    for method in METHODS:
        with pytest.raises(InputError, match="4 rows are fewer than 5"):
            decompose(x[:4], method=method, n_components=5)
        with pytest.raises(InputError, match="constant"):
            decompose(torch.full((50, 6), 0.1), method=method, n_components=2)
        with pytest.raises(InputError, match="at least one"):
            decompose(x, method=method, n_components=0)
    for bad in (float("nan"), float("inf"), -float("inf")):
        damaged = spread(BLOCK + 50, 6)
        damaged[BLOCK + 17, 3] = bad
        with pytest.raises(InputError, match=f"Row {BLOCK + 17} "):
            decompose(damaged)
    with pytest.raises(InputError, match="no activation rows"):
        decompose(x[:0])
    with pytest.raises(InputError, match="matrices"):
        decompose(x[None])
    with pytest.raises(InputError, match="6 and 5 wide|5 and 6 wide"):
        decompose([x, x[:, :5]])
    with pytest.raises(InputError, match="6 and 5 wide|5 and 6 wide"):
        decompose([spread(BLOCK, 6), spread(BLOCK, 5)])
    with pytest.raises(InputError, match="3 directions only"):
        decompose(spread(100, 6, rank=3), method="ica", n_components=4)
    with pytest.raises(InputError, match="6 and 5 wide"):
        dictionary_overlap(decompose(x, n_components=2), decompose(x[:, :5], n_components=2))


def test_components_default_to_the_width_and_at_most_a_hundred():
    assert decompose(spread(50, 6)).W_dec.shape == (6, 6)
    assert decompose(spread(200, 120)).W_dec.shape == (100, 120)
    assert decompose(spread(80, 4), method="nmf", n_components=6, max_iter=20).W_dec.shape == (6, 4)


@pytest.mark.parametrize("power", [-100, -66, -17, 17, 66, 100])
@pytest.mark.parametrize("method", METHODS)
def test_activations_of_any_size_are_decomposed_alike(method: str, power: int):
    """Sizes from 1e-30 to 1e30, in powers of 2, which round nothing."""
    x, size = spread(300, 6, 6).float(), 2.0**power
    usual, found = (decompose(rows, method=method, n_components=3, seed=1) for rows in (x, x * size))
    assert (found.converged, found.n_iter) == (usual.converged, usual.n_iter)
    assert found.explained_variance == pytest.approx(usual.explained_variance, abs=1e-6)
    assert torch.allclose(found.component_variance, usual.component_variance, atol=1e-6)
    codes = 1.0 if method == "ica" else size
    assert torch.allclose(found.W_dec.double() * codes / size, usual.W_dec.double(), atol=1e-6)
    for name, by in (("b_dec", size), ("x_mean", size), ("code_mean", codes), ("code_sample", codes)):
        assert torch.allclose(getattr(found, name).double() / by, getattr(usual, name).double(), atol=1e-5), name
    again = found.decode(found.encode(x * size)).double() / size
    assert torch.allclose(again, usual.decode(usual.encode(x)).double(), atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_only_what_is_constant_is_called_constant(method: str):
    for value in (0.0, 0.1, 1e-30, -1e30):
        with pytest.raises(InputError, match="constant"):
            decompose(torch.full((50, 6), value), method=method, n_components=2)
    faint = torch.full((50, 6), 1e-25)
    faint[::2, 1] += 1e-30
    k = 1 if METHODS[method].linear else 2  # non-negative codes reach one side of the mean only
    assert decompose(faint, method=method, n_components=k).explained_variance > 0.99


@pytest.mark.parametrize("method", METHODS)
def test_sizes_too_far_apart_are_named(method: str):
    x = spread(BLOCK + 60, 6, 6).float()
    x[:BLOCK] *= 1e-25
    x[BLOCK:] *= 1e25
    with pytest.raises(InputError, match="float64"):
        decompose(x, method=method, n_components=2)
