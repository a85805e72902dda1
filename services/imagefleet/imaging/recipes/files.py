"""Recipes from a file that whoever runs the fleet writes (docs/recipes.md), and those shipped.

A file is used whole or not at all, and every fault of it is told at once: line, place, what to do.
What a recipe needs is in it when it has been read, a watermark's picture too: from then on no
process looks at files, and a child is given the recipe itself.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from imagefleet.errors import InputRejected, Misconfigured
from imagefleet.imaging.headers.png import SIGNATURE, check_rows
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import LONGEST_MARKS, MOST_MARK_PIXELS, MOST_VARIANTS, Recipe
from imagefleet.imaging.recipes.lines import Lines, Unreadable, Where, parse
from imagefleet.imaging.recipes.tables import (
    FORMS,
    FileTable,
    RecipesFile,
    RecipeTable,
    VariantTable,
    WatermarkTable,
)
from imagefleet.imaging.recipes.variants import (
    contradictions,
    factors_of,
    named,
    outputs_of,
    recipe_of,
)
from imagefleet.imaging.sniff import examine
from imagefleet.jobs.images import ImageFormat

SHIPPED: Final = Path(__file__).with_name("recipes.toml")
MOST_BYTES: Final = 2**20
MOST_WATERMARK_BYTES: Final = 32 * 1024
PNG_ENDS: Final = b"IEND"

# By the length of the way to one of their keys.
_TABLES: Final[Mapping[int, type[FileTable]]] = dict(
    zip((1, 3, 5, 6), (RecipesFile, RecipeTable, VariantTable, WatermarkTable), strict=True)
)
_LONGEST_SHOWN: Final = 60


class RecipeFault(NamedTuple):
    """What is wrong at one place of the file."""

    where: Where
    reason: str


def recipes_in_force(path: Path | None) -> Mapping[str, Recipe]:
    """The recipes of this file, else those that are shipped; Misconfigured tells every fault."""
    file = path or SHIPPED
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        message = f"the recipes cannot be read: {file}: {error.strerror}"
        raise Misconfigured(message) from error
    if len(content) > MOST_BYTES:
        raise _refusal(file, [(1, "the file is larger than 1 MiB")])
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        as_json = file.suffix == ".json" or (file.suffix != ".toml" and text.lstrip()[:1] == "{")
        document, find_lines = parse(text, as_json=as_json)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(file, [(line, "the file is not UTF-8")]) from None
    except Unreadable as error:
        raise _refusal(file, [(error.line, str(error))]) from None
    recipes, faults = _read(document, file.parent)
    if faults:
        lines = find_lines()
        told = [(_line(lines, where), f"{_written(where)}: {why}") for where, why in faults]
        raise _refusal(file, told)
    return MappingProxyType(recipes)


def _refusal(file: Path, faults: Iterable[tuple[int, str]]) -> Misconfigured:
    listed = (f"  line {line}: {what}" for line, what in sorted(dict.fromkeys(faults)))
    return Misconfigured("\n".join((f"the recipes of {file} cannot be used:", *listed)))


def _line(lines: Lines, where: Where) -> int:
    """Of what is not there, the line of what it is missing from."""
    return next(lines[where[:end]] for end in range(len(where), -1, -1) if where[:end] in lines)


def _written(where: Where) -> str:
    """Such as recipes.default.variants[2].quality."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_$-]{1,64}", part)
            text += f".{part}" if plain else f".{json.dumps(part)[:_LONGEST_SHOWN]}"
    return text.removeprefix(".") or "the file"


def _read(document: Any, folder: Path) -> tuple[dict[str, Recipe], list[RecipeFault]]:  # noqa: ANN401 - TOML or JSON
    """The recipes that have no fault, and the faults of all the others."""
    faults: list[RecipeFault] = []
    try:
        RecipesFile.model_validate(document)
    except ValidationError as error:
        faults += [_fault(document, each) for each in error.errors(include_url=False)]
    tables = document.get("recipes") if isinstance(document, dict) else None
    if not isinstance(tables, dict):
        return {}, faults
    if "default" not in tables:
        faults.append(
            RecipeFault(("recipes",), "has no default, which uploads use that name no recipe")
        )
    recipes: dict[str, Recipe] = {}
    for name, table in tables.items():
        here, images = ("recipes", name), dict[str, str]()
        if isinstance(table, dict) and isinstance(table.get("variants"), list):
            faults += _of_variants(table["variants"], (*here, "variants"), folder, images)
        if any(fault.where[:2] == here for fault in faults):
            continue
        if sum(map(len, set(images.values()))) > LONGEST_MARKS:
            why = f"its watermarks are larger than {LONGEST_MARKS * 3 // 4096} KiB together"
            faults.append(RecipeFault(here, why))
            continue
        recipes[name] = recipe_of(name, RecipeTable.model_validate(table), images)
    return recipes, faults


