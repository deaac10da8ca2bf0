"""What a run leaves on disk: this file alone knows where everything lies and how it is written and read.

    study.json            configuration, seed, threads, versions, fingerprints of the weights
    plan.json             the stages of the study and what decides each
    texts/<key>.safetensors
    stages/<stage>/       the outputs of one stage and their manifest.json
    tables/               the same for the last stage: what a reader wants

A stage's outputs are written aside, listed with their checksums in a manifest, flushed and renamed, so they are there
whole or not at all, and a byte that changed later is found. All of it can be read without this package: Parquet, npz
without pickles, safetensors, SAELens folders, GraphML, JSON.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tl_lifehist.errors import InputError, nearest
from tl_lifehist.formats import read_output, write_output
from tl_lifehist.record import FORMAT, read_record
from tl_lifehist.tokens import TokenSet

TABLES = "tables"
MANIFEST = "manifest.json"
_TEMPORARY, _BEFORE = ".partial-", ".before-"


@contextlib.contextmanager
def clear_disk_errors(path: Path) -> Iterator[None]:
    """Say in one sentence what a full disk or a read-only folder means; nothing finished is lost."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"The disk of {path} is full: free some space and start the same command again; finished "
                "stages are kept."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(f"{path} cannot be written: give a folder that you may write to.") from error
        raise


def require_folder(path: Path) -> None:
    """Refuse a run folder that is a file, or that would lie in one.

    Raises:
        InputError: names the file.
    """
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise InputError(f"{place} is a file: give a folder for the run.")
            return


@dataclass(frozen=True)
class Manifest:
    """What a stage's folder says of itself.

    Attributes:
        key: hash of `decided_by`.
        decided_by: everything that decides the outputs: parameters, keys of what was read, versions, threads.
        files: size and checksum by path within the folder.
        outputs: the kind each output is stored as, by name.
    """

    key: str
    decided_by: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]
    outputs: Mapping[str, str]


class Results(Mapping[str, Any]):
    """The outputs of one stage by name, each read when it is asked for."""

    def __init__(self, store: Store, stage: str) -> None:
        self._folder, self._stage = store.folder(stage), stage
        self._manifest = store.manifest(stage)

    @property
    def path(self) -> Path:
        """The folder itself, for what is read in a format of its own."""
        return self._folder

    def __getitem__(self, name: str) -> Any:
        if name not in self._manifest.outputs:
            raise InputError(
                f"{self._folder} holds no {name!r}; the nearest are: {nearest(name, self._manifest.outputs)}."
            )
        return read_output(self._folder, name, self._manifest.outputs[name])

    @property
    def key(self) -> str:
        """Of what decided them."""
        return self._manifest.key

    def __contains__(self, name: object) -> bool:
        return name in self._manifest.outputs

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifest.outputs)

    def __len__(self) -> int:
        return len(self._manifest.outputs)


