"""The command `tl-lifehist`. Heavy imports wait until a command runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tl_lifehist.arguments import check_arguments
from tl_lifehist.console import (
    clear_errors,
    open_series,
    open_texts,
    print_status,
    run_or_plan,
    say_report,
    worker_pool,
)
from tl_lifehist.lifehistory.config import LifeHistoryConfig
from tl_lifehist.options import Values, study_command
from tl_lifehist.printed import print_calibration, print_comparison, print_run
from tl_lifehist.record import read_record, runs_in
from tl_lifehist.registry import load_plugins
from tl_lifehist.sufficiency.config import SufficiencyConfig
from tl_lifehist.written import listed

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The history of a language model's features, and of what suffices to keep its behaviour, through training.",
)

Out = Annotated[Path, typer.Option(help="Run folder; the same command takes an interrupted run up again.")]
Workers = Annotated[int, typer.Option(min=0, help="Worker processes; 0 computes in this process.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of each worker; the last digits depend on it.")]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the report's path and nothing else.")]
Model = Annotated[str, typer.Option(help='"pocket", a folder of step{N} checkpoints, or a hub repository.')]
Texts = Annotated[
    Path | None,
    typer.Option(
        help='Text: a .txt file (documents separated by blank lines) or .jsonl with a text field; "pocket" is the '
        "pocket suite's own, its default."
    ),
]
PANEL = "checkpoints"  # options on where they lie and what becomes of them
Stage = Annotated[
    int | None, typer.Option(help="Training stage of several; the earliest by default.", rich_help_panel=PANEL)
]
Ingredient = Annotated[
    int | None, typer.Option(help="Which run of a stage that has several (OLMo 2).", rich_help_panel=PANEL)
]
Pattern = Annotated[
    str | None,
    typer.Option(
        help='How branches, folders or files look whose names do not say so: "phase1_{step}", "runs/{step}/hf".',
        rich_help_panel=PANEL,
    ),
]
Subfolder = Annotated[str | None, typer.Option(help="As --pattern, for folders alone.", rich_help_panel=PANEL)]
ConfigFrom = Annotated[
    str | None,
    typer.Option(help="Folder or repository with the configuration that checkpoints lack.", rich_help_panel=PANEL),
]
# As a file may have what is written with commas.
Numbers, Words = tuple[int, ...], tuple[str, ...]
Runs = Annotated[
    list[Path], typer.Argument(help="A finished run folder, several for one page, or a folder that holds some.")
]

# What both studies are asked, once; settings of their own come from their configurations.
COMMON: dict[str, tuple[Any, Any]] = {
    "model": (Model, "pocket"),
    "steps": (Annotated[str, typer.Option(help='Checkpoints, e.g. "0,1000,10000".'), Numbers], ""),
    "layers": (
        Annotated[str, typer.Option(help='Blocks, e.g. "2,5,8,11"; spread over the depth by default.'), Numbers],
        "",
    ),
    "sites": (Annotated[str, typer.Option(help="Hook points within a block."), Words], ""),
    "hook_names": (Annotated[str, typer.Option(help="Hook points by their whole names, instead."), Words], ""),
    "out": (Out, Path("runs/study")),
    "texts": (Texts, None),
    "context_size": (Annotated[int, typer.Option(help="Positions in a window.")], 128),
    "masked": (
        Annotated[bool, typer.Option("--masked", help="A masked model whose configuration does not say so.")],
        False,
    ),
    "stage": (Stage, None),
    "ingredient": (Ingredient, None),
    "pattern": (Pattern, None),
    "subfolder": (Subfolder, None),
    "config_from": (ConfigFrom, None),
    "drop": (
        Annotated[
            bool,
            typer.Option("--drop", help="Drop each hub checkpoint from the cache after use.", rich_help_panel=PANEL),
        ],
        False,
    ),
    "allow_duplicates": (
        Annotated[
            bool, typer.Option("--allow-duplicates", help="Run on identical checkpoints.", rich_help_panel=PANEL)
        ],
        False,
    ),
    "workers": (Workers, 2),
    "threads": (Threads, 1),
    "seed": (Seed, 0),
    "quiet": (Quiet, False),
    "dry_run": (
        Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched, computed and stored, and stop.")],
        False,
    ),
    "config": (
        Annotated[Path | None, typer.Option(help="A TOML file with any of these options and settings.")],
        None,
    ),
}


def _asked(**own: tuple[Any, Any]) -> dict[str, tuple[Any, Any]]:
    """The common options with a study's own, or with other defaults."""
    return {**COMMON, **own}


@study_command(
    app,
    "life-history",
    _asked(
        out=(Out, Path("runs/life-history")),
        sites=(COMMON["sites"][0], "hook_resid_post"),
        saes=(
            Annotated[
                Path | None,
                typer.Option(help="SAEs that are there already: step{N}/{hook point} folders, or an earlier run."),
            ],
            None,
        ),
    ),
    LifeHistoryConfig,
    "The life-history study on any series of checkpoints.",
)
def life_history(values: Values, config: LifeHistoryConfig) -> None:
    check_arguments(values, config)
    import tl_lifehist as lh
    from tl_lifehist.lifehistory.study import depth_hook_names

    series = _series(values)
    sites = listed(values["sites"])
    names = _hook_names(values, sites, lambda: depth_hook_names(series.shape.n_layers, sites[0]))
    train, test = _texts(series, values, ("train", "test"))
    study = lh.LifeHistoryStudy(
        series,
        names,
        train=train,
        test=test,
        saes=values["saes"],
        config=config,
        seed=values["seed"],
        allow_duplicates=values["allow_duplicates"],
    )
    run_or_plan(study, values)


