"""What the commands share: a series and its texts from arguments, worker processes, what a start of a study does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tl_lifehist.arguments import local_folder, require_texts
from tl_lifehist.printed import print_run, say_reduced
from tl_lifehist.written import read_documents

if TYPE_CHECKING:
    from tl_lifehist.checkpoints.series import CheckpointSeries
    from tl_lifehist.tokens import TokenSet


class clear_errors:
    """Print what the user can mend as one sentence and leave with status 2; anything else is our fault and is shown."""

    def __enter__(self) -> None:
        import os

        os.environ.setdefault("TQDM_MININTERVAL", "0.5")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from tl_lifehist.errors import InputError

        if isinstance(error, InputError):
            typer.echo(f"tl-lifehist: {error}", err=True)
            raise typer.Exit(2) from error
        if isinstance(error, KeyboardInterrupt):
            typer.echo("tl-lifehist: interrupted; the same command goes on from what is finished.", err=True)
            raise typer.Exit(130) from error


def open_series(model: str, steps: Sequence[int] = (), *, drop: bool = False, **layout: Any) -> CheckpointSeries:
    """The pocket suite, a folder, or a hub repository; `layout` is what `CheckpointSeries.from_hub` takes to find
    checkpoints in it.
    """
    from tl_lifehist.checkpoints.series import CheckpointSeries

    given = {name: value for name, value in layout.items() if value is not None}
    if local_folder(model, given) is None:
        return CheckpointSeries.from_hub(model, steps=steps or None, keep=not drop, **given)
    pocket = model == "pocket"
    series = CheckpointSeries.pocket() if pocket else CheckpointSeries.from_directory(model, **given)
    return series.subset(steps) if steps else series


def open_texts(
    series: CheckpointSeries,
    path: Path | None,
    splits: tuple[str, ...],
    *,
    context_size: int,
    masked: bool = False,
) -> tuple[TokenSet, ...]:
    """Token sets of splits that share no document: "train" and then others. Of a file, each of the others gets one
    document in five and training the rest; "pocket" is the pocket suite's own text, for which no file need be named.
    """
    from tl_lifehist.checkpoints.pocket import pocket_texts
    from tl_lifehist.errors import InputError
    from tl_lifehist.tokens import TokenSet

    if series.tokenizer is None:
        raise InputError(
            "This series has no tokenizer: save one beside the checkpoints with tokenizer.save_pretrained."
        )
    own = str(path) == "pocket" or (path is None and series.name == "pocket")
    if own:
        parts = [[text for _, text in pocket_texts(split)] for split in splits]
    else:
        documents = read_documents(require_texts(series.name, path))
        held = len(splits) - 1
        # the last split gets documents 0, 5, 10, ..., the one before it 1, 6, 11, ...
        parts = [[d for i, d in enumerate(documents) if i % 5 >= held]]
        parts += [documents[i::5] for i in reversed(range(held))]
    if masked and series.shape.masked is False:
        raise InputError(f"{series.name} is a causal language model by its configuration: leave out --masked.")
    if masked or series.shape.masked:  # scored as it was trained: it sees on both sides of what it is asked
        return tuple(TokenSet.for_masked_lm(p, series.tokenizer, context_size=context_size) for p in parts)
    return tuple(
        TokenSet.from_texts(p, series.tokenizer, context_size=context_size, keep_partial=not own) for p in parts
    )


@contextmanager
def worker_pool(workers: int) -> Iterator[Any]:
    """Processes of one thread each for `study.run(out, executor=...)`; none for 0, which computes in this process."""
    if workers < 1:
        yield None
        return
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor

    # a worker has one thread from the start: two threads on two busy cores are slower than one each
    kept = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")}
    os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
            try:
                yield executor
            except KeyboardInterrupt:
                executor.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():  # or each would first end its unit
                    process.terminate()
                raise
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def run_or_plan(study: Any, values: Mapping[str, Any]) -> None:
    """Run a study, print its claims and write its report; or say what it would take."""
    out, threads = Path(values["out"]), values["threads"]
    if values["dry_run"]:
        from tl_lifehist.dry_run import plan_study

        plan = plan_study(study, out, threads=threads)
        typer.echo("# The whole run, as a file for --config\n" + _as_toml(values) + "\n" + plan.settings)
        # beside the file, not in it: `--dry-run > run.toml` is a file for --config
        typer.echo(str(plan), err=True)
        typer.echo("Nothing was done: the same command without --dry-run starts it.", err=True)
        return
    quiet = values["quiet"]
    if not quiet:
        say_reduced(study.reduced)
    with worker_pool(values["workers"]) as executor:
        run = study.run(
            out,
            executor=executor,
            threads=threads,
            progress=False if quiet else None,
            say=None if quiet else typer.echo,
        )
    if not quiet:
        print_run(run)
    say_report(run.report())


def _as_toml(values: Mapping[str, Any]) -> str:
    from tl_lifehist.config import toml_value

    kept = {k: v for k, v in values.items() if v is not None and v != "" and k not in ("config", "dry_run")}
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in kept.items()}
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in plain.items())


def print_status(path: Path) -> None:
    """The stages of a run and their states."""
    from tl_lifehist.runs import run_status

    table = run_status(path)
    width = max(map(len, table["stage"]), default=0)
    for row in table.itertuples(index=False):
        typer.echo(f"{row.stage:<{width}}  {row.state:<7}  {row.why}".rstrip())
    counts = table["state"].value_counts()
    typer.echo(", ".join(f"{count} {state}" for state, count in counts.items()))


def say_report(path: Path) -> None:
    """The report's path on a line of its own, never wrapped."""
    typer.echo(f"report: {path}")
