"""What earlier units of a run left on disk, read when it is needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tl_lifehist.dictionaries.sae import SAEs, load_sae
from tl_lifehist.lifehistory.lineages import Carriers, Lineages
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.lifehistory.study import LifeHistoryStudy
from tl_lifehist.runs import RunFolder, load_profile


@dataclass(frozen=True, eq=False)
class Workspace:
    """What earlier units of a run left on disk, read when it is needed."""

    root: str
    study: LifeHistoryStudy

    def unit(self, name: str) -> Path:
        return RunFolder(self.root).unit(name)

    @property
    def last(self) -> int:
        return self.study.series.steps[-1]

    @cached_property
    def _rows(self) -> dict[str, Any]:
        test = self.study.test
        assert test is not None
        return {"token_ids": test.row_tokens, "documents": test.row_documents}

    def profiles_of(self, step: int, name: str = "base") -> dict[str, FeatureProfiles]:
        folder = self.unit(f"saes/step{step}/{name}")
        return {
            h: load_profile(folder / h / "profile.npz", step=step, hook_name=h, **self._rows)
            for h in self.study.hook_names
        }

    @cached_property
    def profiles(self) -> dict[tuple[int, str], FeatureProfiles]:
        return {(s, h): p for s in self.study.series.steps for h, p in self.profiles_of(s).items()}

    @cached_property
    def final(self) -> dict[str, FeatureProfiles]:
        return self.profiles_of(self.last)

    def saes_of(self, step: int) -> dict[str, Any]:
        return {h: load_sae(self.unit(f"saes/step{step}/base") / h) for h in self.study.hook_names}

    def saes(self) -> SAEs:
        return SAEs({(s, h): sae for s in self.study.series.steps for h, sae in self.saes_of(s).items()})

    @cached_property
    def lineages(self) -> Lineages:
        table = pd.read_parquet(self.unit("analysis/lineages") / "lineages.parquet")
        stored = json.loads((self.unit("analysis/lineages") / "alive.json").read_text())
        alive = {
            (s, h): np.array(stored[f"{s}/{h}"], dtype=np.int64)
            for s in self.study.series.steps
            for h in self.study.hook_names
        }
        return Lineages(table, self.study.series.steps, tuple(self.study.hook_names), alive)

    @cached_property
    def carriers(self) -> Carriers:
        return self.lineages.carriers()

    def read(self, unit: str, table: str) -> pd.DataFrame:
        path = self.unit(f"analysis/{unit}") / f"{table}.parquet"
        return pd.read_parquet(path) if path.exists() else pd.DataFrame()
