"""Files of a child that says one thing and has made another."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe, VariantSpec
from imagefleet.imaging.render import render
from imagefleet.jobs.images import ImageFormat
from imagefleet.worker.isolation import report
from imagefleet.worker.isolation.child import file_name
from imagefleet.worker.isolation.report import RenderedFiles, UntrueError, checked
from tests.support.images import png_chunk, quadrants, saved

Report = dict[str, Any]

RECIPE = Recipe(
    "pair",
    (
        VariantSpec("thumb", 40, 40, ImageFormat.WEBP, 80),
        VariantSpec("thumb", 40, 40, ImageFormat.JPEG, 80),
    ),
)
SOURCE = saved(quadrants())


def in_boxes(*boxes: tuple[str, int]) -> Recipe:
    """The whole picture in each, in one format."""
    variants = (VariantSpec(name, side, side, ImageFormat.WEBP, 80) for name, side in boxes)
    return Recipe("boxes", tuple(variants))


@dataclass
class Made:
    """An honest child's work, to be tampered with."""

    folder: Path
    report: Report
    source: int
    recipe: Recipe = RECIPE

    def check(self) -> RenderedFiles:
        return checked(self.report, self.recipe, self.source, self.folder)

    def replace(self, number: int, content: bytes) -> None:
        """Another file, and a report that knows of it."""
        facts = self.report["variants"][number]
        (self.folder / file_name(facts["name"], ImageFormat(facts["format"]))).write_bytes(content)
        facts["bytes"] = len(content)


@contextmanager
def made_by(recipe: Recipe, folder: Path) -> Iterator[Made]:
    def sink(name: str, image_format: ImageFormat, encoded: bytes) -> None:
        (folder / file_name(name, image_format)).write_bytes(encoded)

    for variant in recipe.variants:  # as they are given to the child
        (folder / file_name(variant.name, variant.format)).touch()
    report = json.loads(json.dumps(asdict(render(SOURCE, recipe, Limits(), sink))))
    (folder / "source").write_bytes(SOURCE)
    with (folder / "source").open("rb") as source:
        yield Made(folder, report, source.fileno(), recipe)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    with made_by(RECIPE, tmp_path) as made:
        yield made


@pytest.fixture
def alike(tmp_path: Path) -> Iterator[Made]:
    """The last two are the source's size, and the second of them has no file."""
    with made_by(in_boxes(("thumb", 40), ("small", 400), ("large", 800)), tmp_path) as made:
        yield made


def test_an_honest_report_is_believed(made: Made) -> None:
    files = made.check()

    assert [(variant.facts.name, variant.path.name) for variant in files.variants] == [
        ("thumb", "thumb.webp"),
        ("thumb", "thumb.jpg"),
    ]
    assert files.source.bytes == len(SOURCE)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html><script>alert(1)</script>",
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", bytes(13)),
        saved(quadrants(40, 25), "PNG"),
        saved(quadrants(400, 250), "WEBP"),
        b"RIFF\0\0\0\0WEBP",
    ],
    ids=["empty", "markup", "no_picture", "other_format", "other_size", "cut"],
)
def test_a_file_has_to_be_the_picture_that_was_wanted(made: Made, content: bytes) -> None:
    made.replace(0, content)

    with pytest.raises(UntrueError):
        made.check()


def test_a_larger_picture_is_not_believed_even_if_reported(made: Made) -> None:
    made.replace(0, saved(quadrants(400, 250), "WEBP"))
    made.report["variants"][0] |= {"width": 400, "height": 250}

    with pytest.raises(UntrueError):
        made.check()


def test_a_file_that_grew_is_not_believed(made: Made) -> None:
    with (made.folder / "thumb.jpg").open("ab") as file:
        file.write(b"more")

    with pytest.raises(UntrueError):
        made.check()


def false(change: Callable[[Report], object], name: str) -> object:
    return pytest.param(change, id=name)


