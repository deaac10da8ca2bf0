"""The command `tl-lifehist`. Heavy imports wait until a command runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tl_lifehist.console import (
    clear_errors,
    numbers,
    open_series,
    open_texts,
    print_run,
    run_study,
    say_plan,
    say_report,
    three_sizes,
    words,
    worker_pool,
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The history of a language model's features, and of what suffices to keep its behaviour, through training.",
)

Model = Annotated[str, typer.Option(help='"pocket", a folder of step{N} checkpoints, or a hub repository.')]
Out = Annotated[Path, typer.Option(help="Run folder; the same command takes an interrupted run up again.")]
Workers = Annotated[int, typer.Option(help="Worker processes of one thread each; 0 computes in this process.")]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Context = Annotated[int, typer.Option(help="Positions in a window.")]
Duplicates = Annotated[bool, typer.Option("--allow-duplicates", help="Run on identical checkpoints.")]
Masked = Annotated[bool, typer.Option("--masked", help="A masked model whose configuration does not say so.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched, computed and stored, and stop.")]
Texts = Annotated[
    Path | None,
    typer.Option(
        help=(
            'Text: a .txt file (documents separated by blank lines) or .jsonl with a text field; "pocket" is the '
            "pocket suite's own, its default."
        )
    ),
]
Stage = Annotated[int | None, typer.Option(help="Training stage of several; the earliest by default.")]
Ingredient = Annotated[int | None, typer.Option(help="Which run of a stage that has several (OLMo 2).")]
Subfolder = Annotated[
    str | None, typer.Option(help='How checkpoints look whose names do not say so: "runs/{step}/hf".')
]
ConfigFrom = Annotated[
    str | None, typer.Option(help="Folder or repository with the configuration that checkpoints lack.")
]
Drop = Annotated[bool, typer.Option("--drop", help="Drop each hub checkpoint from the cache once it is loaded.")]


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    full: Annotated[bool, typer.Option("--full", help="All checkpoints, text, steps and draws.")] = False,
    workers: Workers = 2,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Both studies on the pocket suite, offline, at reduced sizes that the report names."""
    with clear_errors():
        import tl_lifehist as lh
        from tl_lifehist.demo import life_history_demo, sufficiency_demo

        progress = False if quiet else None
        with worker_pool(workers) as executor:  # one pool for both: a worker takes seconds to import what it needs
            first = life_history_demo(full=full, seed=seed).run(
                out / "life-history", executor=executor, progress=progress
            )
            study = sufficiency_demo(first.path, full=full, seed=seed)
            second = study.run(out / "sufficiency", executor=executor, progress=progress)
        for run in (first, second):
            print_run(run)
        say_report(lh.write_report(first.path, second.path, out=out / "report.html"))


