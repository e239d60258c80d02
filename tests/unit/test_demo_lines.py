# SPDX-License-Identifier: Apache-2.0
"""The demo's pictures: as said, the same for the same seed, and the text inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from wia_quant.demo.lines import SIZE, draw_lines


def test_the_same_seed_draws_the_same_pictures(tmp_path: Path) -> None:
    first, second = draw_lines(tmp_path / "a", 5, seed=3), draw_lines(tmp_path / "b", 5, seed=3)
    assert first == second
    for name in first:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_no_two_pictures_say_the_same(tmp_path: Path) -> None:
    assert len(set(draw_lines(tmp_path / "a", 64, seed=0).values())) == 64


def test_the_text_is_inside_the_picture(tmp_path: Path) -> None:
    for name in draw_lines(tmp_path / "a", 64, seed=1):
        pixels = np.asarray(Image.open(tmp_path / "a" / name))
        assert pixels.shape == (SIZE[1], SIZE[0], 3)
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert (border == pixels[0, 0]).all()
        assert (pixels != pixels[0, 0]).any()
