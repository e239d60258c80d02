# SPDX-License-Identifier: Apache-2.0
"""From a picture file to the array a model takes: an explicit specification, and the table of presets."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from wia_quant.errors import DataError, UsageError

#: A longer side is a mistake, and would fill the memory.
MAX_SIDE: Final = 1 << 15
#: Scales, means and deviations beyond it are a mistake.
MAX_NUMBER: Final = 1e30

COLORS: Final = MappingProxyType({"rgb": 3, "bgr": 3, "gray": 1})
RESIZES: Final = ("none", "exact", "shortest", "letterbox", "height", "longest")
LAYOUTS: Final = ("nchw", "nhwc")
DTYPES: Final = ("float32", "float16", "float64", "uint8", "int8", "int32", "int64")
BACKGROUNDS: Final = MappingProxyType({"white": 255, "black": 0})
INTERPOLATIONS: Final = MappingProxyType(
    {
        "nearest": Image.Resampling.NEAREST,
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "lanczos": Image.Resampling.LANCZOS,
        "area": Image.Resampling.BOX,
    }
)

#: The fields of a specification that take one of a few words.
_CHOICES: Final = MappingProxyType(
    {
        "color": tuple(COLORS),
        "resize": RESIZES,
        "interpolation": tuple(INTERPOLATIONS),
        "layout": LAYOUTS,
        "dtype": DTYPES,
        "background": tuple(BACKGROUNDS),
    }
)


def _is_side(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIDE


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= MAX_NUMBER  # an integer of JSON may be beyond any float; NaN fails too


def _require(ok: bool, field: str, value: object, what: str) -> None:
    if not ok:
        raise UsageError(f"{field} is {value!r}; it must be {what}")


@dataclass(frozen=True)
class Preprocess:
    """How a picture becomes one sample.

    In this order: decode, turn upright, flatten, resize, crop, pad, ``x = (pixel * scale - mean) / std`` with
    pixels from 0 to 255, layout.

    Attributes:
        name: what to call it, for reports; the preset's name, or any.
        color: "rgb", "bgr" or "gray"; the order of the channels.
        resize: "none" keeps the size; "exact" stretches to ``size``; "shortest" brings the shortest side to
            that of ``size`` / ``crop`` and cuts ``size`` out of the middle; "letterbox" fits it into ``size``
            and pads both sides; "height" brings it to the height of ``size``, at most its width, and pads on
            the right; "longest" shrinks it until no side exceeds the larger of ``size``, and rounds both
            sides to a multiple of ``multiple``.
        size: [height, width]; None takes the model's. For "longest" None keeps the size; for "height" the
            width may be None, and is then whatever the picture's shape gives.
        crop: for "shortest": the share of the shortest side that is kept, above 0 and at most 1.
        multiple: for "longest": both sides are multiples of it.
        interpolation: "nearest", "bilinear", "bicubic", "lanczos" or "area".
        pad: the pixel value that padding is filled with, 0 to 255.
        scale: the factor of the pixels, before ``mean`` and ``std``.
        mean: one for all or one per channel, in the order of ``color``.
        std: one for all or one per channel, in the order of ``color``; not 0.
        layout: "nchw" or "nhwc".
        dtype: the type of the result, as numpy calls it.
        background: "white" or "black": what shows through where a picture is transparent.
    """

    name: str = "custom"
    color: str = "rgb"
    resize: str = "exact"
    size: tuple[int, int | None] | None = None
    crop: float = 1.0
    multiple: int = 1
    interpolation: str = "bilinear"
    pad: int = 0
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "nchw"
    dtype: str = "float32"
    background: str = "white"

    def __post_init__(self) -> None:
        for key, allowed in _CHOICES.items():
            _require(getattr(self, key) in allowed, key, getattr(self, key), "one of " + ", ".join(allowed))
        if self.size is not None:
            free = self.resize == "height" and self.size[1:] == (None,)
            sides = self.size[:1] if free else self.size
            ok = len(self.size) == 2 and all(_is_side(n) for n in sides)
            _require(ok, "size", self.size, f"[height, width], both 1 to {MAX_SIDE}, or null")
        _require(_is_number(self.crop) and 0.0 < self.crop <= 1.0, "crop", self.crop, "above 0 and at most 1")
        _require(_is_int(self.multiple) and self.multiple > 0, "multiple", self.multiple, "a positive integer")
        _require(_is_int(self.pad) and 0 <= self.pad <= 255, "pad", self.pad, "an integer from 0 to 255")
        _require(_is_number(self.scale) and self.scale != 0.0, "scale", self.scale, "a number other than 0")
        for key in ("mean", "std"):
            values = getattr(self, key)
            ok = len(values) in (1, self.channels) and all(_is_number(v) for v in values)
            _require(ok, key, values, f"1 or {self.channels} numbers ({self.color!r} has {self.channels} channels)")
        _require(all(v != 0.0 for v in self.std), "std", self.std, "without zeros")

    @property
    def channels(self) -> int:
        """1 for gray, else 3."""
        return COLORS[self.color]

    def to_json(self) -> dict[str, Any]:
        """As JSON values, every field; ``from_json`` gives it back."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, spec: Mapping[str, Any], *, where: str = "preprocessing") -> Preprocess:
        """From JSON values: a "preset" to start from, if given, and fields.

        Raises:
            UsageError: an unknown field or preset, or a value that is none of the field's.
        """
        fields = dict(spec)
        base = cls()
        if "preset" in fields:
            base = preset(fields.pop("preset"))
        known = [f.name for f in dataclasses.fields(cls)]
        if unknown := sorted(set(fields) - set(known)):
            raise UsageError(f"{where}: unknown field {unknown[0]!r}; the fields are preset, {', '.join(known)}")
        for key in ("mean", "std", "size"):
            value = fields.get(key)
            if isinstance(value, list):
                fields[key] = tuple(value)
            elif _is_number(value) and key != "size":
                fields[key] = (value,)
        try:
            return dataclasses.replace(base, **fields)
        except UsageError as e:
            raise UsageError(f"{where}: {e}") from e
        except TypeError as e:
            raise UsageError(f"{where}: a field has a value of the wrong kind ({e})") from e


