"""Recipes from a file: what is read, and what each fault of one is told as."""

from __future__ import annotations

import json
import re
import string
import struct
import tomllib
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from imagefleet.errors import Misconfigured
from imagefleet.imaging.headers.png import SIGNATURE
from imagefleet.imaging.recipes import (
    MAX_SIDE,
    OUTPUTS,
    Encoding,
    Fit,
    Focus,
    Lossless,
    Metadata,
    Place,
    Recipe,
    Truncated,
    VariantSpec,
    Watermark,
)
from imagefleet.imaging.recipes.files import SHIPPED, recipes_in_force
from imagefleet.imaging.recipes.tables import VariantTable
from imagefleet.jobs.images import ImageFormat
from tests.support.images import BLUE, RED, animated, png_chunk, quadrants, saved

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"

A_RECIPE = """\
[recipes.default]
[[recipes.default.variants]]
name = "thumb"
edge = 200
format = "jpeg"
"""  # the next line is the sixth


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recipes.toml"


def read(file: Path, text: str) -> Recipe:
    file.write_text(text)
    return recipes_in_force(file)["default"]


def faults(file: Path, text: str | bytes) -> list[str]:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(Misconfigured) as refused:
        recipes_in_force(file)
    first, *lines = (refused.value.detail or "").splitlines()
    assert first == f"the recipes of {file} cannot be used:"
    return [line.strip() for line in lines]


AT = "recipes.default.variants[0]"

