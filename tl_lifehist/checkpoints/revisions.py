"""What the names of checkpoints say: training stage, ingredient and step. Pure functions, no disk and no network."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from tl_lifehist.errors import InputError

# Digits are spelled out because \d also matches digits of other scripts, and bounded because int() refuses thousands.
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:stage(?P<stage>[0-9]{1,9})-)?(?:ingredient(?P<ingredient>[0-9]{1,9})-)?"
        r"step(?P<step>[0-9]{1,18})(?:-tokens(?P<tokens>[0-9]{1,9})B)?",
        r"checkpoint-(?P<step>[0-9]{1,18})",
        r"ckpt-(?P<step>[0-9]{1,18})",
        r"ep[0-9]{1,9}-ba(?P<step>[0-9]{1,18})-rank0\.pt",
    )
)
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

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Sort key: stage, then step. No stage comes first, as pretraining does."""
        return (self.stage or 0, self.step, self.ingredient or 0, self.name)


def parse_revision(name: str) -> Revision | None:
    """The checkpoint that `name` stands for, or None if it is not a checkpoint's name (`main`, temporary folders).

    Understood: `(stageN-)(ingredientN-)stepN(-tokensNB)`, `checkpoint-N`, `ckpt-N` and `epN-baN-rank0.pt`.
    """
    for pattern in _PATTERNS:
        match = pattern.fullmatch(name)
        if match:
            found = {key: int(value) for key, value in match.groupdict().items() if value is not None}
            return Revision(name, found["step"], found.get("stage"), found.get("ingredient"), found.get("tokens"))
    return None


def sort_revisions(names: Iterable[str]) -> list[Revision]:
    """Every name that is a checkpoint's, by stage and then by step; the other names are left out."""
    return sorted((found for found in map(parse_revision, names) if found is not None), key=lambda found: found.order)


def read_path(path: str) -> Revision | None:
    """The checkpoint that a path lies in: its innermost part with a checkpoint's name, `ckpts/ckpt-10/pt` -> 10."""
    return next(filter(None, map(parse_revision, reversed(PurePosixPath(path).parts))), None)


def is_weights(name: str) -> bool:
    """Whether a file of this name holds a checkpoint's weights."""
    return _WEIGHTS.fullmatch(name) is not None or (name.endswith(".pt") and parse_revision(name) is not None)


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
    pretraining. A stage with several ingredients needs `ingredient`.

    Raises InputError when nothing is left, or when two names claim one step that is `wanted` (None: any).
    """
    return _select(sort_revisions(names), stage, ingredient, where, wanted)


def find_places(
    files: Iterable[str], *, stage: int | None = None, ingredient: int | None = None, where: str = "The files"
) -> dict[int, str]:
    """One stage's steps, ascending, each with the folder or the file that holds it, from the paths of all files.

    A folder counts when weights lie in it and it, or a folder around it, has a checkpoint's name (`ckpt-10/pt`); a file
    counts when it is a Composer checkpoint (`ep0-ba10-rank0.pt`). Raises InputError as `select_steps` does.
    """
    found: dict[str, Revision] = {}
    for path in map(PurePosixPath, files):
        place = path if path.suffix == ".pt" else path.parent
        revision = read_path(str(place))
        if revision is not None and is_weights(path.name):
            found[str(place)] = replace(revision, name=str(place))
    return _select(sorted(found.values(), key=lambda revision: revision.order), stage, ingredient, where)


def _select(
    known: list[Revision],
    stage: int | None,
    ingredient: int | None,
    where: str,
    steps_wanted: Collection[int] | None = None,
) -> dict[int, str]:
    if not known:
        raise InputError(f"{where} hold no checkpoint: names such as step1000 or checkpoint-1000 are looked for.")
    wanted = known[0].stage if stage is None else stage
    kept = [r for r in known if r.stage == wanted and (ingredient is None or r.ingredient == ingredient)]
    if not kept:
        stages = sorted({(r.stage or 0, r.ingredient or 0) for r in known})
        found = ", ".join(f"stage {s or 'none'} ingredient {i or 'none'}" for s, i in stages)
        raise InputError(f"{where} hold no checkpoint of stage {wanted}, ingredient {ingredient}; there are: {found}.")
    steps: dict[int, str] = {}
    for revision in kept:
        if revision.step in steps and (steps_wanted is None or revision.step in steps_wanted):
            raise InputError(
                f"{where} hold two checkpoints of step {revision.step}, {steps[revision.step]} and {revision.name}: "
                "say which with ingredient= or subfolder=, or name the steps that you want without it."
            )
        steps[revision.step] = revision.name
    return steps


def match_template(template: str, files: Iterable[str]) -> dict[int, str]:
    """What looks like `template`, by step: `"ckpts/ckpt-{step}/pt"` -> `{10: "ckpts/ckpt-10/pt"}`.

    `files` are the paths of files. A template that ends in `.pt` stands for files, `"ep0-ba{step}-rank0.pt"`; any other
    for folders, and a folder counts when a file lies directly in it. Raises InputError when the template does not hold
    `{step}` exactly once.
    """
    before, marker, after = template.strip("/").partition("{step}")
    if not marker or "{" in before + after:
        raise InputError(
            f"The template {template!r} must hold {{step}} exactly once, as in 'checkpoints/ckpt-{{step}}'."
        )
    inside = "" if after.endswith(".pt") else "/[^/]+"
    pattern = re.compile("(" + re.escape(before) + "([0-9]{1,18})" + re.escape(after) + ")" + inside)
    found = sorted((int(m.group(2)), m.group(1)) for m in map(pattern.fullmatch, files) if m)
    return dict(found)


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