#: Name -> specification; sizes and layout come from the model.
PRESETS: Final[Mapping[str, Preprocess]] = MappingProxyType(
    {
        p.name: p
        for p in (
            Preprocess(
                "imagenet",
                resize="shortest",
                crop=0.875,
                scale=1 / 255,
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
            ),
            Preprocess("tf", resize="shortest", crop=0.875, scale=1 / 127.5, mean=(1.0,)),
            Preprocess("caffe", color="bgr", resize="shortest", crop=0.875, mean=(103.939, 116.779, 123.68)),
            Preprocess("lite0", resize="shortest", crop=0.875, interpolation="bicubic", mean=(127.0,), std=(128.0,)),
            Preprocess("raw"),
            Preprocess("zero_one", scale=1 / 255),
            Preprocess("gray", color="gray", scale=1 / 255),
            Preprocess("yolo", resize="letterbox", pad=114, scale=1 / 255),
            Preprocess(
                "clip",
                resize="shortest",
                interpolation="bicubic",
                scale=1 / 255,
                mean=(0.48145466, 0.4578275, 0.40821073),
                std=(0.26862954, 0.26130258, 0.27577711),
            ),
            Preprocess("ppocr_rec", color="bgr", resize="height", scale=1 / 255, mean=(0.5,), std=(0.5,), pad=127),
            Preprocess(
                "ppocr_det",
                color="bgr",
                resize="longest",
                size=(960, 960),
                multiple=32,
                scale=1 / 255,
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
            ),
            Preprocess("ppocr_cls", color="bgr", resize="height", scale=1 / 255, mean=(0.5,), std=(0.5,), pad=127),
        )
    }
)


def preset(name: object) -> Preprocess:
    """The preset of that name; UsageError listing all of them if there is none."""
    if not isinstance(name, str) or name not in PRESETS:
        raise UsageError(f"unknown preprocessing {name!r}; a .json file or one of {', '.join(PRESETS)}")
    return PRESETS[name]


class Recorded(dict[str, Any]):  # Any: JSON
    """A specification that a model or an evaluation records: the one to take for pictures, of no use to arrays."""


def load_preprocess(source: str | Path | Mapping[str, Any] | Preprocess) -> Preprocess:
    """The specification that ``source`` means: a preset's name, a .json file, JSON values, or itself.

    Raises:
        UsageError: no such preset or file, or a file that is not a specification.
    """
    if isinstance(source, Preprocess):
        return source
    if isinstance(source, Mapping):
        return Preprocess.from_json(source)
    if Path(source).suffix != ".json":
        return preset(str(source))
    try:
        spec = json.loads(Path(source).read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"{source}: cannot be read ({e.strerror})") from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{source}: not JSON ({e})") from e
    if not isinstance(spec, dict):
        raise UsageError(f"{source}: a specification is a JSON object, not {type(spec).__name__}")
    return Preprocess.from_json(spec, where=str(source))


