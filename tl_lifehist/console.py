"""What the commands share: a series and its texts from arguments, worker processes, and a run's tables as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from tl_lifehist.checkpoints.series import CheckpointSeries
    from tl_lifehist.runs import Run
    from tl_lifehist.tokens import TokenSet


Number = TypeVar("Number", int, float)


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


def numbers(text: str, option: str, kind: type[Number] = int) -> list[Number]:
    """Numbers separated by commas."""
    from tl_lifehist.errors import InputError

    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{option} takes {what} separated by commas, not {text!r}.") from error


def words(text: str) -> tuple[str, ...]:
    """Words separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def listed(value: Any, kind: type = str, option: str = "") -> tuple[Any, ...]:
    """A list as the command line writes it, "1,2", or as a TOML file has it."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return words(value) if kind is str else tuple(numbers(value, option, kind))


def open_series(model: str, steps: Sequence[int] = (), *, drop: bool = False, **layout: Any) -> CheckpointSeries:
    """The pocket suite, a folder, or a hub repository; `layout` is what `CheckpointSeries.from_hub` takes to find
    checkpoints in it.
    """
    from tl_lifehist.checkpoints.series import CheckpointSeries
    from tl_lifehist.errors import InputError

    given = {name: value for name, value in layout.items() if value is not None}
    if model == "pocket":
        if given:
            raise InputError(f"The pocket suite takes no {_options(given)}: these are for a folder or a repository.")
        series = CheckpointSeries.pocket()
    elif Path(model).is_dir():
        series = CheckpointSeries.from_directory(model, **given)
    elif model.count("/") != 1 or model[0] in "./~" or Path(model).parent.is_dir():
        raise InputError(
            f"There is no folder {model!r}. A hub repository is written owner/name, for example EleutherAI/pythia-160m."
        )
    else:
        return CheckpointSeries.from_hub(model, steps=steps or None, keep=not drop, **given)
    return series.subset(steps) if steps else series


def _options(given: dict[str, Any]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in given)


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
    elif path is None:
        raise InputError(
            f"{series.name} has no text of its own: name a file of its language with --texts, or the pocket suite's "
            "English and Python with --texts pocket."
        )
    else:
        documents = _documents(path)
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


def _documents(path: Path) -> list[str]:
    from tl_lifehist.errors import InputError

    if not path.is_file():
        raise InputError(f"There is no text file {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start:,}): save it as UTF-8.") from error
    if path.suffix == ".jsonl":
        # not splitlines: JSON strings may hold other line separators, such as U+2028, as they are
        lines = enumerate(text.split("\n"), start=1)
        documents = [_text_of(line, path, number) for number, line in lines if line.strip()]
    else:
        documents = [part for part in text.split("\n\n") if part.strip()]
    if len(documents) < 5:
        raise InputError(f"{path} holds {len(documents)} of the 5 documents that are needed to part the splits.")
    return documents


def _text_of(line: str, path: Path, number: int) -> str:
    """The `text` of one line of a jsonl file."""
    import json

    from tl_lifehist.errors import InputError

    wanted = 'each line of a .jsonl file is an object with a string under "text", such as {"text": "A document."}'
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"{path}, line {number}: this is not JSON ({error}); {wanted}.") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise InputError(f'{path}, line {number}: there is no string under "text"; {wanted}.')
    return text


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
    say_reduced(study.reduced)
    quiet = values["quiet"]
    with worker_pool(values["workers"]) as executor:
        run = study.run(
            out,
            executor=executor,
            threads=threads,
            progress=False if quiet else None,
            say=None if quiet else typer.echo,
        )
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


def print_comparison(a: Path, b: Path) -> None:
    """The claims of two runs side by side."""
    from rich.console import Console
    from rich.table import Table

    from tl_lifehist.errors import InputError
    from tl_lifehist.runs import compare_runs, load_run

    kinds = [load_run(path).study["study"] for path in (a, b)]
    if kinds[0] != kinds[1]:
        raise InputError(f"{a} is a {kinds[0]} run and {b} a {kinds[1]} run: compare two of the same study.")
    both = compare_runs(load_run(a), load_run(b))
    table = Table("claim", f"{a.name}", "null", "verdict", f"{b.name}", "null", "verdict")
    for row in both.itertuples(index=False):
        sides = [(row.observed_a, row.null_a, row.verdict_a), (row.observed_b, row.null_b, row.verdict_b)]
        cells = [cell for o, n, v in sides for cell in (_short(o), _short(n), v if isinstance(v, str) else "-")]
        table.add_row(str(row.claim), *cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_calibration(path: Path, n_worlds: int, seed: int) -> None:
    """False positives and power of each tested claim of a run."""
    from rich.console import Console
    from rich.table import Table

    from tl_lifehist.calibrate import calibrate_claims
    from tl_lifehist.runs import load_run

    table = Table("claim", "effect", "unit", "rejected", "95 %", "tested", title=f"{n_worlds} worlds of each effect")
    for row in calibrate_claims(load_run(path), n_worlds=n_worlds, seed=seed).itertuples(index=False):
        effect = "none" if row.effect == 0 else _short(row.effect)
        band = f"{_short(row.low)} to {_short(row.high)}"
        table.add_row(str(row.id), effect, str(row.unit), _short(row.rejected), band, f"{row.n_tested}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_run(run: Run) -> None:
    """What was reduced, our figures beside the published ones, and what was found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 160)
    say_reduced(run.study["reduced"])
    published = run.table("published")
    ours = Table(*published.columns, title="Ours beside the published figures", title_justify="left")
    for row in published.itertuples(index=False):
        ours.add_row(*(str(value) for value in row))
    console.print(ours)
    found, claims = Table("verdict", "what was found", "q", "n", title="Claims", title_justify="left"), run.claims
    for row in claims[claims["headline"]].itertuples(index=False):
        found.add_row(str(row.verdict), Text(str(row.sentence or row.claim)), _short(row.q), f"{row.n} {row.of}")
    console.print(found)
    console.print(f"{int((~claims['headline']).sum())} more figures are described in the report, without a test.")


def say_reduced(reduced: Mapping[str, str]) -> None:
    """What was made smaller than the full study."""
    for what, how in reduced.items():
        typer.echo(f"reduced: {what}: {how}")


def _short(value: Any) -> str:
    return "-" if value != value else f"{value:.3g}"


def say_report(path: Path) -> None:
    """The report's path on a line of its own, never wrapped."""
    typer.echo(f"report: {path}")
