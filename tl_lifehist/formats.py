"""How the outputs of a stage become files: one format for each kind of value, each readable without this package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import torch


def write_output(folder: Path, name: str, value: Any) -> str:
    """Write one output and return its kind, which is the ending of its file ("folder" for an SAE's).

    A DataFrame goes into Parquet, a mapping of numpy arrays into npz, a mapping of tensors into safetensors, a graph
    into GraphML, an SAE into SAELens' own folder, anything else into JSON.
    """
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, pd.DataFrame):
        value.to_parquet(f"{path}.parquet", index=False)
        return "parquet"
    if isinstance(value, nx.Graph):
        readable = nx.relabel_nodes(value, {n: "/".join(map(str, n)) for n in value if isinstance(n, tuple)})
        nx.write_graphml(readable, f"{path}.graphml")
        return "graphml"
    if hasattr(value, "save_model"):
        value.save_model(path)
        return "folder"
    if isinstance(value, Mapping) and value:
        first = next(iter(value.values()))
        if isinstance(first, torch.Tensor):
            from safetensors.torch import save_file

            save_file({key: tensor.contiguous() for key, tensor in value.items()}, f"{path}.safetensors")
            return "safetensors"
        if isinstance(first, np.ndarray):
            np.savez(f"{path}.npz", allow_pickle=False, **value)
            return "npz"
    Path(f"{path}.json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return "json"


def read_output(folder: Path, name: str, kind: str) -> Any:
    """The counterpart of `write_output`; the nodes of a graph are strings, the keys of a JSON object too."""
    path = folder / name
    if kind == "parquet":
        return pd.read_parquet(f"{path}.parquet")
    if kind == "graphml":
        return nx.read_graphml(f"{path}.graphml")
    if kind == "folder":
        from tl_lifehist.dictionaries.sae import load_sae

        return load_sae(path)
    if kind == "safetensors":
        from safetensors.torch import load_file

        return load_file(f"{path}.safetensors")
    if kind == "npz":
        with np.load(f"{path}.npz", allow_pickle=False) as stored:
            return dict(stored)
    return json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
