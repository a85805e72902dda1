"""Bytes in, bytes out: what a picture is, whether we dare to touch it, and the variants made of it.

Everything here is pure computation. No event loop, no environment, no logging, no network: a
function's arguments decide its result, and the same source with the same recipe under the same
encoder fingerprint gives the same bytes. This is the only package that imports Pillow, and only
half of it does:

    headers/ sniff     what the first bytes say, read by our own parsers     no Pillow
    limits             how much of it we are willing to pay for              no Pillow
    recipes            which variants are wanted, and the file that says so  no Pillow
    lanes              whose pictures cost so much that others go first      no Pillow
    foretelling        what a picture takes in memory, by its head           no Pillow
    sizes              how large each variant is                             no Pillow
    placeholder        ThumbHash of RGBA bytes and back, the dominant colour  no Pillow
    codecs             the door to Pillow: formats, faults, sRGB
    sources            what a decoded file means: its pixels, and whose they are
    steps              the pipeline up to the largest size, as a list one can read
    attention          where most is to be seen in a picture
    composing          what of a scaled picture a variant shows, where in its box, under which mark
    graphics           which pictures are drawn, and how few colours they have
    encoding           pictures to bytes
    render             runs that list
    warming            the use of every codec before there are children
    samples            pictures of our own, to try the fleet with

The upper half serves processes that have no Pillow installed; they import those modules by name,
and this file imports nothing for the same reason.

A picture is untrusted until its last step. Its life is ordered by what each step may cost:

1. The header is parsed in bounded time by code that can only answer with facts or with
   InputRejected. The declared type is compared with what the bytes say and never believed.
2. Limits judge those facts before Pillow sees a byte: size, pixels, frames, metadata, and the
   number of scans of a JPEG, each of which would cost a pass over the whole picture. Of a whole
   file also what decoders do not mind: changed pixels of a PNG, missing restarts of a JPEG.
3. Pillow opens the file with five decoders allowed and no other reachable, and the size it reports
   is judged again, because two parsers may disagree about one file. This happens before draft(),
   which rewrites the size, and before load(), which allocates it.
4. Pixels are decoded once, shrunk once to the largest size wanted, and only then turned upright and
   converted to sRGB: both cost by the pixel. Every smaller size is made from the next larger one.
   A JPEG whose last pixel is the grey that its decoder puts where nothing was coded is decoded a
   second time, with bytes behind its pixels: if they change it, pixels are missing.
5. Every variant is encoded from a picture that carries nothing but pixels, with every field of the
   encoder given explicitly. No EXIF, GPS, XMP, comment or profile of the source can survive, nor
   what is below full transparency. A recipe may ask for artist and copyright: those words are
   written anew. Of the source's own bytes coded pixels alone are passed on, where they are smaller
   than ours and were seen to be nothing else (docs/decisions/0024).

What cannot be preserved is not dropped silently: each variant names it among its warnings. A
variant never has more pixels than its source; where the source is smaller than the box, the variant
is made at the source's size and says `not_enlarged`, so that every recipe always yields all of its
variants.

The limits make hostile input cheap to refuse; they do not make decoders correct. The process that
calls render() is expected to have nothing to lose and an impatient parent.
"""
