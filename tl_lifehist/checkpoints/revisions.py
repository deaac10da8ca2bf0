"""What the names of checkpoints say: training stage, ingredient and step. Pure functions, no disk and no network."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from tl_lifehist.errors import InputError

# Digits are spelled out because \d also matches digits of other scripts, and bounded because int() refuses thousands.
_STEP = r"(?P<step>[0-9]{1,18})"
# Which run of several: a stage of training, an ingredient of a stage, a seed. Before the step, a seed also behind it.
_RUN = (
    r"(?:stage[-_]?(?P<stage>[0-9]{1,9})[-_])?(?:ingredient[-_]?(?P<ingredient>[0-9]{1,9})[-_])?"
    r"(?:seed[-_]?(?P<seed>[A-Za-z0-9]{1,40})[-_])?"
)
_SEED_BEHIND = r"(?:[-_]seed[-_]?(?P<seed_behind>[A-Za-z0-9]{1,40}(?:-[A-Za-z0-9]{1,40})*))?"
_EPOCH = r"(?:ep(?:och)?[-_=]?[0-9]{1,9}[-_])?"
_WORD = r"(?:model[-_])?(?:global[-_]?step|step|checkpoint|ckpt|iter)[-_=]?"
_COMPOSER = re.compile(rf"ep[0-9]{{1,9}}-ba{_STEP}-rank0\.pt")
_NAMED = re.compile(rf"{_RUN}{_EPOCH}{_WORD}{_STEP}(?:-tokens(?P<tokens>[0-9]{{1,9}})B)?{_SEED_BEHIND}")
_BARE = re.compile(_STEP)
_STATE_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")  # plain state dicts, one file a checkpoint
_WEIGHTS = re.compile(r"(model|pytorch_model)[^/]*\.(safetensors|bin)")

# The only repositories whose main branch is known to be a step of the training run, and which. The main branch of
# others is annealed, averaged or tuned: another model.
_MAIN_STEPS = {"EleutherAI/pythia-": 143000}


@dataclass(frozen=True)
class Revision:
    """A checkpoint's name taken apart; what the name does not say is None."""

    name: str
    step: int
    stage: int | None = None
    ingredient: int | None = None
    tokens_billion: int | None = None
    run: str | None = None  # of several side by side: "seed 3", or the folder around it

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Sort key: stage, then step. No stage comes first, as pretraining does."""
        return (self.stage or 0, self.step, self.ingredient or 0, self.name)


def parse_revision(name: str) -> Revision | None:
    """The checkpoint that `name` stands for, or None if it is not a checkpoint's name (`main`, temporary folders).

    Understood: `step`, `global_step`, `checkpoint`, `ckpt` and `iter`, `model_` before them or not, and a number, with
    `-`, `_`, `=` or nothing between and zeros in front or not; `stageN-`, `ingredientN-`, `seedN-` and `epoch=N-`
    before it, `-tokensNB` and `-seed-N` behind it; and Composer's `epN-baN-rank0.pt`.
    """
    match = _NAMED.fullmatch(name) or _COMPOSER.fullmatch(name)
    return None if match is None else _revision(name, match.groupdict())


def _revision(name: str, found: dict[str, str | None]) -> Revision:
    numbers = {key: int(value) for key, value in found.items() if value is not None and not key.startswith("seed")}
    seed = found.get("seed") or found.get("seed_behind")
    stage, ingredient = numbers.get("stage"), numbers.get("ingredient")
    run = None if seed is None else f"seed {seed}"
    return Revision(name, numbers["step"], stage, ingredient, numbers.get("tokens"), run)


def sort_revisions(names: Iterable[str]) -> list[Revision]:
    """Every name that is a checkpoint's, by stage and then by step; the other names are left out."""
    return sorted((found for found in map(parse_revision, names) if found is not None), key=lambda found: found.order)


def bare_numbers(names: Iterable[str]) -> list[Revision]:
    """The names that are a number and nothing else, by it: steps, where no name says more."""
    found = [Revision(name, int(match[0])) for name in names if (match := _BARE.fullmatch(name))]
    return sorted(found, key=lambda revision: revision.order)


def read_path(path: str) -> Revision | None:
    """The checkpoint that a path lies in: its innermost part with a checkpoint's name, `ckpts/ckpt-10/pt` -> 10."""
    return next(filter(None, map(parse_revision, reversed(PurePosixPath(path).parts))), None)


def is_weights(name: str) -> bool:
    """Whether a file of this name holds a checkpoint's weights."""
    return _WEIGHTS.fullmatch(name) is not None or is_composer_name(name)


def is_composer_name(name: str) -> bool:
    """Whether a file of this name is one that Composer wrote."""
    return _COMPOSER.fullmatch(name) is not None


