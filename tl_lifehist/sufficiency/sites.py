"""Tables of several checkpoints and hook points: which each row is of, and many of them as one."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tl_lifehist.hook_names import parse_hook_name


def with_site(table: pd.DataFrame, step: int, hook_name: str) -> pd.DataFrame:
    """The table with the columns step, hook_name, site and layer (-1 outside the blocks) in front."""
    layer, site = parse_hook_name(hook_name)
    keys = {"step": step, "hook_name": hook_name, "site": site, "layer": layer}
    return table.assign(**keys)[[*keys, *table.columns]]


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all tables, in order; the first one where none has any."""
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else tables[0]
