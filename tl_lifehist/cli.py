"""The command `tl-lifehist`. Heavy imports wait until a command runs, so that `--help` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tl_lifehist.checkpoints.series import CheckpointSeries
    from tl_lifehist.runs import Run
    from tl_lifehist.tokens import TokenSet

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The life history of features through a language model's training checkpoints.",
)

DEMO_STEPS = (0, 32, 128, 512, 2048, 4096)
DEMO_ROWS, DEMO_POSITIONS, DEMO_SCORED, DEMO_DRAWS = 70_000, 24_000, 2_000, 19

Out = Annotated[Path, typer.Option(help="Run folder; the same command takes an interrupted run up again.")]
Workers = Annotated[int, typer.Option(help="Worker processes of one thread each; 0 computes in this process.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    full: Annotated[bool, typer.Option("--full", help="All checkpoints, text and draws.")] = False,
    workers: Workers = 2,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    quiet: Quiet = False,
) -> None:
    """The life history of the pocket suite's features, offline, at reduced sizes that the report names."""
    with _clear_errors():
        import tl_lifehist as lh

        series, train, test = lh.CheckpointSeries.pocket(), lh.TokenSet.pocket("train"), lh.TokenSet.pocket("test")
        hook_names = tuple(f"blocks.{i}.hook_resid_post" for i in range(4))
        if full:
            study = lh.LifeHistoryStudy(series, hook_names, train=train, test=test, k=16, seed=seed)
        else:
            reduced = {
                "checkpoints": f"{len(DEMO_STEPS)} of {len(series.steps)}",
                "training rows of each SAE": f"{DEMO_ROWS:,} of 600,000",
                "positions of the profiles": f"about {DEMO_POSITIONS:,} of {test.n_valid:,}",
                "positions scored in ablations": f"about {DEMO_SCORED:,} of 16,384",
                "control draws of each kind": f"{DEMO_DRAWS} of 100",
            }
            study = lh.LifeHistoryStudy(
                series.subset(DEMO_STEPS),
                hook_names,
                train=train,
                test=_spread(test, DEMO_POSITIONS),
                k=16,
                training_tokens=DEMO_ROWS,
                load_tokens=DEMO_SCORED,
                n_draws=DEMO_DRAWS,
                seed=seed,
                reduced=reduced,
            )
        _finish(_run(study, out, workers, quiet), out)


@app.command("life-history")
def life_history(
    model: Annotated[
        str, typer.Option(help='"pocket", a folder of step{N} checkpoints, or a hub repository.')
    ] = "pocket",
    steps: Annotated[str, typer.Option(help='Checkpoints, e.g. "0,1000,10000"; all by default.')] = "",
    layers: Annotated[str, typer.Option(help='Blocks, e.g. "2,5,8,11"; depth 1/4, 1/2, 3/4 and 1 by default.')] = "",
    site: Annotated[str, typer.Option(help="Hook point within a block.")] = "hook_resid_post",
    out: Out = Path("runs/life-history"),
    texts: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Text: a .txt file (documents parted by blank lines) or .jsonl with a text field. The pocket "
                "suite's own text by default."
            )
        ),
    ] = None,
    context_size: Annotated[int, typer.Option(help="Positions in a window.")] = 128,
    d_sae: Annotated[int | None, typer.Option(help="Features of an SAE; 4 times the width by default.")] = None,
    k: Annotated[int, typer.Option(help="Active features a token.")] = 32,
    training_tokens: Annotated[int, typer.Option(help="Rows each SAE is trained on.")] = 600_000,
    init: Annotated[str, typer.Option(help='"shared", "independent" or "previous".')] = "shared",
    draws: Annotated[int, typer.Option(help="Control sets of each kind.")] = 100,
    load_tokens: Annotated[int, typer.Option(help="Positions on which ablations are scored.")] = 16_384,
    allow_duplicates: Annotated[bool, typer.Option("--allow-duplicates", help="Run on identical checkpoints.")] = False,
    workers: Workers = 2,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    quiet: Quiet = False,
) -> None:
    """The life-history study on any series of checkpoints."""
    with _clear_errors():
        import tl_lifehist as lh

        series = _series(model, _numbers(steps, "--steps"))
        if layers:
            hook_names = tuple(f"blocks.{i}.{site}" for i in _numbers(layers, "--layers"))
        else:
            hook_names = lh.depth_hook_names(int(series.load(series.steps[-1]).cfg.n_layers), site)  # type: ignore[attr-defined]
        train, test = _texts(series, texts, context_size)
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
        _finish(_run(study, out, workers, quiet), out)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A finished run folder.")]) -> None:
    """Write the report of a finished run again."""
    with _clear_errors():
        import tl_lifehist as lh

        typer.echo(lh.write_report(lh.load_run(run).path))


