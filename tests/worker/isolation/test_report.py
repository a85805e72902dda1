"""Files of a child that says one thing and has made another."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe, VariantSpec
from imagefleet.imaging.render import render
from imagefleet.jobs.images import ImageFormat
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


@dataclass
class Made:
    """An honest child's work, to be tampered with."""

    folder: Path
    report: Report
    source: int

    def check(self) -> RenderedFiles:
        return checked(self.report, RECIPE, self.source, self.folder)

    def replace(self, number: int, content: bytes) -> None:
        """Another file, and a report that knows of it."""
        facts = self.report["variants"][number]
        (self.folder / file_name(facts["name"], ImageFormat(facts["format"]))).write_bytes(content)
        facts["bytes"] = len(content)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    def sink(name: str, image_format: ImageFormat, encoded: bytes) -> None:
        (tmp_path / file_name(name, image_format)).write_bytes(encoded)

    report = json.loads(json.dumps(asdict(render(SOURCE, RECIPE, Limits(), sink))))
    (tmp_path / "source").write_bytes(SOURCE)
    with (tmp_path / "source").open("rb") as source:
        yield Made(tmp_path, report, source.fileno())


def test_an_honest_report_is_believed(made: Made) -> None:
    rendered = made.check()

    assert [(variant.facts.name, variant.path.name) for variant in rendered.variants] == [
        ("thumb", "thumb.webp"),
        ("thumb", "thumb.jpg"),
    ]
    assert rendered.source.bytes == len(SOURCE)


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


def test_checking_leaves_the_source_open(made: Made) -> None:
    made.check()

    assert os.fstat(made.source).st_size == len(SOURCE)