BROKEN: dict[str, tuple[str, list[str]]] = {
    "no TOML": ("[recipes.default\n", ["line 1: no TOML: "]),
    "a string without an end": (A_RECIPE + 'focus = "cen\n', ["line 6: no TOML: "]),
    "a key twice": (A_RECIPE + "edge = 300\n", ["line 6: no TOML: Cannot overwrite"]),
    "an array without an end": (A_RECIPE + "factors = [1,\n", ["line 6: no TOML: "]),
    "empty": ("", ["line 1: recipes: is missing"]),
    "no recipes": ("[recipes]\n", ["line 1: recipes: has no default",
                                   "line 1: recipes: has to have at least 1 item, not 0"]),
    "recipes that are no table": ("recipes = 3\n", ["line 1: recipes: has to be a table; given 3"]),
    "a key beside the recipes": (
        'recipe = "x"\n' + A_RECIPE, ["line 1: recipe: there is no such key; did you mean recipes?"]
    ),
    "no default": (
        A_RECIPE.replace("default", "other"), ["line 1: recipes: has no default, which uploads use"]
    ),
    "a recipe that is no table": (
        'recipes.default = "x"\n', ["line 1: recipes.default: has to be a table; given 'x'"]
    ),
    "a recipe's name in capitals": (
        A_RECIPE + "[recipes.Big]\nvariants = []\n",
        ["line 6: recipes.Big: has to be small letters, digits, - and _, a letter first, at most",
         "line 7: recipes.Big.variants: has to have at least 1 item, not 0"],
    ),
    "no variants": ('[recipes.default]\ndescription = ""\n',
                    ["line 1: recipes.default.variants: is missing"]),
    "variants that are no list": (
        "[recipes.default]\nvariants = 1\n",
        ["line 2: recipes.default.variants: has to be a valid list; given 1"],
    ),
    "an unknown policy of metadata": (
        A_RECIPE.replace("default]\n", 'default]\nmetadata = "all"\n', 1),
        ["line 2: recipes.default.metadata: has to be 'none' or 'copyright'; given 'all'"],
    ),
    "an unknown policy of cut files": (
        A_RECIPE.replace("default]\n", "default]\ntruncated = true\n", 1),
        ["line 2: recipes.default.truncated: has to be 'refuse' or 'warn'; given True"],
    ),
    "an unknown key of a recipe": (
        A_RECIPE.replace("default]\n", 'default]\nmeta_data = "none"\n', 1),
        ["line 2: recipes.default.meta_data: there is no such key; did you mean metadata?"],
    ),
    "an unknown key of a variant": (
        A_RECIPE + "qualitty = 80\n",
        [f"line 6: {AT}.qualitty: there is no such key; did you mean quality?"],
    ),
    "a key like no other": (
        A_RECIPE + "x = 80\n", [f"line 6: {AT}.x: there is no such key; known are name, fit, "]
    ),
    "a variant without a name": (
        A_RECIPE.replace('name = "thumb"\n', ""), [f"line 2: {AT}.name: is missing"]
    ),
    "a variant's name that is none": (
        A_RECIPE.replace("thumb", "a/b"), [f"line 3: {AT}.name: has to be small letters, "]
    ),
    "an unknown fit": (
        A_RECIPE + 'fit = "fill"\n',
        [f"line 6: {AT}.fit: has to be 'inside', 'cover', 'contain' or 'pad'; given 'fill'"],
    ),
    "no size": (A_RECIPE.replace("edge = 200\n", ""), [f"line 2: {AT}: says no size: give edge"]),
    "an edge and a width": (A_RECIPE + "width = 9\n", [f"line 4: {AT}.edge: is the longest side"]),
    "cover of one side": (
        A_RECIPE.replace("edge", "width") + 'fit = "cover"\n',
        [f"line 6: {AT}.fit: cover needs width and height"],
    ),
    "pad of an edge": (
        A_RECIPE + 'fit = "pad"\n', [f"line 6: {AT}.fit: pad needs width and height"]
    ),
    "a size of nothing": (
        A_RECIPE.replace("200", "0"),
        [f"line 4: {AT}.edge: has to be greater than or equal to 1; given 0"],
    ),
    "a size beyond WebP's": (
        A_RECIPE.replace("200", "16384"),
        [f"line 4: {AT}.edge: has to be less than or equal to 16383; given 16384"],
    ),
    "a size in quotes": (
        A_RECIPE.replace("200", '"200"'),
        [f"line 4: {AT}.edge: has to be a valid integer; given '200'"],
    ),
    "a size with a point": (
        A_RECIPE.replace("200", "2.5"), [f"line 4: {AT}.edge: has to be a valid integer; given 2.5"]
    ),
    "a factor too dense": (
        A_RECIPE + "factors = [\n  1,\n  4,\n]\n",
        [f"line 8: {AT}.factors[1]: has to be less than or equal to 3; given 4"],
    ),
    "a factor twice": (A_RECIPE + "factors = [2, 2]\n", [f"line 6: {AT}.factors: names one"]),
    "a factor that goes beyond WebP's size": (
        A_RECIPE.replace("200", "9000") + "factors = [1, 2]\n",
        [f"line 4: {AT}.edge: times 2 is over 16383 pixels"],
    ),
    "an unknown format": (
        A_RECIPE.replace("jpeg", "jpg"),
        [f"line 5: {AT}.format: has to be 'jpeg', 'png', 'webp', 'avif' or 'auto'; given 'jpg'"],
    ),
    "no format": (
        A_RECIPE.replace('format = "jpeg"\n', ""), [f"line 2: {AT}: has to say either format"]
    ),
    "a format and formats": (
        A_RECIPE + 'formats = ["jpeg"]\n', [f"line 2: {AT}: has to say either format"]
    ),
    "formats that not every browser shows": (
        A_RECIPE.replace('format = "jpeg"', 'formats = ["avif", "webp"]'),
        [f"line 5: {AT}.formats: lacks one that every browser shows: add jpeg or png"],
    ),
    "a format twice": (
        A_RECIPE.replace('format = "jpeg"', 'formats = ["webp", "jpeg", "webp"]'),
        [f"line 5: {AT}.formats: names one of them twice"],
    ),
    "auto with nothing to choose from": (
        A_RECIPE.replace('"jpeg"', '"auto"') + 'allowed = ["webp"]\n',
        [f"line 6: {AT}.allowed: has to have at least 2 items, not 1"],
    ),
    "formats for auto without auto": (
        A_RECIPE + 'allowed = ["webp", "jpeg"]\n', [f'line 6: {AT}.allowed: goes with format = "a']
    ),
    "a quality above all": (
        A_RECIPE + "quality = 101\n",
        [f"line 6: {AT}.quality: has to be less than or equal to 100; given 101"],
    ),
    "a quality in words": (
        A_RECIPE + 'quality = "high"\n',
        [f"line 6: {AT}.quality: has to be a valid integer; given 'high'"],
    ),
    "the quality of a format that is not made": (
        A_RECIPE + "quality = { jpeg = 80, webp = 80 }\n",
        [f"line 6: {AT}.quality.webp: is no format of this variant"],
    ),
    "the quality of what has none": (
        A_RECIPE.replace('"jpeg"', '"png"') + "quality = { png = 80 }\n",
        [f"line 6: {AT}.quality.png: has to be 'jpeg', 'webp' or 'avif'; given 'png'"],
    ),
    "too few bytes": (
        A_RECIPE + "max_bytes = 10\n",
        [f"line 6: {AT}.max_bytes: has to be greater than or equal to 256; given 10"],
    ),
    "a budget that PNG cannot keep": (
        A_RECIPE.replace('"jpeg"', '"png"') + "max_bytes = 9000\n",
        [f"line 6: {AT}.max_bytes: cannot be kept by PNG"],
    ),
    "a JPEG without loss": (
        A_RECIPE + 'lossless = "always"\n', [f"line 6: {AT}.lossless: can be asked of WebP alone"]
    ),
    "a colour by its name": (
        A_RECIPE + 'background = "white"\n',
        [f"line 6: {AT}.background: has to be a colour such as #ffffff; given 'white'"],
    ),
    "too sharp": (
        A_RECIPE + "sharpen = 1.5\n",
        [f"line 6: {AT}.sharpen: has to be less than or equal to 1; given 1.5"],
    ),
    "a number that is none": (
        A_RECIPE + "sharpen = nan\n", [f"line 6: {AT}.sharpen: has to be a finite number; given n"]
    ),
    "a focus of what is not cut": (
        A_RECIPE + 'focus = "attention"\n', [f"line 6: {AT}.focus: is about what cover cuts"]
    ),
    "a watermark that is not there": (
        A_RECIPE + 'watermark = { image = "none.png" }\n',
        [f"line 6: {AT}.watermark.image: cannot be used: No such file or directory"],
    ),
    "a watermark that is no picture": (
        A_RECIPE + '[recipes.default.variants.watermark]\nplace = "left"\nimage = "recipes.toml"\n',
        [f"line 8: {AT}.watermark.image: cannot be used: "],
    ),
    "a watermark without a picture": (
        A_RECIPE + "watermark.tile = true\n", [f"line 6: {AT}.watermark.image: is missing"]
    ),
    "an unknown key of a watermark": (
        A_RECIPE + 'watermark = { image = "mark.png", plaice = "left" }\n',
        [f"line 6: {AT}.watermark.plaice: there is no such key; did you mean place?"],
    ),
    "a watermark that cannot be seen": (
        A_RECIPE + 'watermark = { image = "mark.png", opacity = 0 }\n',
        [f"line 6: {AT}.watermark.opacity: has to be greater than 0; given 0"],
    ),
    "a variant twice": (
        A_RECIPE + A_RECIPE.partition("\n")[2],
        ["line 7: recipes.default.variants[1].name: thumb is made as jpeg by variants[0] already"],
    ),
    "the name of a denser one": (
        A_RECIPE + "factors = [1, 2]\n" + A_RECIPE.partition("\n")[2].replace("thumb", "thumb-2x"),
        ["line 8: recipes.default.variants[1].name: thumb-2x is made as jpeg by variants[0]"],
    ),
    "more than a child can write": (
        A_RECIPE + "".join(
            A_RECIPE.partition("\n")[2].replace("thumb", f"v{number}") for number in range(48)
        ),
        ["line 2: recipes.default.variants: come to 49 files",
         "line 2: recipes.default.variants: has to have at most 48 items, not 49"],
    ),
    "a canvas beyond any picture": (
        A_RECIPE.replace("edge = 200", 'fit="pad"\nwidth=8000\nheight=3000\nfactors=[1, 2]'),
        [f"line 4: {AT}.fit: pad would make 96,000,000 pixels, over 67,108,864"],
    ),
    "a key of many parts": (
        A_RECIPE + "sharpen = 0\n" + ".".join(["a"] * 30_000) + " = 1\n",
        ["line 7: a key has over 50 parts"],
    ),
    "a key of many quoted parts": (
        "a = 1\n[" + " . ".join(['"a b"'] * 60) + "]\n", ["line 2: a key has over 50 parts"],
    ),
    "faults of two recipes": (
        A_RECIPE + "sharpen = 2\n" + A_RECIPE.replace("default", "other") + "edges = 2\n",
        [f"line 6: {AT}.sharpen: has to be less than or equal to 1; given 2",
         "line 12: recipes.other.variants[0].edges: there is no such key; did you mean edge?"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_line_and_reason(file: Path, name: str) -> None:
    text, expected = BROKEN[name]
    (file.parent / "mark.png").write_bytes(saved(quadrants(), "PNG"))

    told = faults(file, text)

    assert len(expected) == len(told), told
    for begins, line in zip(expected, told, strict=True):
        assert line.startswith(begins)


BROKEN_JSON: dict[str, tuple[str, list[str]]] = {
    "no JSON": ('{"recipes": {\n"default" }}', ["line 2: no JSON: Expecting ':' delimiter"]),
    "a list": ("[]", ["line 1: the file: has to be a table; given []"]),
    "a key twice": (
        '{"recipes": {\n"default": {},\n"default": {}}}', ["line 3: 'default' is there twice"]
    ),
    "a fault inside": (
        ('{\n "recipes": {\n  "default": {\n   "variants": [\n    {"name": "thumb",\n'
        '     "edge": 200, "format": "jpeg",\n     "quality": {\n      "jpeg": 0}},\n    7]}}}'),
        ["line 8: recipes.default.variants[0].quality.jpeg: has to be greater than or equal to 1",
         "line 9: recipes.default.variants[1]: has to be a table; given 7"],
    ),
    "a number that is none": (
        ('{"recipes": {"default": {"variants": [\n{"name": "a", "edge": Infinity,'
        ' "format": "png"}]}}}'),
        ["line 2: recipes.default.variants[0].edge: has to be a valid integer; given inf"],
    ),
    "a number without end": ("9" * 5000, ["line 1: Exceeds the limit"]),
    "half a character": (
        ('{"recipes": {"default": {"variants": [\n{"name": "\\ud800", "edge": 1,'
        ' "format": "png"}]}}}'),
        ["line 2: recipes.default.variants[0].name: "],
    ),
    "depths": ("[" * 100_000 + "]" * 100_000, ["line 1: it is nested too deeply"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_JSON)
def test_broken_json_is_refused_by_line_and_reason(tmp_path: Path, name: str) -> None:
    text, expected = BROKEN_JSON[name]

    told = faults(tmp_path / "recipes.json", text)

    assert len(expected) == len(told), told
    for begins, line in zip(expected, told, strict=True):
        assert line.startswith(begins)


def test_what_is_no_text_is_refused(file: Path) -> None:
    assert ["line 2: the file is not UTF-8"] == faults(file, b"# one\n# \xff\n")
    assert ["line 1: the file is larger than 1 MiB"] == faults(file, b" " * (2**20 + 1))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(Misconfigured, match=f"{path}: {why}"):
            recipes_in_force(path)


def test_what_a_terminal_would_obey_is_not_repeated(file: Path) -> None:
    told = faults(file, A_RECIPE + '"\\u001b[2J" = "\\u001b[2J"\nfit = "\\u001b[2J"\n')

    assert 2 == len(told)
    assert "\x1b" not in "".join(told)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (saved(quadrants()), "has to be PNG or WebP"),
        (saved(quadrants(), "PNG")[:-20], "ends in the middle"),
        (saved(quadrants(), "PNG") + bytes(32 * 1024), "is larger than 32 KiB"),
        (saved(Image.new("1", (1024, 1025)), "PNG"), "has more than 1,048,576 pixels"),
        (
            animated("WEBP", [RED, BLUE]),
            "moves: take a picture of one frame",
        ),
    ],
    ids=["jpeg", "cut", "large", "many pixels", "animated"],
)
def test_a_watermark_is_a_small_png_or_webp_that_stands_still(
    file: Path, content: bytes, why: str
) -> None:
    (file.parent / "mark").write_bytes(content)

    (told,) = faults(file, A_RECIPE + 'watermark = { image = "mark" }\n')

    assert told.startswith(f"line 6: {AT}.watermark.image: {why}")


def coded(packed: bytes) -> bytes:
    """A PNG of 8x8 greys with these pixels, and the right checksum of them."""
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")]
    return SIGNATURE + b"".join(png_chunk(*chunk) for chunk in chunks)


@pytest.mark.parametrize(
    "packed", [zlib.compress(bytes(9 * 7)), b"no zlib", zlib.compress(bytes(9 * 8))[:-6]]
)
def test_a_watermark_whose_pixels_alone_are_damaged_is_refused(file: Path, packed: bytes) -> None:
    """Without Pillow: no process starts with it, the API neither."""
    mark, variant = file.parent / "mark", A_RECIPE + 'watermark = { image = "mark" }\n'
    mark.write_bytes(coded(zlib.compress(bytes(9 * 8))))
    assert read(file, variant).marks
    mark.write_bytes(coded(packed))

    (told,) = faults(file, variant)

    assert told.startswith(f"line 6: {AT}.watermark.image: cannot be used: ")
    assert "damaged" in told


def test_watermarks_that_no_request_has_room_for_are_refused(file: Path) -> None:
    for number in range(3):
        mark = Image.effect_noise((160, 160), 99 + number)
        (file.parent / f"{number}.png").write_bytes(saved(mark, "PNG"))
    variants = [
        A_RECIPE.partition("\n")[2].replace("thumb", f"v{number}")
        + f'watermark = {{ image = "{number}.png" }}\n'
        for number in range(3)
    ]

    (told,) = faults(file, "[recipes.default]\n" + "".join(variants))

    assert told == "line 1: recipes.default: its watermarks are larger than 48 KiB together"


# What is read.


def test_the_shipped_recipes_are_the_ones_that_the_ledger_knows() -> None:
    """Change these only with the recipes: images say by which of them they were made."""
    expected = {
        "default": "3ba127fb5c4576542e6a453a851b8aaa",
        "avif": "797ad97efa8d3548ea528482049f6b06",
    }

    assert expected == {name: recipe.hash for name, recipe in recipes_in_force(None).items()}


def test_json_of_the_same_content_is_the_same_recipes(tmp_path: Path) -> None:
    written = tmp_path / "recipes.json"
    written.write_text(json.dumps(tomllib.loads(SHIPPED.read_text())))
    unnamed = tmp_path / "recipes"
    unnamed.write_bytes(b"\xef\xbb\xbf" + written.read_bytes().replace(b": {", b":\r\n{"))

    assert dict(recipes_in_force(None)) == dict(recipes_in_force(written))
    assert dict(recipes_in_force(None)) == dict(recipes_in_force(unnamed))


def test_every_key_means_something(file: Path) -> None:
    (file.parent / "mark.webp").write_bytes(saved(quadrants(), "WEBP", lossless=True))
    recipe = read(
        file,
        """
[recipes.default]
description = "all of it"
metadata = "copyright"
truncated = "refuse"

[[recipes.default.variants]]
name = "card"
fit = "cover"
width = 300
height = 200
factors = [1, 2]
focus = "attention"
formats = ["avif", "webp", "jpeg"]
quality = { webp = 70 }
max_bytes = 50000
lossless = "never"
background = "#AABBCC"
sharpen = 0.5
watermark = { image = "mark.webp", place = "top", scale = 0.5, opacity = 0.4, tile = true }

[[recipes.default.variants]]
name = "best"
width = 700
format = "auto"
allowed = ["webp", "jpeg", "png"]
quality = 60

[[recipes.default.variants]]
name = "tall"
height = 700
factors = [3]
format = "png"
""",
    )

    assert (Metadata.COPYRIGHT, Truncated.REFUSE) == (recipe.metadata, recipe.truncated)
    made = [(v.name, v.width, v.height, str(v.format), v.quality) for v in recipe.variants]
    assert made == [
        ("card", 300, 200, "avif", 63),
        ("card", 300, 200, "webp", 70),
        ("card", 300, 200, "jpeg", 80),
        ("card-2x", 600, 400, "avif", 63),
        ("card-2x", 600, 400, "webp", 70),
        ("card-2x", 600, 400, "jpeg", 80),
        ("best", 700, MAX_SIDE, "webp", 60),
        ("tall-3x", MAX_SIDE, 2100, "png", 100),
    ]
    card, best = recipe.variants[0], recipe.variants[6]
    assert (Fit.COVER, Focus.ATTENTION, Lossless.NEVER) == (card.fit, card.focus, card.lossless)
    assert (50_000, "#aabbcc", 0.5) == (card.most_bytes, card.background, card.sharpen)
    assert card.watermark is not None
    assert (Place.TOP, 0.5, 0.4, True) == (
        card.watermark.place, card.watermark.scale, card.watermark.opacity, card.watermark.tile,
    )  # fmt: skip
    assert (Encoding(ImageFormat.JPEG, 60), Encoding(ImageFormat.PNG, 100)) == best.or_smaller
    assert recipe == Recipe.of("default", json.loads(json.dumps(recipe.document())))


def test_one_picture_of_many_watermarks_is_in_the_recipe_once(file: Path) -> None:
    (file.parent / "mark.png").write_bytes(saved(Image.effect_noise((170, 170), 99), "PNG"))
    marked = A_RECIPE + 'factors = [1, 2, 3]\nwatermark = { image = "mark.png" }\n'

    recipe = read(file, marked)

    assert 1 == len(recipe.document()["marks"])
    assert recipe == Recipe.of("default", recipe.document())


def test_a_quality_goes_for_every_format_by_what_looks_the_same(file: Path) -> None:
    formats = A_RECIPE.replace('format = "jpeg"', 'formats = ["avif", "webp", "jpeg"]')
    avif: list[int] = []
    for quality in range(1, 101):
        variants = read(file, f"{formats}quality = {quality}\n").variants
        avif.append(variants[0].quality)
        assert (quality, quality) == (variants[1].quality, variants[2].quality)

    assert sorted(avif) == avif
    (row,) = re.findall(r"^\| AVIF ((?:\| \d+ )+)\|$", PAGE.read_text(), re.MULTILINE)
    told = [int(number) for number in row.split("|")[1:]]
    assert told == [avif[jpeg - 1] for jpeg in (20, 50, 80, 90, 100)]
    assert 1 <= avif[0]


# A recipe goes to Postgres and to children as its document.

NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=8)
MARKS = st.builds(
    Watermark,
    image=st.sampled_from(["AAAA", "BBBB", "CCCC"]),
    place=st.sampled_from(Place),
    scale=st.floats(0.01, 1),
    opacity=st.floats(0.01, 1),
    tile=st.booleans(),
)
SPECS = st.builds(
    VariantSpec,
    name=NAMES,
    width=st.integers(1, MAX_SIDE),
    height=st.integers(1, MAX_SIDE),
    format=st.sampled_from(sorted(OUTPUTS - {ImageFormat.PNG})),
    quality=st.integers(1, 100),
    fit=st.sampled_from(Fit),
    or_smaller=st.sampled_from([(), (Encoding(ImageFormat.PNG, 100),)]),
    focus=st.sampled_from(Focus),
    most_bytes=st.none() | st.integers(256, 10**7),
    lossless=st.sampled_from(Lossless),
    background=st.none() | st.just("#012345"),
    sharpen=st.floats(0, 1),
    watermark=st.none() | MARKS,
)
RECIPES = st.builds(
    Recipe,
    name=NAMES,
    variants=st.lists(SPECS, min_size=1, max_size=6, unique_by=lambda spec: spec.name).map(tuple),
    metadata=st.sampled_from(Metadata),
    truncated=st.sampled_from(Truncated),
)


@given(RECIPES)
def test_a_recipe_is_its_document(recipe: Recipe) -> None:
    document: Any = json.loads(json.dumps(recipe.document()))

    again = Recipe.of(recipe.name, document)

    assert recipe == again
    assert recipe.hash == again.hash


# Whatever stands in a file, it is read or refused.

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.sampled_from(["webp", "png", "auto", "cover", "default"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)  # fmt: skip
VARIANT_KEYS = sorted(VariantTable.model_fields)
VARIANTS = st.lists(st.dictionaries(st.sampled_from(VARIANT_KEYS), JUNK) | JUNK, max_size=3)
TABLES = st.dictionaries(
    st.sampled_from(["default", "other"]) | st.text(max_size=9),
    st.fixed_dictionaries({"variants": VARIANTS | JUNK}, optional={"metadata": JUNK}) | JUNK,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.fixed_dictionaries({"recipes": TABLES | JUNK}) | JUNK)
def test_a_file_of_nonsense_is_refused_line_by_line(tmp_path: Path, document: object) -> None:
    file = tmp_path / "recipes.json"
    text = json.dumps(document, indent=1)

    told = faults(file, text)

    most = text.count("\n") + 1
    assert told
    assert all(1 <= int(line.split(":")[0].removeprefix("line ")) <= most for line in told)