class Store:
    """One run folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextlib.contextmanager
    def held(self) -> Iterator[Store]:
        """The folder, made where it is missing, held by this process for as long as the context lasts.

        Raises:
            InputError: another process holds it, or it cannot be written.
        """
        require_folder(self.path)
        with clear_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", timeout=0)
            try:
                lock.acquire()
            except Timeout as error:
                raise InputError(
                    f"Another process is working in {self.path}: wait for it to end, or give another folder."
                ) from error
        try:
            self._tidy()
            yield self
        finally:
            lock.release()

    def _tidy(self) -> None:
        """What a killed run left: half of something new goes, something old that was just being replaced comes back."""
        for old in list(self.path.rglob(f"{_BEFORE}*")):
            place = old.parent / old.name.split("-", 2)[2]
            shutil.rmtree(old) if place.exists() else os.replace(old, place)
        for leftover in list(self.path.rglob(f"{_TEMPORARY}*")):
            (shutil.rmtree if leftover.is_dir() else Path.unlink)(leftover)

    # the record of the run

    @property
    def record(self) -> dict[str, Any]:
        """`study.json`.

        Raises:
            InputError: there is none, it cannot be read, or it is of an earlier version of the package.
        """
        return read_record(self.path)

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace `study.json` in one move."""
        with clear_disk_errors(self.path):
            text = json.dumps({"format": FORMAT, **record}, indent=1, ensure_ascii=False) + "\n"
            _replace(self.path / "study.json", text.encode())

    @property
    def plan(self) -> dict[str, dict[str, Any]]:
        """What decides each stage of the study, as it was last started.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        _ = self.record
        path = self.path / "plan.json"
        try:
            found = {str(name): dict(decided_by) for name, decided_by in json.loads(path.read_text("utf-8")).items()}
            if not all(isinstance(one["needs"], dict) and isinstance(one["params"], dict) for one in found.values()):
                raise ValueError("no plan")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is missing or damaged: start the run's own command again.") from error
        return found

    def superseded(self, stage: str, key: str) -> bool:
        """Whether a later start of the run wants this stage to be another than the one with this key."""
        if not (self.path / "plan.json").is_file():
            return False
        plan = self.plan
        return stage in plan and fingerprint(plan[stage]) != key

    def write_plan(self, decided_by: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the plan in one move."""
        with clear_disk_errors(self.path):
            _replace(self.path / "plan.json", json.dumps(decided_by, ensure_ascii=False).encode())

    # texts

    def put_text(self, tokens: TokenSet) -> str:
        """Store a text once, and return its key."""
        from safetensors.torch import save

        path = self._text(tokens.key)
        if not self.has_text(tokens.key):
            with clear_disk_errors(self.path):
                path.parent.mkdir(exist_ok=True)
                _replace(path, save(tokens.to_tensors()))
        return tokens.key

    def has_text(self, key: str) -> bool:
        """Whether the text is there and whole: its key is its content's."""
        try:
            return self.text(key).key == key
        except Exception:  # whatever a damaged file makes of the reader
            return False

    def text(self, key: str) -> TokenSet:
        """A stored text."""
        from safetensors.torch import load_file

        return TokenSet.from_tensors(load_file(self._text(key)))

    def _text(self, key: str) -> Path:
        return self.path / "texts" / f"{key}.safetensors"

    # outputs of stages

    def folder(self, stage: str) -> Path:
        """Where a stage's outputs lie."""
        return self.path / stage if stage == TABLES else self.path / "stages" / stage

    def stages(self) -> list[str]:
        """Names of the stages that have left something; one that was killed while it wrote has not."""
        root, found = self.path / "stages", list[str]()
        for folder, below, files in os.walk(root):  # a folder that another process moves meanwhile is passed by
            below[:] = [name for name in below if not name.startswith((_TEMPORARY, _BEFORE))]
            found += [Path(folder).relative_to(root).as_posix()] * (MANIFEST in files)
        return sorted(found) + [TABLES] * (self.folder(TABLES) / MANIFEST).is_file()

    def results(self, stage: str) -> Results:
        """The outputs of a finished stage.

        Raises:
            InputError: there are none.
        """
        return Results(self, stage)

    def manifest(self, stage: str) -> Manifest:
        """What a stage's folder says of itself.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        path = self.folder(stage) / MANIFEST
        if not path.is_file():
            raise InputError(f"{self.path} holds no finished stage {stage!r}: start the run's command again.")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            files = {str(name): (int(size), str(digest)) for name, (size, digest) in stored["files"].items()}
            if stored.pop("sum") != fingerprint(stored) or stored["stage"] != stage:
                raise ValueError("not as it was written")
            return Manifest(str(stored["key"]), dict(stored["decided_by"]), files, dict(stored["outputs"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged: start the run's command again.") from error

    def damage(self, stage: str) -> str | None:
        """What is wrong with a stage's files, in a few words; None where they are as they were written."""
        folder = self.folder(stage)
        try:
            manifest = self.manifest(stage)
        except InputError:
            return f"{MANIFEST} is damaged"
        for name in manifest.files:
            if folder.resolve() not in (folder / name).resolve().parents:
                return f"{MANIFEST} names a file outside its folder"
            if not (folder / name).is_file():
                return f"{name} is missing"
            if self.damaged(stage, name):
                return f"{name} is damaged"
        return None

    def damaged(self, stage: str, file: str) -> bool:
        """Whether a file of a stage is not the one that its manifest lists."""
        path, (size, digest) = self.folder(stage) / file, self.manifest(stage).files[file]
        return not path.is_file() or path.stat().st_size != size or _digest(path) != digest

    def save(self, stage: str, outputs: Mapping[str, Any], key: str, decided_by: Mapping[str, Any]) -> None:
        """Write a stage's outputs aside and move them into place, whole; what was there before goes only then."""
        final = self.folder(stage)
        aside = final.parent / f"{_TEMPORARY}{final.name}-{uuid.uuid4().hex[:8]}"
        with clear_disk_errors(self.path):
            aside.mkdir(parents=True)
            try:
                kinds = {name: write_output(aside, name, value) for name, value in outputs.items()}
                written = sorted(path for path in aside.rglob("*") if path.is_file())
                files = {p.relative_to(aside).as_posix(): (p.stat().st_size, _digest(p)) for p in written}
                manifest = {"stage": stage, "key": key, "decided_by": decided_by, "outputs": kinds, "files": files}
                manifest["sum"] = fingerprint(manifest)
                (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
                for path in (*aside.rglob("*"), aside):
                    _flush(path)
                self._move(aside, final, stage, key)
                _flush(final.parent)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise

    def _move(self, aside: Path, final: Path, stage: str, key: str) -> None:
        old = final.parent / f"{_BEFORE}{uuid.uuid4().hex[:8]}-{final.name}"
        try:
            if final.exists():
                os.replace(final, old)
            os.replace(aside, final)
        except OSError as error:
            # an orphan of a killed run was quicker, with the same result
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or self.manifest(stage).key != key:
                raise
            shutil.rmtree(aside)
        shutil.rmtree(old, ignore_errors=True)

    # what a reader wants

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables of a finished run."""
        return tuple(sorted(n for n, kind in self.manifest(TABLES).outputs.items() if kind == "parquet"))

    def table(self, name: str) -> Any:
        """One table of a finished run.

        Raises:
            InputError: no such table, or its file is not what was written.
        """
        if not (self.folder(TABLES) / MANIFEST).is_file():
            raise InputError(f"{self.path} holds no tables: the run is not finished; start its command again.")
        if self.superseded(TABLES, self.manifest(TABLES).key):
            raise InputError(
                f"The tables in {self.path} are of earlier settings: the run was started with others since and not "
                "finished. Start it with the new settings to finish it, or with the earlier ones to read these again; "
                f"`tl-lifehist status {self.path}` says what differs."
            )
        known = self.tables
        if name not in known:
            raise InputError(f"{self.path} holds no table {name!r}; it holds: {', '.join(known)}.")
        file = f"{name}.parquet"
        if self.damaged(TABLES, file):
            raise InputError(
                f"{self.folder(TABLES) / file} is damaged: start the run's command again, which writes it anew."
            )
        return self.results(TABLES)[name]


def fingerprint(value: Any) -> str:
    """A hash of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def _replace(path: Path, content: bytes) -> None:
    aside = path.parent / f"{_TEMPORARY}{path.name}-{uuid.uuid4().hex[:8]}"
    aside.write_bytes(content)
    _flush(aside)
    os.replace(aside, path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _flush(path: Path) -> None:
    """On disk before the rename that makes it count: after a power loss a file is whole or not there."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
