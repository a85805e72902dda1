"""The comparison itself: it says what is alike, and it can fail."""

from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from imagefleet.jobs.images import ImageFormat
from tests.corpus import __main__ as corpus
from tests.corpus.browser import Shown
from tests.corpus.drawn import DRAWN, drawn, drawn_by_pillow
from tests.corpus.fetching import Found, chosen, listed, pictures_in
from tests.corpus.judging import (
    ALIKE,
    as_published,
    difference,
    findings,
    share_alike,
    table,
)
from tests.support.images import grain, quadrants, saved, translucent


def test_drawn_files_go_through_a_child_and_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert corpus.main(["--smoke"]) == 0

    said = capsys.readouterr().out
    assert "| JPEG | 3 | 3 | none | 0 |" in said
    assert "| PNG | 4 | 3 | corrupt 1 | 0 |" in said
    assert said.count("| 0 of 3 |\n") == 1  # PNG that are drawn, and none became larger
    assert said.count("| 0 of 1 |\n") == 1  # and WebP
    assert "unlike" not in said


async def test_what_is_judged_was_decoded_and_what_its_encoder_loses_stands_beside_it(
    tmp_path: Path,
) -> None:
    noise = tmp_path / "noise.jpeg"
    noise.write_bytes(saved(grain(400, 300)))
    found = [Found(ImageFormat.JPEG, "drawn", noise.name, noise)]

    (verdict,) = await corpus.all_judged(found, drawn_by_pillow, 600)

    assert verdict.difference == 0
    assert (verdict.encoded or 0) > ALIKE
    assert share_alike([verdict]) == 1
    assert share_alike([as_published(verdict)]) == 0
    assert not any(corpus.failures([verdict]))
    (line,) = list(table([verdict]))[2:]
    assert line.endswith(f"| 0.00 | 0.0 | 100.0% | {verdict.encoded:.2f} | 0.0% | 0 |  |")


async def test_a_picture_that_is_shown_in_another_way_is_told(tmp_path: Path) -> None:
    def turned(content: bytes) -> Shown | None:
        shown = drawn_by_pillow(content)
        if shown is None:
            return Shown(9, 9, Image.new("RGBA", (9, 9)))
        return Shown(shown.height, shown.width, shown.picture.transpose(Image.Transpose.ROTATE_90))

    verdicts = await corpus.all_judged(drawn(tmp_path), turned, 600)

    jpegs = [each for each in verdicts if each.found.format is ImageFormat.JPEG]
    assert share_alike(jpegs) == 0
    assert {each.same_size for each in jpegs} == {False}
    assert any("goal" in line for line in corpus.failures(verdicts))
    (line,) = (line for line in table(verdicts) if line.startswith("| PNG"))
    assert line.split(" | ")[-2] == "1"  # shown, and not made


async def test_what_is_drawn_may_not_become_larger(tmp_path: Path) -> None:
    found = [each for each in drawn(tmp_path) if each.name == "optimised.png"]

    (verdict,) = await corpus.all_judged(found, drawn_by_pillow, 600)
    assert verdict.anew_bytes == verdict.source_bytes
    assert not any(corpus.failures([verdict]))

    spoilt = replace(verdict, source_bytes=verdict.source_bytes - 1)
    (failure,) = corpus.failures([spoilt])
    assert failure.endswith("larger than it was")
    assert any(line.startswith("larger anew: ") for line in findings([spoilt], 1))
    (line,) = list(table([spoilt]))[2:]
    assert line.endswith("| 1 of 1 |")


def test_no_time_left_is_no_success(tmp_path: Path) -> None:
    assert corpus.main(["--smoke", "--seconds", "-1"]) == 1


def test_a_difference_is_of_what_is_seen() -> None:
    """What is transparent has no colour, and one that is not there differs on white or on black."""
    assert difference(quadrants(), quadrants()) == 0
    hidden = translucent()
    hidden.paste((0, 255, 0, 0), (32, 0, 64, 48))
    assert difference(translucent(), hidden) == 0
    assert difference(translucent(), translucent().convert("RGB").convert("RGBA")) > 40
    assert difference(quadrants(), quadrants().rotate(180)) > 40


def test_pictures_are_found_in_every_kind_of_package_by_what_they_are(tmp_path: Path) -> None:
    files = {"a/plain.JPG": DRAWN["plain.jpeg"], "b.png": b"<svg/>", "c.txt": DRAWN["plain.png"]}
    with tarfile.open(tmp_path / "one.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with zipfile.ZipFile(tmp_path / "one.whl", "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)

    for name in ("one.tar.gz", "one.whl"):
        assert list(pictures_in(tmp_path / name)) == [("a/plain.JPG", DRAWN["plain.jpeg"])]


def test_packages_take_turns_and_no_picture_comes_twice() -> None:
    def of(package: str, *names: str) -> list[Found]:
        return [Found(ImageFormat.PNG, package, name, Path(name)) for name in names]

    taken = chosen([of("one", "a", "b", "c"), of("two", "b", "d")], 3)

    assert [(each.package, each.name) for each in taken] == [
        ("one", "a"),
        ("two", "b"),
        ("two", "d"),
    ]


def test_packages_are_pinned_each_once() -> None:
    packages = listed()

    assert len(packages) == len({(each.index, each.name) for each in packages}) >= 30
    assert {each.index for each in packages} == {"pypi", "npm", "debian"}
    assert all(each.version[0].isdigit() for each in packages)
