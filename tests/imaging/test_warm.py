"""What holds for a whole process: which modules it loads, and that a warm one needs no more."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import subprocess
import sys
from base64 import b64encode

import PIL
import pytest
from PIL import Image, features

from imagefleet.errors import InputRejected, Misconfigured
from imagefleet.imaging.codecs import check_installation, open_image, reading
from imagefleet.imaging.encoding import encoder_fingerprint
from imagefleet.imaging.recipes import (
    OUTPUTS,
    Encoding,
    Fit,
    Focus,
    Lossless,
    Metadata,
    Recipe,
    VariantSpec,
    Watermark,
)
from tests.support.images import (
    RED,
    animated,
    as_a_camera_stores,
    cmyk_profile,
    grey_profile,
    quadrants,
    saved,
    talkative,
    translucent,
)
from tests.support.recipes import RECIPES

WITHOUT_PILLOW = """
import sys
sys.modules["PIL"] = None
import imagefleet.imaging
import imagefleet.imaging.recipes.files
import imagefleet.imaging.recipes
import imagefleet.imaging.limits
import imagefleet.imaging.placeholder
import imagefleet.imaging.sizes
import imagefleet.imaging.sniff
"""

# A warm process may neither open nor import; whatever it does of either is told to the hook.
WARM = """
import json, os, pickle, sys
from imagefleet.errors import InputRejected
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.imaging.render import render
from imagefleet.imaging.warming import warm

sources, documents = pickle.load(sys.stdin.buffer)
recipes = [Recipe.of("", document) for document in documents]
warm()
loaded = []
sys.addaudithook(
    lambda event, args: event in ("open", "import") and loaded.append(f"{event} {args[0]}")
)
for source in sources:
    for recipe in recipes:
        try:
            render(source, recipe, Limits(), lambda *_: None)
        except InputRejected as refused:
            str(refused)
decoders = [name for name in sys.modules if name.startswith("PIL.") and name.endswith("Plugin")]
threads = os.listdir("/proc/self/task") if sys.platform == "linux" else ["one"]
allowed = sys.modules["PIL.AvifImagePlugin"].DEFAULT_MAX_THREADS
print(json.dumps([loaded, decoders, [len(threads), allowed]]))
"""


def run(program: str, given: bytes = b"") -> bytes:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        input=given,
        check=True,
        stdout=subprocess.PIPE,
    )
    return finished.stdout


def every_kind_of_source() -> list[bytes]:
    photographs = ("JPEG", "PNG", "WEBP", "AVIF")
    return [
        *(talkative(name) for name in (*photographs, "GIF", "MPO")),
        *(animated(name, [RED, (0, 0, 0)]) for name in ("PNG", "WEBP", "GIF", "AVIF")),
        *(as_a_camera_stores(6, quadrants(), name) for name in photographs),
        saved(quadrants().convert("CMYK"), icc_profile=cmyk_profile()),
        saved(quadrants().convert("L"), icc_profile=grey_profile(1.0)),
        saved(quadrants(), progressive=True),
        saved(quadrants(), icc_profile=b"broken"),
        saved(translucent(), "PNG"),
        saved(translucent().convert("LA"), "PNG"),
        saved(translucent().convert("P"), "PNG", transparency=b"\0\x80"),
        saved(Image.new("I;16", (8, 8), 7), "PNG", transparency=7),
        saved(quadrants())[:-400],
        saved(quadrants(), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"),
        b"<svg/>",
    ]


def whatever_a_recipe_may_ask_for() -> Recipe:
    """By the classes themselves, so that what comes to them comes here."""
    marks = [b64encode(saved(translucent(9, 9), form)).decode() for form in ("PNG", "WEBP")]
    watermarks = [None, *(Watermark(mark, tile=mark == marks[0]) for mark in marks)]
    forms, variants = sorted(OUTPUTS), []
    for number, (fit, focus, lossless) in enumerate(itertools.product(Fit, Focus, Lossless)):
        form, other = forms[number % 4], forms[(number + 1) % 4]
        spec = VariantSpec(f"v{number}", 12, 8, form, 80, fit, focus=focus, lossless=lossless)
        spec = dataclasses.replace(spec, watermark=watermarks[number % 3])
        if number % 2:
            spec = dataclasses.replace(spec, or_smaller=(Encoding(other, 70),))
        if number % 5 == 0:
            spec = dataclasses.replace(spec, most_bytes=200, background="#102030", sharpen=0.5)
        variants.append(spec)
    return Recipe("whatever", tuple(variants), Metadata.COPYRIGHT)


def test_sniffing_limits_and_recipes_need_no_pillow() -> None:
    run(WITHOUT_PILLOW)


def test_a_warm_process_opens_nothing_imports_nothing_and_stays_single_threaded() -> None:
    asked = [*RECIPES.values(), whatever_a_recipe_may_ask_for()]
    recipes = [recipe.document() for recipe in asked]
    given = pickle.dumps((every_kind_of_source(), recipes))
    loaded, decoders, threads = json.loads(run(WARM, given))

    assert loaded == []
    assert threads == [1, 1], "running now, allowed to the decoder"
    assert not {"PIL.PsdImagePlugin", "PIL.EpsImagePlugin", "PIL.Jpeg2KImagePlugin"} & set(decoders)


@pytest.mark.parametrize("pillow_format", ["BMP", "TIFF", "PPM"])
def test_pillow_opens_nothing_but_what_is_allowed(pillow_format: str) -> None:
    picture = saved(quadrants(), pillow_format)

    with pytest.raises(InputRejected), reading(10**6):
        open_image(picture)


def test_an_older_pillow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL, "__version__", "12.3.0")

    with pytest.raises(Misconfigured, match=r"12\.3\.0 is older than 13\.0\.0"):
        check_installation()


def test_a_pillow_without_a_codec_is_refused_by_the_codecs_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "check", lambda name: name != "avif")

    with pytest.raises(Misconfigured, match="without avif"):
        check_installation()


def test_the_fingerprint_names_every_codec_that_writes_or_reads_pixels() -> None:
    parts = encoder_fingerprint(RECIPES["default"]).split()
    fingerprint = dict(part.split("/", 1) for part in parts)

    assert fingerprint.pop("recipe") == RECIPES["default"].hash
    assert fingerprint["pillow"] == PIL.__version__
    assert {
        "pipeline",
        "pillow",
        "jpeg",
        "zlib",
        "deflate",
        "webp",
        "avif",
        "aom",
        "dav1d",
        "lcms",
    } == set(fingerprint)
    assert "none" not in fingerprint.values()
