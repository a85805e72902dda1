"""An AVIF of ten or twelve bits a sample, which Pillow does not write: how large and deep, where.

Gradients, so that every row and column is another: {path, width, height, bits, whole, alpha}.
"""

import json
import sys

import pyvips  # type: ignore[import-not-found]  # the peers' environment has it

asked = json.loads(sys.argv[1])
across = pyvips.Image.xyz(asked["width"], asked["height"])
bands = [across[0] / asked["width"], across[1] / asked["height"], across[0] / asked["width"]]
bands += [across[1] / asked["height"]] if asked["alpha"] else []
picture = (bands[0].bandjoin(bands[1:]) * 65535).cast("ushort").copy(interpretation="rgb16")
picture.heifsave(
    asked["path"],
    compression="av1",
    encoder="aom",
    bitdepth=asked["bits"],
    Q=50,
    effort=0,
    subsample_mode="off" if asked["whole"] else "on",
)
print(json.dumps({}))
