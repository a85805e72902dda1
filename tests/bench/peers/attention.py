"""Where libvips cuts pictures: a list of [path, width, height] in, [left, top] of each out."""

import json
import sys

import pyvips  # type: ignore[import-not-found]  # the peers' environment has it

told = []
for path, width, height in json.loads(sys.argv[1]):
    picture = pyvips.Image.new_from_file(path)
    cut = picture.smartcrop(width, height, interesting="attention")
    told.append([-cut.xoffset, -cut.yoffset])
print(json.dumps({"cuts": told}))