class _clear_errors:
    """Print what the user can mend as one sentence and leave with status 2; anything else is our fault and is shown."""

    def __enter__(self) -> None:
        import os

        os.environ.setdefault("TQDM_MININTERVAL", "0.5")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from tl_lifehist.errors import InputError

        if isinstance(error, InputError):
            typer.echo(f"tl-lifehist: {error}", err=True)
            raise typer.Exit(2) from error


def _numbers(text: str, option: str) -> list[int]:
    from tl_lifehist.errors import InputError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"{option} takes whole numbers parted by commas, not {text!r}.") from error


def _series(model: str, steps: list[int]) -> CheckpointSeries:
    from tl_lifehist.checkpoints.series import CheckpointSeries
    from tl_lifehist.errors import InputError

    if model == "pocket":
        series = CheckpointSeries.pocket()
    elif Path(model).is_dir():
        series = CheckpointSeries.from_directory(model)
    elif model.count("/") != 1 or model[0] in "./~":
        raise InputError(
            f"There is no folder {model!r}. A hub repository is written owner/name, for example EleutherAI/pythia-160m."
        )
    else:
        return CheckpointSeries.from_hub(model, steps=steps or None)
    return series.subset(steps) if steps else series


def _texts(series: CheckpointSeries, path: Path | None, context_size: int) -> tuple[TokenSet, TokenSet]:
    """Train and test tokens: four documents in five, and the fifth."""
    import json

    from tl_lifehist.checkpoints.pocket import pocket_texts
    from tl_lifehist.errors import InputError
    from tl_lifehist.tokens import TokenSet

    if series.tokenizer is None:
        raise InputError(
            "This series has no tokenizer: save one beside the checkpoints with tokenizer.save_pretrained."
        )
    if path is None:
        train, test = ([text for _, text in pocket_texts(split)] for split in ("train", "test"))
    else:
        if not path.is_file():
            raise InputError(f"There is no text file {path}.")
        if path.suffix == ".jsonl":
            documents = [
                json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
            ]
        else:
            documents = [part for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip()]
        if len(documents) < 5:
            raise InputError(f"{path} holds {len(documents)} documents: at least 5 are needed to part train from test.")
        test = documents[::5]
        train = [document for i, document in enumerate(documents) if i % 5]
    return tuple(
        TokenSet.from_texts(t, series.tokenizer, context_size=context_size, keep_partial=path is not None)
        for t in (train, test)
    )  # type: ignore[return-value]


def _spread(tokens: TokenSet, n_valid: int) -> TokenSet:
    """About `n_valid` positions, spread evenly over the sequences, so that all documents stay in."""
    stride = max(1, tokens.n_valid // n_valid)
    return tokens[::stride]


def _run(study: Any, out: Path, workers: int, quiet: bool) -> Run:
    if workers < 1:
        return study.run(out, progress=False if quiet else None)
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor

    # a worker has one thread from the start: two threads on two busy cores are slower than one each
    kept = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")}
    os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
            return study.run(out, executor=executor, progress=False if quiet else None)
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _finish(run: Run, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    study = run.study
    for what, how in study["reduced"].items():
        console.print(f"reduced: {what}: {how}", style="dim", highlight=False)
    ours = Table(title="Ours beside the published figures", title_justify="left")
    for column in ("quantity", "ours", "n", "Pythia-160M", "Pythia-410M"):
        ours.add_column(column)
    for row in run.table("published").itertuples(index=False):
        ours.add_row(*(str(value) for value in row))
    console.print(ours)
    claims = Table(title="Every claim beside its null", title_justify="left")
    for column in ("claim", "observed", "null", "95 % of null", "p", "n", "verdict"):
        claims.add_column(column)
    for row in run.claims.itertuples(index=False):
        values = (
            row.claim,
            _short(row.observed),
            _short(row.null),
            f"{_short(row.low)} to {_short(row.high)}",
            _short(row.p),
            str(row.n),
            row.verdict,
        )
        claims.add_row(*(str(value) for value in values))
    console.print(claims)
    console.print(f"report: {out / 'report.html'}", highlight=False, soft_wrap=True)


def _short(value: Any) -> str:
    return "-" if value != value else f"{value:.3g}"


if __name__ == "__main__":
    app()