def picture_to_sample(picture: Image.Image, spec: Preprocess) -> npt.NDArray[Any]:
    """One sample [1, C, H, W] or [1, H, W, C] of the picture.

    Raises:
        DataError: the specification needs a size and has none.
        OSError, ValueError, SyntaxError: the file is broken (from Pillow).
    """
    pixels = _resized(_flattened(picture, spec), spec)
    x = np.asarray(pixels)
    if x.ndim == 2:
        x = x[:, :, None]
    if spec.color == "bgr":
        x = x[:, :, ::-1]
    values = _values(spec)
    if spec.layout == "nchw":
        return np.stack([np.take(values[:, c % values.shape[1]], x[:, :, c]) for c in range(x.shape[2])])[None]
    return np.ascontiguousarray(values[x, np.arange(x.shape[2]) % values.shape[1]][None])


def _values(spec: Preprocess) -> npt.NDArray[Any]:
    """What each of a pixel's 256 levels becomes, [256, 1 or channels]."""
    # float64 until the end: the result is the formula's, rounded once.
    x = (np.arange(256.0)[:, None] * spec.scale - np.array(spec.mean)) / np.array(spec.std)
    if np.issubdtype(np.dtype(spec.dtype), np.integer):
        info = np.iinfo(spec.dtype)
        x = np.clip(np.rint(x), info.min, info.max)
    values: npt.NDArray[Any] = x.astype(spec.dtype)
    return values


def _flattened(picture: Image.Image, spec: Preprocess) -> Image.Image:
    """Upright, opaque, 8 bits a channel, RGB or L."""
    picture = ImageOps.exif_transpose(picture) or picture
    mode = "L" if spec.color == "gray" else "RGB"
    if picture.mode.startswith("I"):  # 16 bits a pixel, which convert() would clip instead of scaling
        levels = np.asarray(picture).astype(np.int64)
        picture = Image.fromarray((np.clip(levels, 0, 65535) >> 8).astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        behind = Image.new("RGBA", rgba.size, (BACKGROUNDS[spec.background],) * 3 + (255,))
        picture = Image.alpha_composite(behind, rgba)
    return picture.convert(mode)


def _resized(picture: Image.Image, spec: Preprocess) -> Image.Image:
    if spec.resize == "none":
        return picture
    if spec.resize == "longest":
        return _scaled(picture, _longest(picture, spec), spec)
    if spec.size is None:
        raise DataError(
            f'preprocessing {spec.name!r} resizes ("{spec.resize}") but neither it nor the model says to what '
            'size; give "size": [height, width]'
        )
    height, width = spec.size
    if width is None:
        width = max(math.ceil(picture.width * height / picture.height), 1)
    if spec.resize == "exact":
        return _scaled(picture, (width, height), spec)
    if spec.resize == "shortest":
        # timm and torchvision: the size before the crop is rounded down; 224 / 0.875 is 256.
        factor = max(math.floor(width / spec.crop) / picture.width, math.floor(height / spec.crop) / picture.height)
        around = (
            max(round(picture.width * factor), width),
            max(round(picture.height * factor), height),
        )
        left, top = (around[0] - width) // 2, (around[1] - height) // 2
        return _scaled(picture, around, spec).crop((left, top, left + width, top + height))
    if spec.resize == "letterbox":
        factor = min(width / picture.width, height / picture.height)
        inside = (max(round(picture.width * factor), 1), max(round(picture.height * factor), 1))
        corner = ((width - inside[0]) // 2, (height - inside[1]) // 2)
    else:
        inside = (min(max(math.ceil(picture.width * height / picture.height), 1), width), height)
        corner = (0, 0)
    padded = Image.new(picture.mode, (width, height), (spec.pad,) * len(picture.getbands()))
    padded.paste(_scaled(picture, inside, spec), corner)
    return padded


def _longest(picture: Image.Image, spec: Preprocess) -> tuple[int, int]:
    limit = max(side for side in spec.size or picture.size if side is not None)
    factor = min(1.0, limit / max(picture.size))
    width, height = (max(round(side * factor / spec.multiple), 1) * spec.multiple for side in picture.size)
    return width, height


def _scaled(picture: Image.Image, size: tuple[int, int], spec: Preprocess) -> Image.Image:
    return picture if picture.size == size else picture.resize(size, INTERPOLATIONS[spec.interpolation])
