# SPDX-License-Identifier: Apache-2.0
"""Pictures, arrays or iterables -> batches that match the model's inputs, read when they are needed."""

from __future__ import annotations

import hashlib
import io
import itertools
import random
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from wia_quant.errors import DataError, UsageError
from wia_quant.inputs import ModelInput, as_model_inputs
from wia_quant.npz import NpyRows, open_rows
from wia_quant.preprocess import Preprocess, Recorded, load_preprocess, picture_to_sample

Progress = Callable[[int, int | None, str], None]
Arrays = dict[str, npt.NDArray[Any]]

PICTURES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
ARRAYS: Final = (".npy", ".npz")

#: How many names of skipped files a message lists; the summary has them all.
NAMES_IN_MESSAGE: Final = 3


class Batch(dict[str, npt.NDArray[Any]]):
    """What one run of the model takes: {input name: array}.

    Attributes:
        source: where it is from.
        n_samples: rows along the batch axis.
        names: of its samples, in order; rows beyond them are samples given before, which fill the batch up.
    """

    def __init__(
        self, arrays: Mapping[str, npt.NDArray[Any]], source: str, n_samples: int, names: Sequence[str] = ()
    ) -> None:
        super().__init__(arrays)
        self.source = source
        self.n_samples = n_samples
        self.names = tuple(names) or _row_names(source, n_samples)


def _row_names(source: str, n: int) -> tuple[str, ...]:
    return (source,) if n == 1 else tuple(f"{source}[{i}]" for i in range(n))


@dataclass
class Summary:
    """What was read and how; complete once the data has been iterated to its end.

    Attributes:
        source: the folder or file, or "iterable", or "synthetic".
        kind: "pictures", "arrays", "iterable" or "synthetic".
        available: samples that the source holds; None if only iterating tells.
        requested: samples asked for.
        used: samples given out.
        batches: batches given out.
        batch: samples in each.
        repeated: samples given out a second time to fill the last batch.
        order: how samples were chosen and ordered.
        seed: the seed of that choice.
        skipped: {file: reason} of what could not be read.
        ignored: files in the folder that are not data.
        digest: sha256 over the content of the samples in their order.
        preprocess: the specification, for pictures.
        notes: what was guessed or converted, one sentence each.
    """

    source: str
    kind: str
    available: int | None
    requested: int
    order: str
    seed: int
    batch: int = 1
    used: int = 0
    batches: int = 0
    repeated: int = 0
    ignored: int = 0
    digest: str = ""
    skipped: dict[str, str] = field(default_factory=dict)
    preprocess: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self)) | {"skipped": dict(self.skipped), "notes": list(self.notes)}


@dataclass(frozen=True)
class Record:
    """What the source holds in one place, not read yet.

    Attributes:
        source: for messages: the file, or "file[row]", or "item 3".
        read: gives the arrays by input name and the sha256 of the content.
        skippable: a failure to read it is the fault of one file, not of the whole source.
    """

    source: str
    read: Callable[[], tuple[Arrays, bytes]]
    skippable: bool = False


