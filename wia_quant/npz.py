# SPDX-License-Identifier: Apache-2.0
"""Rows of .npy and .npz files, read one after the other: arrays larger than the memory are no trouble."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]

#: Bytes read at a time.
CHUNK: Final = 1 << 20

#: What zipfile, zlib and numpy raise of files that are broken, encrypted or compressed in a way they do not know.
BROKEN: Final = (
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    lzma.LZMAError,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class NpyRows:
    """Named arrays, in a file or in memory.

    Attributes:
        shapes: of each array.
        extra: names in the file that were not asked for.
        openers: for each array, what gives a stream at its first byte with its shape and type; or the array.
        source: for messages.
    """

    shapes: Mapping[str, tuple[int, ...]]
    extra: tuple[str, ...]
    openers: Mapping[str, Callable[[], IO[bytes]] | npt.NDArray[Any]]
    source: str

    @staticmethod
    def of(arrays: Arrays) -> NpyRows:
        """Arrays in memory."""
        return NpyRows({n: a.shape for n, a in arrays.items()}, (), dict(arrays), "array")

    def whole(self) -> Arrays:
        """All of every array."""
        with ExitStack() as stack:
            return {name: self._stream(name, stack).whole() for name in self.openers}

    def rows(self, indices: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        """(index, arrays [1, ...]) for the ascending ``indices`` of the first axis."""
        with ExitStack() as stack:
            streams = {name: self._stream(name, stack) for name in self.openers}
            for index in indices:
                yield index, {name: stream.row(index) for name, stream in streams.items()}

    def _stream(self, name: str, stack: ExitStack) -> _InMemory | _Stream:
        opener = self.openers[name]
        if isinstance(opener, np.ndarray):
            return _InMemory(opener)
        return _Stream(stack.enter_context(opener()), f"{self.source}: array {name!r}")


def open_rows(path: Path, names: Sequence[str]) -> NpyRows:
    """The arrays ``names`` of a .npz, or the only array of a .npy for the only name.

    Arrays without names of their own (arr_0, arr_1 ...) are taken in the order of ``names``.

    Raises:
        DataError: the file is broken, lacks a name, or holds Python objects.
    """
    if path.suffix.lower() == ".npy":
        if len(names) != 1:
            raise DataError(f"{path}: one array, but the model takes {len(names)}: {', '.join(names)}")
        members: dict[str, Callable[[], IO[bytes]]] = {names[0]: lambda: path.open("rb")}
        extra: tuple[str, ...] = ()
    else:
        inside = _members(path)
        unnamed = [f"arr_{i}" for i in range(len(inside))]
        if sorted(inside) == sorted(unnamed) and not set(names) & set(inside):
            renamed = dict(zip(names, unnamed, strict=False))
        else:
            renamed = {n: n for n in names}
        if missing := [n for n in names if renamed.get(n) not in inside]:
            raise DataError(
                f"{path}: no array for input {missing[0]!r}; it has {', '.join(sorted(inside)) or 'nothing'}"
            )
        extra = tuple(sorted(set(inside) - set(renamed.values())))
        members = {n: _member(path, inside[renamed[n]]) for n in names}
    shapes = {}
    for name, opener in members.items():
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(opener())
            except BROKEN as e:
                raise DataError(f"{path}: cannot be read ({e})") from e
            shapes[name] = _Stream(stream, f"{path}: array {name!r}").shape
    return NpyRows(shapes, extra, members, str(path))


class _InMemory:
    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    def whole(self) -> npt.NDArray[Any]:
        return self._array

    def row(self, index: int) -> npt.NDArray[Any]:
        return self._array[index : index + 1]


class _Stream:
    """One array in .npy form, read forwards only."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where, self._next = stream, where, 0
        try:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, self._fortran, self._dtype = read(stream)
        except BROKEN as e:
            raise DataError(f"{where}: not a numpy array ({e})") from e
        if any(n < 0 for n in self.shape):
            raise DataError(f"{where}: not a numpy array (its shape is {self.shape})")
        if self._dtype.hasobject:
            raise DataError(f"{where}: holds Python objects, which are not read; save numbers")
        if self._fortran and len(self.shape) < 2:
            self._fortran = False

    def whole(self) -> npt.NDArray[Any]:
        flat = self._read(math.prod(self.shape))
        return flat.reshape(self.shape, order="F" if self._fortran else "C")

    def row(self, index: int) -> npt.NDArray[Any]:
        if self._fortran:
            raise DataError(f"{self._where}: is stored column by column; save np.ascontiguousarray of it")
        n_values = math.prod(self.shape[1:])
        skip = (index - self._next) * n_values * self._dtype.itemsize
        while skip > 0:
            skip -= len(self._bytes(min(skip, CHUNK)))
        self._next = index + 1
        return self._read(n_values).reshape(1, *self.shape[1:])

    def _read(self, n_values: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._bytes(n_values * self._dtype.itemsize), dtype=self._dtype).copy()

    def _bytes(self, n_bytes: int) -> bytes:
        # Piece by piece: a header may promise more than the file, or the memory, has.
        got = bytearray()
        while len(got) < n_bytes:
            try:
                piece = self._stream.read(min(n_bytes - len(got), CHUNK))
            except BROKEN as e:
                raise DataError(f"{self._where}: broken ({e})") from e
            if not piece:
                raise DataError(f"{self._where}: the file ends too early")
            got += piece
        return bytes(got)


def _members(path: Path) -> dict[str, str]:
    """Array name -> name in the archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {n.removesuffix(".npy"): n for n in archive.namelist() if n.endswith(".npy")}
    except BROKEN as e:
        raise DataError(f"{path}: not a .npz file ({e})") from e


def _member(path: Path, name: str) -> Callable[[], IO[bytes]]:
    def opener() -> IO[bytes]:
        # ZipExtFile keeps the archive's file open for itself.
        return zipfile.ZipFile(path).open(name)

    return opener
