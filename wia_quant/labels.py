# SPDX-License-Identifier: Apache-2.0
"""What the right answer for each sample is: a folder per class, a CSV or JSON file, or COCO annotations."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from wia_quant.errors import DataError

#: What a label may be a file of.
_FILES = (".png", ".npy")


class Labels:
    """Sample name -> target; a file is found by its path below the data folder, else by its bare name."""

    def __init__(self, targets: Mapping[str, object], source: str) -> None:
        self._targets = {_key(name): target for name, target in targets.items()}
        bare: dict[str, list[object]] = {}
        for name, target in self._targets.items():
            bare.setdefault(PurePath(name).name, []).append(target)
        self._by_bare_name = {name: found[0] for name, found in bare.items() if len(found) == 1}
        self.source = source

    @property
    def digest(self) -> str:
        """sha256 over every name and target."""
        found = sorted((name, repr(target)) for name, target in self._targets.items())
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._targets)

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._targets or PurePath(_key(name)).name in self._by_bare_name

    def __getitem__(self, name: str) -> object:
        """The target of a sample.

        Raises:
            DataError: the sample has no label.
        """
        key = _key(name)
        if key in self._targets:
            return self._targets[key]
        bare = PurePath(key).name
        if bare in self._by_bare_name:
            return self._by_bare_name[bare]
        raise DataError(f"sample '{name}' has no label in {self.source}")


def load_labels(path: str | Path) -> Labels:
    """Labels of a .csv (file,label), a .json ({file: label}, or COCO's annotations), as ``--labels`` takes them.

    A label that reads as a whole number is a class index; anything else stays text.

    Raises:
        DataError: the file cannot be read or has another form; names it.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read labels {path}: {error}") from error
    if path.suffix.lower() == ".json":
        return Labels(_with_files(_from_json(text, path), path.parent), str(path))
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        return Labels(_with_files(_from_csv(text, path), path.parent), str(path))
    raise DataError(f"labels {path}: use .csv (file,label) or .json ({{file: label}} or COCO annotations)")


def _with_files(targets: Mapping[str, object], folder: Path) -> dict[str, object]:
    """A label that names a file beside the labels (a mask) becomes its path."""

    def resolved(target: object) -> object:
        if isinstance(target, str) and target.lower().endswith(_FILES) and (folder / target).is_file():
            return folder / target
        return target

    return {name: resolved(target) for name, target in targets.items()}


def labels_of_folders(root: str | Path) -> Labels | None:
    """Class indices from a folder per class, in the order of the sorted names; None without class folders."""
    root = Path(root)
    folders = (
        sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []
    )
    if len(folders) < 2:
        return None
    targets: dict[str, object] = {}
    for index, name in enumerate(folders):
        for file in (root / name).rglob("*"):
            if file.is_file():
                targets[str(file.relative_to(root))] = index
    return Labels(targets, f"the folders of {root}")


def _from_csv(text: str, path: Path) -> dict[str, object]:
    targets: dict[str, object] = {}
    dialect = "excel-tab" if "\t" in text.split("\n", 1)[0] else "excel"
    for line, row in enumerate(csv.reader(text.splitlines(), dialect), 1):
        if not row or (line == 1 and [c.strip().lower() for c in row[:2]] in _HEADS):
            continue
        if len(row) < 2:
            raise DataError(f"labels {path}, line {line}: two columns expected, file and label")
        targets[row[0].strip()] = _number(row[1].strip())
    if not targets:
        raise DataError(f"labels {path} has no line of the form file,label")
    return targets


_HEADS = [[a, b] for a in ("file", "filename", "image", "name", "path") for b in ("label", "class", "text", "target")]


def _from_json(text: str, path: Path) -> dict[str, object]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"labels {path} is not JSON: {error}") from error
    if isinstance(found, dict) and isinstance(found.get("images"), list) and isinstance(found.get("annotations"), list):
        return _from_coco(found, path)
    if not isinstance(found, dict) or not found:
        raise DataError(f"labels {path}: an object {{file: label}} expected")
    return found


def _from_coco(found: Mapping[str, Any], path: Path) -> dict[str, object]:
    try:
        names = {image["id"]: image["file_name"] for image in found["images"]}
        boxes: dict[str, list[object]] = {name: [] for name in names.values()}
        for box in found["annotations"]:
            boxes[names[box["image_id"]]].append(box)
    except (KeyError, TypeError) as error:
        raise DataError(f"labels {path}: not COCO annotations: {error} is missing") from error
    return dict(boxes)


def _number(text: str) -> object:
    """A class index as a number; what would not be written so (007, +1) stays text."""
    return int(text) if text.isdecimal() and str(int(text)) == text else text


def _key(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")