def _of_variants(
    variants: list[Any], at: Where, folder: Path, images: dict[str, str]
) -> Iterator[RecipeFault]:
    """The faults that are not those of a single key; the watermarks' files go to `images`."""
    made: dict[tuple[str, str], int] = {}
    for place, variant in enumerate(variants):
        if not isinstance(variant, dict):
            continue
        here = (*at, place)
        yield from (RecipeFault((*here, *key), why) for key, why in contradictions(variant))
        for factor, output in product(factors_of(variant), outputs_of(variant)):
            name = named(variant.get("name"), factor)
            earlier = made.setdefault((name, output), place)
            if earlier != place:
                why = f"{name} is made as {output} by variants[{earlier}] already: rename one"
                yield RecipeFault((*here, "name"), why)
                break
        mark = variant.get("watermark")
        image = mark.get("image") if isinstance(mark, dict) else None
        if isinstance(image, str) and image:
            try:
                images[image] = images.get(image) or _picture(folder / image)
            except ValueError as error:
                yield RecipeFault((*here, "watermark", "image"), str(error))
    if len(made) > MOST_VARIANTS:
        why = f"come to {len(made)} files, with every format and factor; at most {MOST_VARIANTS}"
        yield RecipeFault(at, why)


def _picture(file: Path) -> str:
    """A watermark's file, in base64; ValueError says why it is none."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_WATERMARK_BYTES + 1)
        facts = examine(content, Limits())
        pixels = (facts.width or 0) * (facts.height or 0)
        if facts.format is ImageFormat.PNG and pixels <= MOST_MARK_PIXELS:
            check_rows(content)
    except (OSError, InputRejected, zlib.error) as error:
        why = getattr(error, "strerror", None) or getattr(error, "public_message", None)
        message = f"cannot be used: {why or 'its pixels are damaged'}"
        raise ValueError(message) from None
    for wrong, message in (
        (len(content) > MOST_WATERMARK_BYTES, "is larger than 32 KiB"),
        (facts.format not in {ImageFormat.PNG, ImageFormat.WEBP}, "has to be PNG or WebP"),
        ((facts.frames or 1) > 1, "moves: take a picture of one frame"),
        (content.startswith(SIGNATURE) and PNG_ENDS not in content, "ends in the middle"),
        (pixels > MOST_MARK_PIXELS, f"has more than {MOST_MARK_PIXELS:,} pixels"),
    ):
        if wrong:
            raise ValueError(message)
    return base64.b64encode(content).decode()


def _fault(document: Any, error: ErrorDetails) -> RecipeFault:  # noqa: ANN401 - TOML or JSON
    """What pydantic found, at its place in the file, in words for whoever wrote it."""
    where: Where = ()
    inner: Any = document
    for part in error["loc"]:  # besides keys it names alternatives, which the file does not
        keys: Any = range(len(inner)) if isinstance(inner, list) else inner
        if isinstance(keys, dict | range) and part in keys:
            where, inner = (*where, part), inner[part]
    key, given = error["loc"][-1] if error["loc"] else "", ascii(error["input"])[:_LONGEST_SHOWN]
    match error["type"]:
        case "missing":
            return RecipeFault((*where, key), "is missing")
        case "extra_forbidden":
            fields = _TABLES[len(where)].model_fields
            known = [field.alias or name for name, field in fields.items()]
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            return RecipeFault(where, f"there is no such key; {hint}")
        case "string_pattern_mismatch":
            return RecipeFault(where, f"has to be {FORMS[error['ctx']['pattern']]}; given {given}")
        case "model_type" | "dict_type":
            return RecipeFault(where, f"has to be a table; given {given}")
        case kind:
            said = re.sub(r"^\w+ should ", "has to ", error["msg"]).replace(" after validation", "")
            return RecipeFault(where, said if kind.startswith("too_") else f"{said}; given {given}")
