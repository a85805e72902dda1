"""The figures of docs/images.md on what is drawn can be had again: of two small pictures."""

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.bench.drawn import OURS, SHARPS, ours, recipe, summed
from tests.support.images import quadrants, saved


def test_what_is_taken_for_drawn_is_told_of_any_pictures(tmp_path: Path) -> None:
    photos, drawn, told = tmp_path / "photos", tmp_path / "drawn", tmp_path / "told.json"
    for folder in (photos, drawn):
        folder.mkdir()
    (photos / "noise.png").write_bytes(saved(Image.effect_noise((400, 300), 9), "PNG"))
    (drawn / "quadrants.png").write_bytes(saved(quadrants(400, 300), "PNG"))

    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench.drawn", "--no-peers"),
            *("--photos", photos, "--drawn", drawn, "--json", told),
        ],
        check=True,
        capture_output=True,
        text=True,
    )

    rows = json.loads(told.read_text())["recognised"]
    assert [("photos", 0), ("drawn", 1)] == [(row["kind"], row["drawn"]) for row in rows]
    assert "photos: 0 of 1 are taken for drawn" in done.stdout


def test_every_size_is_compared_in_every_format(tmp_path: Path) -> None:
    picture = tmp_path / "quadrants.png"
    picture.write_bytes(saved(quadrants(1300, 900), "PNG"))

    made = ours(picture)

    assert {1300, 1280, 640, 200} == {width for _, width in made}
    assert {*OURS} == {name for name, _ in made}
    assert len(made) == 4 * len(OURS)
    assert {*OURS} < {*SHARPS}
    assert {spec.quality for spec in recipe().variants} == {80}


def test_rows_are_summed_a_kind_and_format() -> None:
    row: dict[str, str | float] = {"kind": "drawn", "format": "WebP", "picture": "a", "width": 1}
    pairs = [(50.0, 100.0), (300.0, 200.0)]

    (line,) = summed([row | {"bytes": us, "sharp_bytes": they} for us, they in pairs])

    assert (2, 0.35, 0.3, 1, 1.5) == tuple(line.values())[2:]
