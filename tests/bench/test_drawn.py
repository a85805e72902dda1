"""The figures of docs/images.md on what is drawn can be had again: of two small pictures."""

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from imagefleet.imaging.sizes import Size
from tests.bench.drawn import OURS, SHARPS, THE_SMALLER, ours, recipe, ruled, summed, within
from tests.support.images import grain, quadrants, saved


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


def test_a_photo_is_made_once_more_with_no_more_bytes(tmp_path: Path) -> None:
    picture = tmp_path / "noise.png"
    picture.write_bytes(saved(grain(400, 300), "PNG"))
    before = ours(picture)

    budgets = {("WebP", 200): len(before["WebP", 200]) - 99}
    made = ours(picture, within(budgets, Size(400, 300)))

    assert budgets["WebP", 200] // 2 < len(made["WebP", 200]) <= budgets["WebP", 200]
    assert [each for each in made if made[each] != before[each]] == [("WebP", 200)]


def test_rows_are_summed_a_kind_format_and_rule() -> None:
    row: dict[str, str | float] = {
        "kind": "drawn", "format": "WebP", "rule": "exact", "scaled": "scaled", "ssim": 1,
        "sharp_ssim": 0.5, "outgrew": 1.0,
    }  # fmt: skip
    pairs = [(50.0, 100.0), (300.0, 200.0)]

    (line,) = summed([row | {"bytes": us, "sharp_bytes": they} for us, they in pairs])

    assert (2, 0.35, 0.3, 1, 1.5, 2, 1, 0.5, 0) == tuple(line.values())[4:]


def test_a_variant_is_compared_with_what_obeys_the_same_rule() -> None:
    flat, loud = quadrants(400, 300), quadrants(400, 300).resize((201, 151))
    whole = saved(loud, "JPEG", subsampling="4:4:4")

    assert ruled("PNG", saved(flat, "PNG"), drawn=True, icon=False) == ("exact", ["PNG"])
    for icon, of in ((True, loud), (False, flat)):
        exact = saved(of, "WEBP", lossless=True)
        assert ruled("WebP", exact, drawn=True, icon=icon) == ("exact", ["WebP, lossless"])
    lossy = saved(grain(99, 99), "WEBP")
    assert ruled("WebP", lossy, drawn=True, icon=False) == ("the smaller", THE_SMALLER)
    assert ruled("WebP", lossy, drawn=False, icon=False) == ("a photo", ["WebP"])
    for content, rule, rival in (
        (whole, "colours show", "JPEG, whole colours"),
        (saved(loud, "JPEG", subsampling="4:2:0"), "nothing shows", "JPEG"),
    ):
        assert ruled("JPEG", content, drawn=True, icon=False) == (rule, [rival])
