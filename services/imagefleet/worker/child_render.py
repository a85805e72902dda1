"""The task of a decoding child: a source and a recipe in, encoded variants into waiting files."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TypedDict, cast

from imagefleet.imaging.headers.facts import ImageFormat
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import RECIPES
from imagefleet.imaging.render import render
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.child import SOURCE_FILE, file_name


class Order(TypedDict):
    """The argument of `render_variants`; the worker makes it, so it is believed."""

    recipe: str
    limits: dict[str, int]


def render_variants(argument: JsonObject, files: Mapping[str, int]) -> JsonObject:
    """Every variant of the recipe into the file of its name, and the facts about all of them."""
    order = cast("Order", argument)
    limits = Limits(**order["limits"])

    def sink(name: str, image_format: ImageFormat, encoded: bytes) -> None:
        _write(files[file_name(name, image_format)], encoded)

    source = _read(files[SOURCE_FILE], limits.max_bytes + 1)
    return asdict(render(source, RECIPES[order["recipe"]], limits, sink))


def _read(file: int, most_bytes: int) -> bytes:
    """From its beginning, wherever the worker left off reading; one copy, of the size it has."""
    size = min(os.fstat(file).st_size, most_bytes)
    return os.pread(file, size, 0)


def _write(file: int, encoded: bytes) -> None:
    rest = memoryview(encoded)
    while rest:
        rest = rest[os.write(file, rest) :]