@pytest.mark.parametrize(
    "change",
    [
        false(dict.clear, "nothing"),
        false(lambda r: r.update(more=1), "more"),
        false(lambda r: r["variants"].pop(), "one missing"),
        false(lambda r: r["variants"].append(r["variants"][0]), "one twice"),
        false(lambda r: r["variants"].reverse(), "another order"),
        false(lambda r: r["variants"][0].update(name="../../etc/passwd"), "a path"),
        false(lambda r: r["variants"][0].update(content_type="text/html"), "content type"),
        false(lambda r: r["variants"][0].update(width=-1), "negative"),
        false(lambda r: r["variants"][0].update(warnings=["<b>"]), "warnings"),
        false(lambda r: r["source"].update(bytes=1), "source size"),
        false(lambda r: r["source"].update(width=10**10), "source width"),
        false(lambda r: r["source"].update(format="svg"), "source format"),
        false(lambda r: r["source"].update(frames=0), "no frame"),
        false(lambda r: r["source"].update(frames=10**30), "frames"),
        false(lambda r: r["placeholder"].update(color="red;}"), "colour"),
        false(lambda r: r["placeholder"].update(thumbhash="A" * 1000), "hash"),
        false(lambda r: r["variants"][0].update(format="gif"), "a format without a file"),
    ],
)
def test_a_report_has_to_be_true_and_nothing_else(
    made: Made, change: Callable[[Report], object]
) -> None:
    change(made.report)

    with pytest.raises(UntrueError):
        made.check()


def test_a_hash_is_measured_here_whatever_is_told(made: Made) -> None:
    made.report["source"]["sha256"] = made.report["variants"][0]["sha256"] = "0" * 64

    files = made.check()

    assert hashlib.sha256(SOURCE).hexdigest() == files.source.sha256
    for file in files.variants:
        assert hashlib.sha256(file.path.read_bytes()).hexdigest() == file.facts.sha256


def test_variants_that_are_one_picture_have_one_file(alike: Made) -> None:
    thumb, small, large = alike.check().variants

    assert ["thumb.webp", "small.webp", "small.webp"] == [
        file.path.name for file in (thumb, small, large)
    ]
    assert (small.facts.sha256, small.facts.bytes) == (large.facts.sha256, large.facts.bytes)
    assert b"" == (alike.folder / "large.webp").read_bytes()


def test_a_file_of_several_variants_is_measured_once(
    alike: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    measure = report._measured

    def measuring(file: int) -> tuple[int, str]:
        measured.append(file)
        return measure(file)

    monkeypatch.setattr(report, "_measured", measuring)

    alike.check()

    assert 3 == len(measured), "the source, and two files"


def test_what_came_out_the_same_by_chance_is_one_file_too(alike: Made) -> None:
    (alike.folder / "large.webp").write_bytes((alike.folder / "small.webp").read_bytes())
    alike.report["variants"][2]["same_as"] = None

    _, small, large = alike.check().variants

    assert small.path == large.path
    assert large.facts.name == "large"


@pytest.mark.parametrize(
    "change",
    [
        false(lambda r: r["variants"][2].update(same_as="large"), "itself"),
        false(lambda r: r["variants"][1].update(same_as="large"), "one after it"),
        false(
            lambda r: (
                r["variants"][1].update(same_as="large"),
                r["variants"][2].update(same_as=None),
            ),
            "one after it, which is there",
        ),
        false(lambda r: r["variants"][1].update(same_as="thumb"), "another size, and a chain"),
        false(lambda r: r["variants"][2].update(same_as="thumb"), "another size"),
        false(lambda r: r["variants"][2].update(same_as="source"), "no variant"),
        false(lambda r: r["variants"][2].update(same_as="../../etc/passwd"), "a path"),
        false(lambda r: r["variants"][2].update(same_as="small.webp"), "a file"),
        false(lambda r: r["variants"][2].update(same_as=""), "nothing"),
        false(lambda r: r["variants"][2].update(same_as=1), "a number"),
        false(lambda r: r["variants"][2].update(same_as=None), "an empty file"),
        false(lambda r: r["variants"][2].update(format="jpeg"), "another format"),
        false(lambda r: r["variants"][2].update(content_type="text/html"), "content type"),
        false(lambda r: r["variants"][2].update(bytes=1), "bytes"),
        false(lambda r: r["variants"][2].update(width=319), "width"),
        false(lambda r: r["variants"][2].update(name="small"), "a name twice"),
    ],
)
def test_whose_picture_a_variant_is_has_to_be_true(
    alike: Made, change: Callable[[Report], object]
) -> None:
    change(alike.report)

    with pytest.raises(UntrueError):
        alike.check()


def test_a_picture_is_no_larger_than_any_of_its_boxes(tmp_path: Path) -> None:
    boxes = (("large", 800), ("thumb", 40))
    with made_by(in_boxes(*boxes), tmp_path) as made:
        large, _ = made.report["variants"]
        made.report["variants"][1] = large | {"name": "thumb", "same_as": "large"}

        with pytest.raises(UntrueError):
            made.check()


def test_checking_leaves_the_source_open(made: Made) -> None:
    made.check()

    assert os.fstat(made.source).st_size == len(SOURCE)
