"""A training history whose truth is known: what was planted, beside what a life-history study finds of it.

Shows how a method is tried where the answer is known: `planted_suite` gives models, text and SAEs, the study is run as
on any other series, and only this script compares the two.

    python examples/planted_suite.py
    python examples/planted_suite.py --breadth confounded --load mass
    python examples/planted_suite.py --breadth disjoint --n-layers 4 --n-features 96 --load-tokens 4000 --n-draws 199

How its numbers can mislead: here codes depend on the token alone and the SAEs are exact, so a method that is right here
has passed the least that can be asked of it. One history is one draw: a claim that is true may stay within its null,
and one in twenty that is not true may come out beyond it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd

import tl_lifehist as lh

SHOWN = ("load.", "recruitment.", "forecast.", "survival.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--breadth", default="independent", help='"independent", "confounded" or "disjoint"')
    parser.add_argument("--load", default="history", help='"history", "mass" or "neither"')
    parser.add_argument("--containment", default="real", help='"real", "carriers" or "chance"')
    parser.add_argument("--not-forecastable", action="store_true", help="strength at the onset says nothing")
    parser.add_argument("--n-layers", type=int, default=2)
    parser.add_argument("--n-features", type=int, default=64)
    parser.add_argument("--load-tokens", type=int, default=1_000, help="positions on which ablations are scored")
    parser.add_argument("--n-draws", type=int, default=39)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    suite = lh.lifehistory.planted_suite(
        seed=args.seed,
        n_layers=args.n_layers,
        n_features=args.n_features,
        breadth=args.breadth,
        load=args.load,
        containment=args.containment,
        forecastable=not args.not_forecastable,
    )
    study = lh.LifeHistoryStudy(
        suite.series,
        suite.hook_names,
        train=suite.train,
        test=suite.test,
        saes=suite.saes,
        controls=("count", "mass"),
        n_draws=args.n_draws,
        load_tokens=args.load_tokens,
        n_repeats=3,
        n_permutations=20,
        n_rewired=3,
        singles_per_role=4,
        single_carriers=8,
        regression_sets=10,
        seed=args.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = study.run(Path(folder) / "run")
        found, events, load, claims = (run.table(n) for n in ("features", "events", "load_summary", "claims"))
        carriers = run.table("carriers")

    truth, end = suite.truth, suite.series.steps[-1]
    same = found.merge(truth.lineages, on=["hook_name", "step", "feature"]).groupby("lineage")["latent"].nunique()
    edges = truth.lineages.query("step == @end").set_index(["hook_name", "latent"])["feature"]
    expected = truth.ablation_cost(truth.carriers(end), suite.test.head(args.load_tokens), step=end)
    planted_births = truth.features["birth"].value_counts()
    rows = [
        ("features that ever live", len(truth.features), found["lineage"].nunique()),
        ("of them found as one lineage", len(truth.features), int((same == 1).sum())),
        ("alive at the end", len(edges), int((found["step"] == end).sum())),
        ("carriers", int(truth.features["carrier"].sum()), len(carriers)),
        ("joint cost of the carriers, nats", f"{expected:.4f}", f"{load['delta_ce'].iloc[0]:.4f}"),
    ]
    for step in suite.series.steps[1:]:
        born = events[(events["kind"] == "birth") & (events["step_to"] == step)]["count"].sum()
        rows.append((f"born at step {step}", int(planted_births.get(step, 0)), int(born)))
    print(pd.DataFrame(rows, columns=["", "planted", "found"]).to_string(index=False))

    others = truth.features[~truth.features["carrier"] & truth.features["death"].isna()]
    heavier = truth.features.loc[truth.features["carrier"], "mass"].mean() / others["mass"].mean()
    print(f"\nbreadth {args.breadth}: carriers have {heavier:.2f} times the mass of other features of the end")
    print(f"load {args.load}, containment {args.containment}, forecastable {not args.not_forecastable}; claims:\n")
    shown = claims[claims["id"].str.startswith(SHOWN) & (claims["verdict"] != "descriptive")]
    print(shown[["id", "observed", "null", "p", "n", "verdict"]].round(3).to_string(index=False))
    print(f"\n{suite.test.n_valid} positions of {args.n_layers} x {args.n_features} features, seed {args.seed}")


if __name__ == "__main__":
    main()