@study_command(
    app,
    "sufficiency",
    _asked(
        out=(Out, Path("runs/sufficiency")),
        sites=(COMMON["sites"][0], "hook_mlp_out,hook_resid_post"),
        sequences=(
            Annotated[str, typer.Option(help="At most, of train, calibration and test text."), Numbers],
            "512,256,256",
        ),
        life_history=(
            Annotated[
                Path | None,
                typer.Option(help="A finished life-history run of the same series: do masks pick its carriers?"),
            ],
            None,
        ),
    ),
    SufficiencyConfig,
    "The sufficiency study on any series of checkpoints.",
)
def sufficiency(values: Values, config: SufficiencyConfig) -> None:
    sizes = _three_sizes(values["sequences"])
    check_arguments(values, config)
    import tl_lifehist as lh
    from tl_lifehist.sufficiency.study import SPLITS, default_layers, default_steps

    series = _series(values)
    if not listed(values["steps"]):
        series = series.subset(default_steps(series.steps))
    sites = listed(values["sites"])
    layers = default_layers(series.shape.n_layers)
    names = _hook_names(values, sites, lambda: [f"blocks.{i}.{site}" for i in layers for site in sites])
    splits = _texts(series, values, tuple(SPLITS))
    train, calibration, test = (t.subsample(n) for t, n in zip(splits, sizes, strict=True))
    study = lh.SufficiencyStudy(
        series,
        names,
        train=train,
        calibration=calibration,
        test=test,
        config=config,
        life_history=values["life_history"],
        seed=values["seed"],
        allow_duplicates=values["allow_duplicates"],
    )
    run_or_plan(study, values)


def _series(values: Values) -> Any:
    steps = listed(values["steps"], int, "--steps")
    layout = {name: values[name] for name in ("stage", "ingredient", "pattern", "subfolder", "config_from")}
    return open_series(values["model"], steps, drop=values["drop"], **layout)


def _texts(series: Any, values: Values, splits: tuple[str, ...]) -> tuple[Any, ...]:
    path = None if values["texts"] is None else Path(values["texts"])
    return open_texts(series, path, splits, context_size=values["context_size"], masked=values["masked"])


def _hook_names(values: Values, sites: tuple[str, ...], default: Any) -> tuple[str, ...]:
    """Hook points by their names, by blocks and sites, or as the study chooses them."""
    named = listed(values["hook_names"])
    blocks = listed(values["layers"], int, "--layers")
    return named or tuple(f"blocks.{i}.{site}" for i in blocks for site in sites) or tuple(default())


def _three_sizes(value: Any) -> list[int]:
    """Sequences of the train, calibration and test text."""
    from tl_lifehist.errors import InputError

    sizes = listed(value, int, "--sequences")
    if len(sizes) != 3 or min(sizes) < 1:
        raise InputError(f"--sequences takes three numbers above 0, as in 512,256,256, not {value!r}.")
    return list(sizes)


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

        how: dict[str, Any] = {"progress": False if quiet else None, "say": None if quiet else typer.echo}
        with worker_pool(workers) as executor:  # one pool for both: a worker takes seconds to import what it needs
            first = life_history_demo(full=full, seed=seed).run(out / "life-history", executor=executor, **how)
            study = sufficiency_demo(first.path, full=full, seed=seed)
            second = study.run(out / "sufficiency", executor=executor, **how)
        for run in () if quiet else (first, second):
            print_run(run)
        say_report(lh.write_report(first.path, second.path, out=out / "report.html"))


@app.command()
def checkpoints(
    model: Annotated[str, typer.Argument(help='"pocket", a folder of checkpoints, or a hub repository.')],
    limit: Annotated[int, typer.Option(min=0, help="The first so many steps; 0 for all.")] = 0,
    stage: Stage = None,
    ingredient: Ingredient = None,
    pattern: Pattern = None,
    subfolder: Subfolder = None,
    config_from: ConfigFrom = None,
) -> None:
    """List the steps of a series with their tokens, sizes and revisions. Fetches no weights."""
    with clear_errors():
        from tl_lifehist.checkpoints.listing import write_listing

        layout = {"stage": stage, "ingredient": ingredient, "pattern": pattern, "subfolder": subfolder}
        series = open_series(model, config_from=config_from, **layout)
        shown = series.subset(series.steps[:limit]) if limit else series
        write_listing(series.name, shown.plan(), typer.echo, left_out=len(series) - len(shown))


@app.command()
def status(run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")]) -> None:
    """List the stages of a run: done, missing, damaged or stale. Their files are compared with their checksums."""
    with clear_errors():
        read_record(run)
        print_status(run)


@app.command()
def report(
    run: Runs,
    out: Annotated[Path | None, typer.Option(help="Where the page of several runs goes.")] = None,
) -> None:
    """Write the report of finished runs again."""
    with clear_errors():
        folders = [one for folder in run for one in runs_in(folder)]
        for folder in folders:
            read_record(folder)
        import tl_lifehist as lh

        for folder in folders:
            lh.load_run(folder)  # refuses one that is not finished
        say_report(lh.write_report(*folders, out=out))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="A finished run folder.")],
    b: Annotated[Path, typer.Argument(help="Another one of the same study.")],
) -> None:
    """The settings in which two runs differ, and their claims side by side."""
    with clear_errors():
        for run in (a, b):
            read_record(run)
        print_comparison(a, b)


@app.command()
def calibrate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    worlds: Annotated[int, typer.Option(min=1, help="Planted worlds of each effect.")] = 200,
    seed: Seed = 0,
) -> None:
    """How often each tested claim errs, and what it finds, in planted worlds of the run's size."""
    with clear_errors():
        read_record(run)
        print_calibration(run, worlds, seed)


def main() -> None:
    """The command, with the plugins of other packages."""
    load_plugins()
    app(prog_name="tl-lifehist")


if __name__ == "__main__":
    main()