def is_state_file(path: str) -> bool:
    """Whether a place is a file of weights, by its ending, and no folder."""
    return path.endswith(_STATE_FILES)


def _of_file(name: str) -> Revision | None:
    """The checkpoint that a single file of weights is, `ckpt_100.pt` -> 100; its own name is kept."""
    if is_composer_name(name):
        return parse_revision(name)
    ending = next((ending for ending in _STATE_FILES if name.endswith(ending)), None)
    found = None if ending is None else parse_revision(name.removesuffix(ending))
    return None if found is None else replace(found, name=name)


def main_step(repo: str) -> int | None:
    """The training step that the main branch of a repository holds, None where that is not known."""
    return next((step for start, step in _MAIN_STEPS.items() if repo.startswith(start)), None)


def select_steps(
    names: Iterable[str],
    *,
    stage: int | None = None,
    ingredient: int | None = None,
    where: str = "The names",
    wanted: Collection[int] | None = None,
) -> dict[int, str]:
    """One stage's steps, ascending, each with its name.

    Steps begin again in each stage, so a series of steps is of one stage: `stage=None` takes the earliest one, which is
    pretraining. A stage with several ingredients needs `ingredient`, unless the steps `wanted` lie in one alone.

    Raises InputError when nothing is left, when the names are of several runs (ingredients, seeds), or when two of them
    claim one step that is `wanted` (None: any).
    """
    known = list(names)
    return _select(sort_revisions(known) or bare_numbers(known), stage, ingredient, where, wanted, known)


def find_places(
    files: Iterable[str],
    *,
    stage: int | None = None,
    ingredient: int | None = None,
    where: str = "The files",
    others: Collection[str] = (),
) -> dict[int, str]:
    """One stage's steps, ascending, each with the folder or the file that holds it, from the paths of all files.

    A folder counts when weights lie in it and it, or a folder around it, has a checkpoint's name (`ckpt-10/pt`); a file
    counts when it is a Composer checkpoint (`ep0-ba10-rank0.pt`) or, where there is no such folder, one of weights
    whose own name is a checkpoint's (`ckpt_10.pt`). `others` are names that an error shows too. Raises InputError as
    `select_steps` does.
    """
    paths = [PurePosixPath(path) for path in files]
    found: dict[str, Revision] = {}
    for path in filter(lambda path: is_weights(path.name), paths):
        place = path if is_composer_name(path.name) else path.parent
        revision = _in_folders(place)
        if revision is not None:
            found[str(place)] = revision
    if not found:
        named = ((path, _of_file(path.name)) for path in paths)
        found = {str(path): _inside(path.parent, replace(one, name=str(path))) for path, one in named if one}
    if not found:
        bare = [path.parent for path in paths if is_weights(path.name) and _BARE.fullmatch(path.parent.name)]
        found = {str(p): _inside(p.parent, Revision(str(p), int(p.name))) for p in bare}
    known = sorted(found.values(), key=lambda revision: revision.order)
    return _select(known, stage, ingredient, where, names=[*others, *sorted({p.parts[0] for p in paths})])


def _in_folders(place: PurePosixPath) -> Revision | None:
    for i in range(len(place.parts) - 1, -1, -1):
        revision = parse_revision(place.parts[i])
        if revision is not None:
            return _inside(PurePosixPath(*place.parts[:i]), replace(revision, name=str(place)))
    return None


def _inside(folder: PurePosixPath, revision: Revision) -> Revision:
    """Of a run that is known by the folder around its checkpoints."""
    outer = str(folder) if folder.parts else None
    return replace(revision, run=" ".join(part for part in (outer, revision.run) if part) or None)


def _select(
    known: list[Revision],
    stage: int | None,
    ingredient: int | None,
    where: str,
    steps_wanted: Collection[int] | None = None,
    names: Collection[str] = (),
) -> dict[int, str]:
    if not known:
        there = f"; there are {some(names)}" if names else ""
        raise InputError(
            f"{where} hold no checkpoint: names such as step1000 or checkpoint-1000 are looked for{there}: say how "
            "they look with pattern=, as in 'run-a_{step}'."
        )
    wanted = known[0].stage if stage is None else stage
    kept = [r for r in known if r.stage == wanted and (ingredient is None or r.ingredient == ingredient)]
    if not kept:
        stages = sorted({(r.stage or 0, r.ingredient or 0) for r in known})
        found = ", ".join(f"stage {s or 'none'} ingredient {i or 'none'}" for s, i in stages)
        raise InputError(f"{where} hold no checkpoint of stage {wanted}, ingredient {ingredient}; there are: {found}.")
    kept = _one_run(kept, where, steps_wanted)
    steps: dict[int, str] = {}
    for revision in kept:
        if revision.step in steps and (steps_wanted is None or revision.step in steps_wanted):
            raise InputError(
                f"{where} hold two checkpoints of step {revision.step}, {steps[revision.step]} and {revision.name}: "
                "say which with ingredient= or pattern=, or name the steps that you want without it."
            )
        steps[revision.step] = revision.name
    return steps


