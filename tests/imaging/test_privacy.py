"""Nothing of a file but its pixels leaves: asserted on the bytes that were made, not on intent."""

from __future__ import annotations

import pytest

from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import RECIPES
from imagefleet.imaging.render import render
from tests.support.images import CANARY, opened, talkative

# What introduces metadata in the formats we write.
TRACES = [
    CANARY,
    b"Exif",
    b"EXIF",
    b"http://ns.adobe.com",
    b"XMP ",
    b"ICC_PROFILE",
    b"ICCP",
    b"acsp",
]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "GIF", "AVIF", "MPO"])
def test_no_word_of_the_source_is_in_any_output(pillow_format: str, recipe: str) -> None:
    source = talkative(pillow_format)
    outputs: list[bytes] = []

    made = render(
        source, RECIPES[recipe], Limits(), lambda _name, _format, data: outputs.append(data)
    )

    assert CANARY in source
    assert len([each for each in made.variants if each.same_as is None]) == len(outputs)
    for encoded in outputs:
        assert not [trace for trace in TRACES if trace in encoded]
        assert not dict(opened(encoded).getexif())
        assert not {"comment", "xmp", "icc_profile", "exif", "photoshop"} & set(
            opened(encoded).info
        )


def test_the_comment_of_a_gif_is_not_carried_into_a_jpeg() -> None:
    """Pillow hands a picture's comment on to the next file, unless it is told not to."""
    outputs: dict[str, bytes] = {}

    def sink(_name: str, image_format: str, encoded: bytes) -> None:
        outputs[image_format] = encoded

    render(talkative("GIF"), RECIPES["default"], Limits(), sink)

    assert b"\xff\xfe" not in outputs["jpeg"][:400]
