"""What is uploaded where a schema says only that it is bytes: pictures, pieces, and none."""

from typing import Final

from tests.support.http import a_jpeg, a_png
from tests.support.images import quadrants, saved

PICTURES: Final = (
    *(a_jpeg(), a_png(), saved(quadrants(64, 40), "WEBP"), saved(quadrants(64, 40), "GIF")),
    *(a_jpeg()[:200], a_jpeg()[:-30], a_png()[:60]),
    *(b"", b"GIF89a", b"no picture", b'{"uploadId": null}'),
)