@app.command("life-history")
def life_history(
    model: Model = "pocket",
    steps: Annotated[str, typer.Option(help='Checkpoints, e.g. "0,1000,10000"; all by default.')] = "",
    layers: Annotated[str, typer.Option(help='Blocks, e.g. "2,5,8,11"; depth 1/4, 1/2, 3/4 and 1 by default.')] = "",
    site: Annotated[str, typer.Option(help="Hook point within a block.")] = "hook_resid_post",
    out: Out = Path("runs/life-history"),
    texts: Texts = None,
    context_size: Context = 128,
    masked: Masked = False,
    d_sae: Annotated[int | None, typer.Option(help="Features of an SAE; 4 times the width by default.")] = None,
    k: Annotated[int, typer.Option(help="Active features per token.")] = 32,
    training_tokens: Annotated[int, typer.Option(help="Rows each SAE is trained on.")] = 600_000,
    init: Annotated[str, typer.Option(help='"shared", "independent" or "previous".')] = "shared",
    draws: Annotated[int, typer.Option(help="Control sets of each kind.")] = 100,
    load_tokens: Annotated[int, typer.Option(help="Positions on which ablations are scored.")] = 16_384,
    stage: Stage = None,
    ingredient: Ingredient = None,
    subfolder: Subfolder = None,
    config_from: ConfigFrom = None,
    drop: Drop = False,
    allow_duplicates: Duplicates = False,
    workers: Workers = 2,
    seed: Seed = 0,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> None:
    """The life-history study on any series of checkpoints."""
    with clear_errors():
        import tl_lifehist as lh

        series = open_series(
            model,
            numbers(steps, "--steps"),
            drop=drop,
            stage=stage,
            ingredient=ingredient,
            subfolder=subfolder,
            config_from=config_from,
        )
        blocks = numbers(layers, "--layers")
        hook_names = tuple(f"blocks.{i}.{site}" for i in blocks) or lh.lifehistory.depth_hook_names(
            series.shape.n_layers, site
        )
        train, test = open_texts(series, texts, ("train", "test"), context_size=context_size, masked=masked)
        study = lh.LifeHistoryStudy(
            series,
            hook_names,
            train=train,
            test=test,
            d_sae=d_sae,
            k=k,
            training_tokens=training_tokens,
            init=init,
            n_draws=draws,
            load_tokens=load_tokens,
            seed=seed,
            allow_duplicates=allow_duplicates,
        )
        if dry_run:
            say_plan(study, out)
            return
        run_study(study, out, workers, quiet)


@app.command()
def sufficiency(
    model: Model = "pocket",
    steps: Annotated[str, typer.Option(help="Checkpoints; up to 8 log-spaced ones by default.")] = "",
    layers: Annotated[str, typer.Option(help="Blocks; up to 5 evenly spaced ones by default.")] = "",
    sites: Annotated[str, typer.Option(help="Hook points within a block.")] = "hook_mlp_out,hook_resid_post",
    out: Out = Path("runs/sufficiency"),
    texts: Texts = None,
    context_size: Context = 128,
    masked: Masked = False,
    methods: Annotated[str, typer.Option(help="Decompositions.")] = "svd,ica,nmf,semi_nmf",
    targets: Annotated[
        str, typer.Option(help="What masks preserve.")
    ] = "reconstruction,fixed_head,downstream,transfer",
    components: Annotated[int | None, typer.Option(help="Of a dictionary; 100 or the width by default.")] = None,
    penalty_total: Annotated[float, typer.Option(help="Lambda times the number of components.")] = 0.1,
    relative_to: Annotated[str, typer.Option(help='KL relative to "entropy", "mean_ablation" or "nats".')] = "entropy",
    mask_steps: Annotated[int, typer.Option(help="Optimiser steps of a mask.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Sequences per step.")] = 16,
    translator_steps: Annotated[int, typer.Option(help="Optimiser steps of a fixed head.")] = 400,
    sweep: Annotated[
        str, typer.Option(help="Further values of --penalty-total, for the frontier.")
    ] = "0.01,0.03,0.3,1",
    seeds: Annotated[int, typer.Option(min=1, help="Masks of so many seeds, for their stability.")] = 3,
    random_masks: Annotated[int, typer.Option(help="Random masks of the same soft mass.")] = 20,
    sequences: Annotated[str, typer.Option(help="At most, of train, calibration and test text.")] = "512,256,256",
    leave_out_massive: Annotated[float, typer.Option(help="Share of the farthest rows to leave out.")] = 0.0,
    life_history: Annotated[
        Path | None, typer.Option(help="A finished life-history run of the same series: do masks pick its carriers?")
    ] = None,
    stage: Stage = None,
    ingredient: Ingredient = None,
    subfolder: Subfolder = None,
    config_from: ConfigFrom = None,
    drop: Drop = False,
    allow_duplicates: Duplicates = False,
    workers: Workers = 2,
    seed: Seed = 0,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> None:
    """The sufficiency study on any series of checkpoints."""
    with clear_errors():
        import tl_lifehist as lh
        from tl_lifehist.sufficiency.study import SPLITS

        series = open_series(
            model,
            numbers(steps, "--steps"),
            drop=drop,
            stage=stage,
            ingredient=ingredient,
            subfolder=subfolder,
            config_from=config_from,
        )
        if not steps:
            series = series.subset(lh.sufficiency.default_steps(series.steps))
        blocks = numbers(layers, "--layers") or lh.sufficiency.default_layers(series.shape.n_layers)
        splits = open_texts(series, texts, tuple(SPLITS), context_size=context_size, masked=masked)
        train, calibration, test = (t.subsample(n) for t, n in zip(splits, three_sizes(sequences), strict=True))
        study = lh.SufficiencyStudy(
            series,
            tuple(f"blocks.{i}.{site}" for i in blocks for site in words(sites)),
            train=train,
            calibration=calibration,
            test=test,
            methods=words(methods),
            targets=words(targets),
            close_ups=words(methods)[:1],
            n_components=components,
            penalty_total=penalty_total,
            relative_to=relative_to,
            steps=mask_steps,
            batch_size=batch_size,
            translator_steps=translator_steps,
            sweep=numbers(sweep, "--sweep", float),
            n_random=random_masks,
            seeds=tuple(range(seed, seed + seeds)),
            leave_out_massive=leave_out_massive,
            life_history=life_history,
            seed=seed,
            allow_duplicates=allow_duplicates,
        )
        if dry_run:
            say_plan(study, out)
            return
        run_study(study, out, workers, quiet)


@app.command()
def checkpoints(
    model: Annotated[str, typer.Argument(help='"pocket", a folder of checkpoints, or a hub repository.')],
    limit: Annotated[int, typer.Option(min=0, help="The first so many steps; 0 for all.")] = 0,
    stage: Stage = None,
    ingredient: Ingredient = None,
    subfolder: Subfolder = None,
    config_from: ConfigFrom = None,
) -> None:
    """List the steps of a series with their tokens, sizes and revisions. Fetches no weights."""
    with clear_errors():
        from tl_lifehist.checkpoints.listing import write_listing

        series = open_series(
            model, [], stage=stage, ingredient=ingredient, subfolder=subfolder, config_from=config_from
        )
        write_listing(series, typer.echo, limit=limit)


@app.command()
def report(
    run: Annotated[list[Path], typer.Argument(help="A finished run folder, or several for one page.")],
    out: Annotated[Path | None, typer.Option(help="Where the page of several runs goes.")] = None,
) -> None:
    """Write the report of finished runs again."""
    with clear_errors():
        import tl_lifehist as lh

        for folder in run:
            lh.load_run(folder)  # refuses one that is not finished
        say_report(lh.write_report(*run, out=out))


if __name__ == "__main__":
    app()
