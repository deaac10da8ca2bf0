"""Names of tables on the page, as its figures write them. What a figure shows is escaped already, so it is HTML."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tl_lifehist.report.figures import cells, style


def label(name: object) -> Markup:
    """A mask, null, method or quantity for a reader."""
    return Markup(cells.label(name))  # noqa: S704


def hook_labels(hook_names: Sequence[str]) -> dict[str, Markup]:
    """A short name for each hook point."""
    return {name: Markup(short) for name, short in style.hook_labels(hook_names).items()}  # noqa: S704