class Dataset:
    """Batches for a model, in constant memory; iterate as often as the source allows.

    ``summary`` tells what was read. Made by ``open_data``.
    """

    def __init__(
        self,
        inputs: Sequence[ModelInput],
        records: Callable[[Dataset], Iterable[Record]],
        summary: Summary,
        *,
        strict: bool,
        progress: Progress | None,
        n_samples: int | None,
        readers: int = 1,
    ) -> None:
        self.inputs = tuple(inputs)
        self.summary = summary
        self.n_samples = n_samples
        self._records = records
        self._strict = strict
        self._progress = progress
        self._readers = readers
        self._fixed = _fixed_batch(self.inputs)
        summary.batch = self._fixed or 1

    @property
    def n_batches(self) -> int | None:
        """How many batches an iteration gives if no file is skipped; None if only iterating tells."""
        return None if self.n_samples is None else -(-self.n_samples // (self._fixed or 1))

    def note(self, text: str) -> None:
        """Add a sentence to the summary, once."""
        if text not in self.summary.notes:
            self.summary.notes.append(text)

    def __iter__(self) -> Iterator[Batch]:
        summary = self.summary
        summary.used = summary.batches = summary.repeated = 0
        summary.skipped.clear()
        digest = hashlib.sha256()
        for batch in self._batches(digest):
            summary.batches += 1
            summary.digest = digest.hexdigest()
            yield batch
        if summary.batches == 0:
            raise DataError(self._nothing_read())

    def _batches(self, digest: Any) -> Iterator[Batch]:
        summary, size = self.summary, self._fixed
        held: list[tuple[str, Arrays]] = []  # samples of one row, for models with a fixed batch
        first: list[tuple[str, Arrays]] = []
        for source, arrays in self._samples(digest):
            rows = _n_rows(self.inputs, arrays)
            left = summary.requested - summary.used
            if size is None:
                if rows > left:
                    arrays, rows = {name: a[:left] for name, a in arrays.items()}, left
                summary.used += rows
                yield Batch(arrays, source, rows)
            else:
                for row, name in enumerate(_row_names(source, rows)[:left]):
                    held.append((name, _row(self.inputs, arrays, row)))
                    summary.used += 1
                    if len(first) < size:
                        first.append(held[-1])
                    if len(held) == size:
                        yield _stacked(held)
                        held = []
            if summary.used >= summary.requested:
                break
        if held and size is not None:
            missing = size - len(held)
            summary.repeated = missing
            self.note(f"the last batch is filled with {missing} samples given before (the model takes {size})")
            yield _stacked([*held, *itertools.islice(itertools.cycle(first), missing)], len(held))

    def _samples(self, digest: Any) -> Iterator[tuple[str, Arrays]]:
        for record, read in _ahead(self._records(self), self._readers):
            try:
                arrays, content = read()
            except DataError as e:
                if not record.skippable:
                    raise
                self._skip(record.source, str(e))
                continue
            arrays = {i.name: self._fit(i, arrays[i.name], record.source) for i in self.inputs}
            digest.update(content)
            yield record.source, arrays
            if self._progress:
                self._progress(self.summary.used, self.n_samples, "reading data")

    def _skip(self, source: str, reason: str) -> None:
        if self._strict:
            raise DataError(f"{source}: {reason}; without strict it would be skipped")
        self.summary.skipped[source] = reason

    def _fit(self, spec: ModelInput, x: npt.NDArray[Any], source: str) -> npt.NDArray[Any]:
        """``x`` in the type of the input; DataError if the shape or type cannot be that of the input."""
        where = f"{source}: input {spec.name!r}"
        if x.dtype.kind not in "biuf":
            raise DataError(f"{where} takes {spec.dtype}, but the data is of type {x.dtype}")
        if x.ndim == len(spec.shape) - 1 and not spec.accepts(x.shape):
            x = x[None]
        free_batch = spec.shape[1:] if self._fixed else spec.shape
        fits = spec.accepts(x.shape[1:] if self._fixed else x.shape, free_batch)
        if x.ndim != len(spec.shape) or not fits:
            raise DataError(f"{where} takes {spec.shape_text}, but the data is {list(x.shape)}")
        if x.dtype != spec.dtype:
            x = self._converted(spec, x, where)
        if np.issubdtype(x.dtype, np.floating) and x.size and not np.isfinite(x).all():
            raise DataError(f"{where}: the data holds NaN or infinity")
        return np.ascontiguousarray(x).reshape(x.shape)  # which makes [1] of []

    def _converted(self, spec: ModelInput, x: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
        with np.errstate(all="ignore"):
            converted = x.astype(spec.dtype)
        if np.issubdtype(spec.dtype, np.integer) and not np.array_equal(converted, x):
            raise DataError(f"{where} takes {spec.dtype}, and the {x.dtype} data has values that do not fit")
        self.note(f"input {spec.name!r}: {x.dtype} data was converted to {spec.dtype}")
        return converted

    def _nothing_read(self) -> str:
        skipped = self.summary.skipped
        if not skipped:
            return f"{self.summary.source}: no sample; give at least one"
        shown = "; ".join(f"{f}: {why}" for f, why in itertools.islice(skipped.items(), NAMES_IN_MESSAGE))
        return f"{self.summary.source}: none of the {len(skipped)} files could be read ({shown})"


def _ahead(records: Iterable[Record], readers: int) -> Iterator[tuple[Record, Callable[[], tuple[Arrays, bytes]]]]:
    """The records in order, each with what gives its content: files are read ahead by ``readers`` threads."""
    if readers <= 1:
        yield from ((record, record.read) for record in records)
        return
    waiting: deque[tuple[Record, Callable[[], tuple[Arrays, bytes]]]] = deque()
    with ThreadPoolExecutor(readers, "wia-read") as pool:
        try:
            for record in records:
                waiting.append((record, pool.submit(record.read).result if record.skippable else record.read))
                if len(waiting) > 2 * readers:
                    yield waiting.popleft()
            yield from waiting
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def open_data(
    source: object,
    inputs: object,
    *,
    preprocess: str | Path | Mapping[str, Any] | Preprocess | None = None,
    samples: int = 300,
    seed: int = 0,
    strict: bool = False,
    synthetic: bool = False,
    readers: int = 1,
    progress: Progress | None = None,
) -> Dataset:
    """Batches of ``source`` that fit the model's inputs.

    Args:
        source: a folder of pictures (searched to the bottom), a picture, a .npy or .npz file, a folder of
            those, or an iterable of batches: dicts by input name, arrays, or tuples in the order of the inputs
            (a torch DataLoader is one). None only with ``synthetic``.
        inputs: the model (ModelProto), or its inputs: of a session (``get_inputs()``) or ``ModelInput``.
        preprocess: for pictures: a preset's name, a .json file, or a specification; None guesses and says so.
            With arrays it is an error, but for what a model records: that is left out and said.
        samples: how many to use at most; of a larger folder or array that many, spread evenly.
        seed: of the choice of these.
        strict: a picture that cannot be read is an error instead of being skipped.
        synthetic: random values; ranges from them mean nothing for the accuracy.
        readers: threads that read pictures; with 1 they are read when they are asked for.
        progress: called as ``progress(done, total, what)``.

    Raises:
        DataError: no such path, nothing in it, or data that cannot fit the model's inputs.
        UsageError: arguments that are not understood.
    """
    wanted = as_model_inputs(inputs)
    if samples < 1:
        raise UsageError(f"samples is {samples}; at least 1 is needed")
    if synthetic:
        if source is not None:
            raise UsageError("synthetic data and a data source exclude each other; give one")
        return _synthetic(wanted, samples, seed, progress)
    if source is None:
        raise DataError("no calibration data; give a folder of pictures, a .npz or an iterable (see open_data)")
    spec = None if preprocess is None else load_preprocess(preprocess)
    opened = _Opening(wanted, spec, isinstance(preprocess, Recorded), samples, seed, strict, readers, progress)
    if isinstance(source, str | Path):
        return opened.path(Path(source))
    if isinstance(source, np.ndarray | Mapping):
        return opened.arrays_in_memory(source)
    if isinstance(source, Iterable):
        return opened.iterable(source)
    raise UsageError(f"data of type {type(source).__name__} is none that can be read (see open_data)")


@dataclass(frozen=True)
class _Opening:
    """The arguments of ``open_data``, and one method per kind of source."""

    inputs: tuple[ModelInput, ...]
    spec: Preprocess | None
    recorded: bool
    samples: int
    seed: int
    strict: bool
    readers: int
    progress: Progress | None

    def path(self, path: Path) -> Dataset:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        if path.is_file():
            return self._file(path)
        files = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
        if not files:
            raise DataError(f"{path}: the folder is empty")
        pictures = [p for p in files if p.suffix.lower() in PICTURES]
        arrays = [p for p in files if p.suffix.lower() in ARRAYS]
        if pictures and arrays:
            raise DataError(
                f"{path}: {len(pictures)} pictures and {len(arrays)} array files; keep one kind in the folder"
            )
        if pictures:
            return self.pictures(path, pictures, len(files) - len(pictures))
        if arrays:
            return self._array_files(path, arrays, len(files) - len(arrays))
        raise DataError(
            f"{path}: none of its {len(files)} files is a picture ({', '.join(PICTURES[:5])}) or array "
            f"({', '.join(ARRAYS)}); the first is {files[0].relative_to(path)}"
        )

    def pictures(self, root: Path, files: Sequence[Path], ignored: int) -> Dataset:
        target = _picture_input(self.inputs, root)
        spec, notes = _fitted_spec(self.spec, target)
        chosen, order = _choose(len(files), self.samples, self.seed)
        chosen += _spare(len(files), chosen, self.seed)

        def records(_: Dataset) -> Iterator[Record]:
            for i in chosen:
                name = str(files[i].relative_to(root)) if root in files[i].parents else str(files[i])
                yield Record(name, _PictureReader(files[i], target.name, spec), skippable=True)

        summary = self._summary(root, "pictures", len(files), order)
        summary.ignored, summary.preprocess, summary.notes = ignored, spec.to_json(), notes
        return self._dataset(records, summary, min(len(files), self.samples))

    def _file(self, path: Path) -> Dataset:
        suffix = path.suffix.lower()
        if suffix in PICTURES:
            return self.pictures(path, [path], 0)
        if suffix in ARRAYS:
            return self._rows(open_rows(path, [i.name for i in self.inputs]), str(path))
        raise DataError(
            f"{path}: data is a folder, a picture ({', '.join(PICTURES[:5])}) or an array file "
            f"({', '.join(ARRAYS)}), not {suffix or 'a file without an extension'!r}; text and sound go into a .npz "
            "of the model's inputs"
        )

    def _array_files(self, root: Path, files: Sequence[Path], ignored: int) -> Dataset:
        chosen, order = _choose(len(files), self.samples, self.seed)
        names = [i.name for i in self.inputs]

        def records(dataset: Dataset) -> Iterator[Record]:
            for i in chosen:
                source = str(files[i].relative_to(root))

                def read(path: Path = files[i]) -> tuple[Arrays, bytes]:
                    rows = open_rows(path, names)
                    _say_extra(dataset, rows)
                    arrays = rows.whole()
                    return arrays, _content(arrays)

                yield Record(source, read)

        summary = self._summary(root, "arrays", len(files), order)
        summary.ignored = ignored
        return self._dataset(records, summary, None)

    def arrays_in_memory(self, source: npt.NDArray[Any] | Mapping[str, Any]) -> Dataset:
        arrays = _named(self.inputs, source, "the array")
        return self._rows(NpyRows.of(arrays), "array")

    def _rows(self, rows: NpyRows, source: str) -> Dataset:
        """Every row of the first axis is a sample, unless the inputs have no batch axis in common."""
        single = not _has_batch_axis(self.inputs)
        if single or any(len(rows.shapes[i.name]) == len(i.shape) - 1 for i in self.inputs):

            def whole(dataset: Dataset) -> Iterator[Record]:
                _say_extra(dataset, rows)

                def read() -> tuple[Arrays, bytes]:
                    arrays = rows.whole()
                    return arrays, _content(arrays)

                yield Record(source, read)

            return self._dataset(whole, self._summary(source, "arrays", 1, "one sample"), 1)
        lengths = {i.name: rows.shapes[i.name][0] for i in self.inputs if rows.shapes[i.name]}
        if len(set(lengths.values())) != 1 or len(lengths) != len(self.inputs):
            text = ", ".join(f"{i.name} {list(rows.shapes[i.name])}" for i in self.inputs)
            raise DataError(f"{source}: the first axis counts the samples and must be as long everywhere: {text}")
        length = next(iter(lengths.values()))
        if length == 0:
            raise DataError(f"{source}: the arrays hold no sample (their first axis is 0 long)")
        chosen, order = _choose(length, self.samples, self.seed)

        def records(dataset: Dataset) -> Iterator[Record]:
            _say_extra(dataset, rows)
            for row, arrays in rows.rows(chosen):

                def read(arrays: Arrays = arrays) -> tuple[Arrays, bytes]:
                    return arrays, _content(arrays)

                yield Record(f"{source}[{row}]", read)

        summary = self._summary(source, "arrays", length, order)
        return self._dataset(records, summary, min(length, self.samples))

    def iterable(self, source: Iterable[object]) -> Dataset:
        iterator = iter(source)
        try:
            first = next(iterator)
        except StopIteration:
            raise DataError("the iterable of data is empty") from None
        if isinstance(first, str | Path):
            files = [Path(str(p)) for p in itertools.chain([first], iterator)]
            if missing := [p for p in files if not p.is_file()]:
                raise DataError(f"{missing[0]}: no such file")
            return self.pictures(Path(), files, 0)
        once = iterator is source
        started = False

        def items() -> Iterator[object]:
            nonlocal started
            if not once:
                return iter(source)
            if started:
                raise DataError("the data is an iterator and was read before; give a list or an iterable")
            started = True
            return itertools.chain([first], iterator)

        if isinstance(first, Image.Image):
            raise DataError("an iterable of pictures in memory is not read; give their files, or arrays")

        def records(dataset: Dataset) -> Iterator[Record]:
            for n, item in enumerate(items()):

                def read(item: object = item, where: str = f"item {n}") -> tuple[Arrays, bytes]:
                    arrays = _named(self.inputs, item, where, dataset)
                    return arrays, _content(arrays)

                yield Record(f"item {n}", read)

        return self._dataset(records, self._summary("iterable", "iterable", None, "as it comes"), None)

    def _summary(self, source: object, kind: str, available: int | None, order: str) -> Summary:
        notes = []
        if self.spec is not None and kind != "pictures":
            if not self.recorded:
                raise UsageError(f"{source}: preprocessing is for pictures; arrays hold what the model takes")
            notes.append("the preprocessing on record is for pictures; arrays hold what the model takes: left out")
        return Summary(str(source), kind, available, self.samples, order, self.seed, notes=notes)

    def _dataset(
        self, records: Callable[[Dataset], Iterable[Record]], summary: Summary, n_samples: int | None
    ) -> Dataset:
        return Dataset(
            self.inputs,
            records,
            summary,
            strict=self.strict,
            progress=self.progress,
            n_samples=n_samples,
            readers=self.readers,
        )


class _Quiet:
    """Ignores warnings while any thread is inside: catch_warnings alone restores another thread's filters."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._filters.__exit__(None, None, None)


_QUIET: Final = _Quiet()


@dataclass(frozen=True)
class _PictureReader:
    """Reads one picture file into one sample; whatever is wrong with the file is a DataError."""

    path: Path
    input_name: str
    spec: Preprocess

    def __call__(self) -> tuple[Arrays, bytes]:
        try:
            content = self.path.read_bytes()
        except OSError as e:
            raise DataError(f"cannot be read ({e.strerror or e})") from e
        with _QUIET:  # of odd metadata, or of a size that is large and still safe
            try:
                picture = Image.open(io.BytesIO(content))
                picture.load()
            except Image.DecompressionBombError as e:
                raise DataError(f"too large to be read safely ({_one_line(e)})") from e
            except UnidentifiedImageError as e:
                raise DataError("cannot be read as a picture (its content is of no known kind)") from e
            except Exception as e:  # of a broken file Pillow's decoders raise whatever they stumble over
                raise DataError(f"cannot be read as a picture ({_one_line(e)})") from e
            sample = picture_to_sample(picture, self.spec)
        return {self.input_name: sample}, hashlib.sha256(content).digest()


def _synthetic(inputs: tuple[ModelInput, ...], samples: int, seed: int, progress: Progress | None) -> Dataset:
    def records(_: Dataset) -> Iterator[Record]:
        for n in range(samples):

            def read(n: int = n) -> tuple[Arrays, bytes]:
                rng = np.random.default_rng([seed, n])
                arrays = {i.name: _random(i, rng) for i in inputs}
                return arrays, _content(arrays)

            yield Record(f"synthetic {n}", read)

    summary = Summary("synthetic", "synthetic", None, samples, "random", seed)
    summary.notes.append("the data is random: ranges taken from it mean nothing for the accuracy")
    return Dataset(inputs, records, summary, strict=True, progress=progress, n_samples=samples)


def _random(spec: ModelInput, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Normal reals, or integers 0 and 1 (valid for masks, indices and identifiers)."""
    batch = _fixed_batch((spec,))
    shape = [1 if n is None and axis == 0 else 64 if n is None else n for axis, n in enumerate(spec.shape)]
    if batch:
        shape[0] = 1
    if np.issubdtype(spec.dtype, np.floating):
        return rng.standard_normal(shape).astype(spec.dtype)
    return rng.integers(0, 2, shape).astype(spec.dtype)


def _has_batch_axis(inputs: Sequence[ModelInput]) -> bool:
    """Every input has a first axis, and all the fixed ones are equal."""
    return all(i.shape for i in inputs) and len({i.shape[0] for i in inputs}) == 1


def _fixed_batch(inputs: Sequence[ModelInput]) -> int | None:
    """The number of samples that the model insists on, if it is more than 1."""
    if not _has_batch_axis(inputs):
        return None
    size = inputs[0].shape[0]
    return size if size is not None and size > 1 and len(inputs[0].shape) > 1 else None


def _n_rows(inputs: Sequence[ModelInput], arrays: Arrays) -> int:
    """How many samples the arrays hold: the length of their first axis if all agree, else 1."""
    if not _has_batch_axis(inputs):
        return 1
    lengths = {arrays[i.name].shape[0] for i in inputs}
    return lengths.pop() if len(lengths) == 1 else 1


def _row(inputs: Sequence[ModelInput], arrays: Arrays, row: int) -> Arrays:
    return {i.name: arrays[i.name][row : row + 1] for i in inputs}


def _stacked(samples: Sequence[tuple[str, Arrays]], n_new: int | None = None) -> Batch:
    """One batch of single rows; the first ``n_new`` (None: all) were not given before."""
    first_source, first = samples[0]
    try:
        arrays = {name: np.concatenate([arrays[name] for _, arrays in samples]) for name in first}
    except ValueError as e:
        raise DataError(
            f"{first_source}: the model takes {len(samples)} samples at once, but theirs differ in shape "
            f"({_one_line(e)}); give a preprocessing that resizes"
        ) from e
    sources = list(dict.fromkeys(source for source, _ in samples))
    return Batch(arrays, ", ".join(sources), len(samples), [name for name, _ in samples[:n_new]])


def _choose(available: int, wanted: int, seed: int) -> tuple[list[int], str]:
    """Ascending indices of what is used, and the choice in words: all, or ``wanted`` spread evenly."""
    if available <= wanted:
        return list(range(available)), "all, sorted by name or index"
    start = random.Random(seed).random()
    even = [int((i + start) * available / wanted) for i in range(wanted)]
    return even, f"{wanted} of {available} spread evenly"


def _spare(available: int, chosen: Sequence[int], seed: int) -> list[int]:
    """The other indices, shuffled: they step in for what cannot be read."""
    rest = sorted(set(range(available)) - set(chosen))
    random.Random(seed).shuffle(rest)
    return rest


def _picture_input(inputs: Sequence[ModelInput], root: Path) -> ModelInput:
    if len(inputs) != 1:
        text = ", ".join(f"{i.name} {i.shape_text}" for i in inputs)
        raise DataError(f"{root}: pictures are for models of one input; this one takes {text}: give a .npz")
    only = inputs[0]
    if len(only.shape) != 4:
        raise DataError(
            f"{root}: pictures give 4 axes, but the model's input {only.name!r} takes {only.shape_text} "
            f"{only.dtype}: give a .npz"
        )
    return only


def _fitted_spec(given: Preprocess | None, target: ModelInput) -> tuple[Preprocess, list[str]]:
    """The specification with what it leaves to the model filled in, and what was guessed."""
    layout = _layout(target)
    notes = []
    spec = given
    if spec is None:
        spec, why = _guess(target, layout)
        notes.append(why)
    if layout is None:
        layout = spec.layout
    if given is not None and given.layout != layout and given.layout != "nchw":
        raise DataError(f"the preprocessing's layout is {given.layout}, but {target.name!r} takes {target.shape_text}")
    axis = 1 if layout == "nchw" else 3
    channels = target.shape[axis]
    if channels not in (None, spec.channels):
        raise DataError(
            f"input {target.name!r} takes {target.shape_text}, {channels} channels; the preprocessing "
            f"{spec.name!r} gives {spec.channels} ({spec.color})"
        )
    sides = target.shape[2:] if layout == "nchw" else target.shape[1:3]
    spec = replace(spec, layout=layout, dtype=str(target.dtype))
    height, width = sides
    if spec.size is None and height is not None and (width is not None or spec.resize == "height"):
        spec = replace(spec, size=(height, width))
    if spec.size is None and spec.resize not in ("none", "longest"):
        raise DataError(
            f"input {target.name!r} takes {target.shape_text}: the model leaves the size open; give it, for "
            f'example --preprocess FILE.json with {{"preset": "{spec.name}", "size": [224, 224]}}'
        )
    if spec.size is not None and spec.resize not in ("none", "longest"):
        for mine, theirs in zip(spec.size, sides, strict=True):
            if mine is not None and theirs is not None and mine != theirs:
                raise DataError(
                    f"the preprocessing gives pictures of {spec.size[0]} x {spec.size[1]}, but input "
                    f"{target.name!r} takes {target.shape_text}"
                )
    return spec, notes


def _layout(target: ModelInput) -> str | None:
    """Where the channels are; None if the shape does not tell."""
    first, last = target.shape[1] in (1, 3), target.shape[3] in (1, 3)
    if first != last:
        return "nchw" if first else "nhwc"
    if first and last:
        raise DataError(
            f"input {target.name!r} takes {target.shape_text}: channels may be the second axis or the last; give "
            "arrays in a .npz"
        )
    if target.shape[1] is None and target.shape[3] is None:
        return None
    axis = 1 if target.shape[3] is None else 3
    if target.shape[axis] is not None and target.shape[1] is not None and target.shape[3] is not None:
        raise DataError(
            f"input {target.name!r} takes {target.shape_text}: neither its second axis nor its last is the 1 or 3 "
            "channels of a picture; give arrays in a .npz"
        )
    return None


def _guess(target: ModelInput, layout: str | None) -> tuple[Preprocess, str]:
    """A preset and the sentence that says so."""
    advice = "if the model was trained otherwise, give --preprocess: wrong values cost accuracy unnoticed"
    if layout is None:
        raise DataError(
            f"input {target.name!r} takes {target.shape_text}: where the channels are cannot be told; give "
            "--preprocess with a layout and a size"
        )
    channels = target.shape[1 if layout == "nchw" else 3]
    if np.issubdtype(target.dtype, np.integer):
        name, why = ("gray" if channels == 1 else "raw"), f"the input is {target.dtype}: pixels 0 to 255"
        spec = replace(load_preprocess(name), scale=1.0)
    elif channels == 1:
        spec, why = load_preprocess("gray"), "one channel: gray, values 0 to 1"
    elif layout == "nchw":
        spec, why = load_preprocess("imagenet"), "three channels first: the usual of torch's ImageNet models"
    else:
        spec, why = load_preprocess("tf"), "three channels last: the usual -1 to 1 of Keras models"
    return spec, f"preprocessing guessed to be {spec.name!r} ({why}); {advice}"


def _named(inputs: Sequence[ModelInput], item: object, where: str, dataset: Dataset | None = None) -> Arrays:
    """Arrays by input name, of a dict, an array or a tuple in the order of the inputs."""
    names = [i.name for i in inputs]
    if isinstance(item, Mapping):
        if missing := [n for n in names if n not in item]:
            raise DataError(
                f"{where}: no data for input {missing[0]!r}; it has {', '.join(map(str, item)) or 'nothing'}"
            )
        if dataset and (extra := sorted(str(k) for k in item if k not in names)):
            dataset.note(f"not an input of the model, ignored: {', '.join(extra)}")
        return {n: _array(item[n], f"{where}: input {n!r}") for n in names}
    values = list(item) if isinstance(item, tuple | list) else [item]
    if len(values) < len(names):
        raise DataError(f"{where}: {len(values)} arrays, but the model takes {len(names)}: {', '.join(names)}")
    if dataset and len(values) > len(names):
        dataset.note(f"tuples of {len(values)}: the first {len(names)} are the inputs, the rest is ignored")
    return {n: _array(v, f"{where}: input {n!r}") for n, v in zip(names, values, strict=False)}


def _array(value: Any, where: str) -> npt.NDArray[Any]:  # Any: also another framework's tensor
    if hasattr(value, "detach"):  # torch.Tensor, without importing torch
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise DataError(f"{where}: {type(value).__name__} cannot be made an array ({_one_line(e)})") from e
    if array.dtype == object:
        raise DataError(f"{where}: {type(value).__name__} cannot be made an array of numbers")
    return array


def _say_extra(dataset: Dataset, rows: NpyRows) -> None:
    if rows.extra:
        dataset.note(f"not an input of the model, ignored: {', '.join(rows.extra)}")


def _content(arrays: Arrays) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {a.dtype.str} {a.shape}\n".encode())
        digest.update(a.tobytes())
    return digest.digest()


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def _one_line(error: BaseException) -> str:
    """The message; without addresses in memory, which would make each run's table another."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", re.sub(r"\s+", " ", str(error))).strip() or type(error).__name__