def _one_run(kept: list[Revision], where: str, steps_wanted: Collection[int] | None) -> list[Revision]:
    """Those of one training run: ingredients, seeds and folders side by side would look like one history. Where some
    names tell of none of these, they are the run; else the steps that are wanted may tell which.
    """
    runs: dict[tuple[int | None, str | None], list[Revision]] = {}
    for revision in kept:
        runs.setdefault((revision.ingredient, revision.run), []).append(revision)
    if len(runs) == 1 or (None, None) in runs:
        return runs.get((None, None), kept)
    if steps_wanted:
        holding = [run for run in runs.values() if set(steps_wanted) <= {revision.step for revision in run}]
        if len(holding) == 1:
            return holding[0]
    told = [" ".join(filter(None, (None if i is None else f"ingredient {i}", run))) for i, run in runs]
    shared = sorted(set.intersection(*({revision.step for revision in run} for run in runs.values())))
    two = [next(r.name for r in run if not shared or r.step == shared[0]) for run in list(runs.values())[:2]]
    both = f"two checkpoints of step {shared[0]}" if shared else "checkpoints"
    raise InputError(
        f"{where} hold {both} of {len(runs)} training runs ({some(told)}), {two[0]} and {two[1]}: say which with "
        f"{'ingredient= or ' * any(i is not None for i, _ in runs)}pattern={_pattern_of(kept, two[0])!r}."
    )


def _pattern_of(known: list[Revision], name: str) -> str:
    """The pattern of the names that are like this one."""
    step = next(revision.step for revision in known if revision.name == name)
    before, _, behind = re.sub(rf"(?<![0-9])0*{step}(?![0-9])", "\0", name).rpartition("\0")
    return f"{before.replace(chr(0), str(step))}{{step}}{re.sub(r'-tokens[0-9]+B', '-tokens*', behind)}"


def some(names: Collection[str], n: int = 8) -> str:
    """The first of the names, joined for a message."""
    shown = ", ".join(list(names)[:n])
    return f"{shown} and {len(names) - n} more" if len(names) > n else shown


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of names as a regular expression: `{step}` stands for digits, `*` for anything but a stroke.

    Raises InputError when it does not hold `{step}` exactly once.
    """
    before, marker, after = pattern.strip("/").partition("{step}")
    if not marker or "{" in before + after:
        raise InputError(f"The pattern {pattern!r} must hold {{step}} exactly once, as in 'checkpoints/ckpt-{{step}}'.")
    parts = (r"[^/]*".join(map(re.escape, part.split("*"))) for part in (before, after))
    return re.compile(f"{next(parts)}([0-9]{{1,18}}){next(parts)}")


def match_names(pattern: str, names: Iterable[str], where: str = "The names") -> dict[int, str]:
    """Of `names`, those that look like the pattern, by step: `"v{step}-*"` -> `{10: "v10-final"}`.

    Raises InputError for a pattern without `{step}`, and when two names are of one step.
    """
    compiled = compile_pattern(pattern)
    found: dict[int, str] = {}
    for name in sorted(names):
        match = compiled.fullmatch(name)
        if match and found.setdefault(int(match[1]), name) != name:
            raise InputError(
                f"{where} hold two checkpoints of step {int(match[1])} that look like {pattern!r}, "
                f"{found[int(match[1])]} and {name}: give a narrower pattern."
            )
    return dict(sorted(found.items()))


def match_template(pattern: str, files: Iterable[str], where: str = "The files") -> dict[int, str]:
    """The places that look like `pattern`, by step: `"ckpts/ckpt-{step}/pt"` -> `{10: "ckpts/ckpt-10/pt"}`.

    `files` are the paths of files. A pattern that ends as weights do stands for files, `"ep0-ba{step}-rank0.pt"`; any
    other for folders, and a folder counts when a file lies directly in it. Raises InputError as `match_names` does.
    """
    compile_pattern(pattern)
    single = is_state_file(pattern)
    return match_names(pattern, {path if single else path.rpartition("/")[0] for path in files}, where)


def nearest_steps(step: int, known: Iterable[int], n: int = 3) -> list[int]:
    """The `n` known steps closest to `step`, ascending."""
    return sorted(sorted(known, key=lambda other: (abs(other - step), other))[:n])


def require_steps(wanted: Iterable[int], known: Iterable[int], where: str) -> None:
    """Refuse steps that do not exist, naming the nearest ones that do."""
    there = set(known)
    for step in wanted:
        if step not in there:
            near = ", ".join(map(str, nearest_steps(step, there)))
            raise InputError(f"{where} has no checkpoint of step {step}; the nearest steps are: {near}.")
