"""Real files through the whole decode path, beside what a browser shows of them.

    make corpus                          # or ARGS="--only webp --most 100"
    make corpus ARGS=--smoke             # a few files of our own, without a network

Files are fetched by package from the indexes that this machine has set up for pip, npm and apt, in
the versions of packages.txt, and kept in .bench/corpus: none is in the repository. `--pin` writes
down today's versions. What is there already is not fetched again; `make clean` removes it.
Every file is rendered by a child of the worker's own renderer, by the default recipe and within
the default limits; its upright size and its largest variant are compared with what Chromium draws
of the file. Judged is the way to the pixels: that variant made once more, without loss. What it
differs by as it is published, at the recipe's quality, stands beside it. The figures are means
over all pixels of the difference in levels, of 255. What is drawn, of PNG and WebP, is made once
more in its own format and size, and may not be larger than it was.
"""
