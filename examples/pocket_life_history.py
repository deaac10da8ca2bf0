"""The life history of features, piece by piece: from checkpoints to lineages, carriers, their load and a forecast.

Shows what `LifeHistoryStudy` does in one call as the separate functions it is made of, for those who want only some
of them, and writes one figure, life_history/lineages.html.

    python examples/pocket_life_history.py
    python examples/pocket_life_history.py --model EleutherAI/pythia-160m --steps 0 1000 10000 40000 80000 120000 \
        143000 --layers 2 5 8 11 --d-sae 3072 --k 32 --rows 2000000 --n-draws 100

How its numbers can mislead: the sizes are tiny, and with few checkpoints almost any feature that two SAE trainings
agree on counts as a carrier. So each number stands beside its control: the match rate beside that of two trainings on
one model, the carriers beside shuffled rows, their load beside equally frequent features, the forecast beside the
firing rate alone. The study adds what is left out here: intervals, further seeds, more nulls.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import tl_lifehist as lh
from tl_lifehist.checkpoints.pocket import pocket_texts
from tl_lifehist.report.figures import lineage_raster


def tokens_of(split: str, tokenizer) -> lh.TokenSet:
    """Put your own texts here: one string a document."""
    texts = [text for _, text in pocket_texts(split)]
    return lh.TokenSet.from_texts(texts, tokenizer, keep_partial=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket", help='"pocket", or a hub repository with checkpoints')
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 64, 512, 4096])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--d-sae", type=int, default=192)
    parser.add_argument("--k", type=int, default=12)
    parser.add_argument("--rows", type=int, default=30_000, help="activations each SAE is trained on")
    parser.add_argument("--n-draws", type=int, default=19)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("life_history"))
    args = parser.parse_args()

    pocket = args.model == "pocket"
    series = lh.CheckpointSeries.pocket() if pocket else lh.CheckpointSeries.from_hub(args.model)
    series = series.subset(args.steps)
    train, test = tokens_of("train", series.tokenizer), tokens_of("test", series.tokenizer)[::4]
    hook_names = [f"blocks.{layer}.hook_resid_post" for layer in args.layers]
    sizes = {"d_sae": args.d_sae, "k": args.k, "training_tokens": args.rows}

    saes = lh.train_saes(series, hook_names, train, seed=args.seed, **sizes)
    profiles = lh.activation_profiles(series, saes, test)
    lineages = lh.trace_lineages(profiles)

    # How much of what looks like death is noise? SAEs of the last model again: the same initial weights, as everywhere
    # here, and another order of the rows, which train_saes draws from the seed and the step.
    end = series.steps[-1]
    at_end = {name: profiles[end, name] for name in hook_names}
    model = series.load(end)
    again = lh.train_saes({end + 1: model}, hook_names, train, seed=args.seed, **sizes).at(end + 1)
    replicate = lh.profile_saes(model, again, test, step=end)
    deaths = lineages.deaths()
    deaths["matched"] = 1 - deaths["fraction"]
    matched = deaths.pivot(index="hook_name", columns=["step_from", "step_to"], values="matched")
    matched.columns = [f"{start} to {stop}" for start, stop in matched.columns]
    matched["two trainings on one model"] = [
        lh.lifehistory.rematch_rate(at_end[name], replicate[name]) for name in matched.index
    ]
    matched["n at the end"] = [int(at_end[name].alive().sum()) for name in matched.index]
    print(f"features matched, of those alive:\n{matched.round(2).to_string()}")

    carriers = lineages.carriers()
    chance = lh.lifehistory.unrelated_null(profiles, min_snapshots=carriers.min_snapshots, seed=args.seed)
    share = ", ".join(f"{name} {value:.0%}" for name, value in carriers.share_of_alive.items())
    print(
        f"\n{len(carriers)} carriers, stable in {carriers.min_snapshots} checkpoints (shuffled rows: {chance.mean:.1f})"
    )
    print(f"share of the features alive at the end: {share}")

    graph = lh.containment_dag(at_end)
    recruited = lh.lifehistory.recruitment_null(
        graph, carriers.at(end), n_draws=args.n_draws, n_rewired=0, seed=args.seed
    )
    roles = pd.Series(lh.lifehistory.feature_roles(graph)).value_counts().to_dict()
    print(f"\ncontainment graph: {len(graph)} features, {graph.number_of_edges()} edges, {roles}")
    print(f"recruited by carriers {recruited.observed:.2f}, by sets of equal rate {recruited.mean:.2f}")

    kinds = ("rate", "mass")
    load = lh.joint_ablation(
        model, saes.at(end), carriers.at(end), at_end, test[::6], controls=kinds, n_draws=args.n_draws, seed=args.seed
    )
    columns = ["kind", "n_draws", "carriers", "control_mean", "low", "high", "p", "unmatched_share", "verdict"]
    print(
        f"\ncost of removing all carriers: {load.delta_ce:.2f} nats over {load.n_scored} tokens (base "
        f"{load.base_ce:.2f})"
    )
    print(load.balance[columns].round(2).to_string(index=False))

    forecast = lh.predict_carriers(
        profiles, lineages, carriers, saes=saes, seed=args.seed, n_repeats=3, n_permutations=20
    )
    print(f"\nforecast from step {forecast.onset}: {forecast.reason or ''}")
    print(
        forecast.to_dataframe()[["predictor", "auc", "low", "high", "n", "n_positive"]].round(2).to_string(index=False)
    )

    args.out.mkdir(parents=True, exist_ok=True)
    figure = lineage_raster(lineages.to_dataframe(), pd.DataFrame({"lineage": carriers.lineages}))
    figure.write_html(args.out / "lineages.html")
    print(f"\n{test.n_valid} positions, seed {args.seed}; figure: {args.out / 'lineages.html'}")


if __name__ == "__main__":
    main()
