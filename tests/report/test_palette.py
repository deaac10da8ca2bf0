"""Colours that mean different things look different to the colour-blind, and show on white and on near-black."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tl_lifehist import palette

FAR_ENOUGH = 14  # in CIELAB; 2 is just seen side by side, and lines far apart on a page need several times that
LEAST_CONTRAST = 2.0  # WCAG's ratio to either ground
GROUNDS = ("#ffffff", "#14171b")
# Linear RGB as seen by who lacks one kind of cone: Machado, Oliveira, Fernandes (2009), severity 1.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    ratio = (XYZ @ rgb) / XYZ.sum(axis=1)
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def seen(colour: str, matrix: object) -> np.ndarray:
    return cielab(np.clip(np.asarray(matrix) @ linear(colour), 0, 1))


def test_the_conversion_is_right() -> None:
    assert cielab(linear("#ffffff")) == pytest.approx([100, 0, 0], abs=0.01)
    assert cielab(linear("#ff0000")) == pytest.approx([53.24, 80.09, 67.2], abs=0.05)


@pytest.mark.parametrize("eye", SEEN)
def test_any_two_meanings_are_told_apart(eye: str) -> None:
    near = {
        (a, b): distance
        for a, b in combinations(palette.MEANINGS, 2)
        if (distance := float(np.linalg.norm(seen(a, SEEN[eye]) - seen(b, SEEN[eye])))) < FAR_ENOUGH
    }
    assert near == {}


def test_every_colour_of_a_target_and_of_a_meaning_is_among_them() -> None:
    from tl_lifehist.sufficiency.target_kinds import TARGETS

    opaque = {value for name, value in vars(palette).items() if isinstance(value, str) and value.startswith("#")}
    assert opaque - {palette.INK} == set(palette.MEANINGS)
    assert {kind.colour for kind in TARGETS.values()} <= set(palette.MEANINGS)


@pytest.mark.parametrize("colour", palette.MEANINGS)
def test_a_colour_shows_on_both_grounds(colour: str) -> None:
    light = float(XYZ[1] @ linear(colour))
    for ground in GROUNDS:
        pair = sorted((light, float(XYZ[1] @ linear(ground))))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) > LEAST_CONTRAST
