"""GIF: the screen, the first frame, and a count of the frames."""

from dataclasses import replace

from imagefleet.imaging.headers.facts import (
    MOST_FRAMES,
    HeadEnded,
    HeaderFacts,
    corrupt,
    too_many_parts,
    uint,
)
from imagefleet.jobs.images import ImageFormat

_SCREEN_BYTES = 13
_FRAME_BYTES = 9
_EXTENSION, _FRAME = 0x21, 0x2C
_HAS_PALETTE, _PALETTE_BITS, _INTERLACED = 0x80, 0x07, 0x40
# Before a frame stands one extension, which says how long it is shown; a comment may be there too.
_MAX_PIECES = 3 * MOST_FRAMES
# A frame and what is said of it take four blocks beside its pixels, whose blocks encoders fill to
# 255 bytes: a fourth of that is allowed.
_MAX_BLOCKS_OF_FRAMES = 5 * MOST_FRAMES
_FEWEST_BYTES_A_BLOCK = 64


def gif_facts(data: bytes) -> HeaderFacts:
    flags = uint(data, 10, 1)
    facts = HeaderFacts(
        ImageFormat.GIF, uint(data, 6, 2, "little"), uint(data, 8, 2, "little"), frames=None
    )
    return _Walk(data, _SCREEN_BYTES + _palette_bytes(flags), facts).facts()


class _Walk:
    """Frame after frame, with one budget of blocks for all of them."""

    def __init__(self, data: bytes, at: int, facts: HeaderFacts) -> None:
        self._data = data
        self._at = at
        self._facts = facts
        self._frames = 0
        self._blocks_left = _MAX_BLOCKS_OF_FRAMES + len(data) // _FEWEST_BYTES_A_BLOCK

    def facts(self) -> HeaderFacts:
        try:
            self._run()
        except HeadEnded:
            if self._frames == 0:  # the size is not known before the first frame
                raise
            return replace(self._facts, animated=self._frames > 1)
        return replace(self._facts, frames=max(1, self._frames), animated=self._frames > 1)

    def _run(self) -> None:
        for _ in range(_MAX_PIECES):
            kind = uint(self._data, self._at, 1)
            if kind not in (_FRAME, _EXTENSION) or self._frames > MOST_FRAMES:
                break
            if kind == _FRAME:
                self._frame()
            else:
                self._at += 2
            self._skip_blocks()
        else:
            raise too_many_parts(ImageFormat.GIF, f"more than {_MAX_PIECES} frames and extensions")
        if self._frames == 0:
            raise corrupt(ImageFormat.GIF, "no frame")

    def _frame(self) -> None:
        at = self._at + 1
        flags = uint(self._data, at + 8, 1)
        if self._frames == 0:
            self._widen(at, interlaced=bool(flags & _INTERLACED))
        self._frames += 1
        self._at = at + _FRAME_BYTES + _palette_bytes(flags) + 1  # and the LZW code size

    def _widen(self, at: int, *, interlaced: bool) -> None:
        """A first frame larger than its screen widens the screen; decoders do the same."""
        x, y, width, height = (uint(self._data, at + 2 * i, 2, "little") for i in range(4))
        box = (x, y, x + width, y + height)
        wide, high = max(self._facts.width or 0, box[2]), max(self._facts.height or 0, box[3])
        self._facts = replace(
            self._facts,
            width=wide,
            height=high,
            progressive=interlaced,
            first_frame=None if box == (0, 0, wide, high) else box,
        )

    def _skip_blocks(self) -> None:
        data, at = self._data, self._at
        try:
            for left in range(self._blocks_left, 0, -1):
                length = data[at]
                at += 1 + length
                if length == 0:
                    self._at, self._blocks_left = at, left - 1
                    return
        except IndexError:
            raise HeadEnded from None
        raise too_many_parts(ImageFormat.GIF, "too many blocks")


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & _PALETTE_BITS) + 1) if flags & _HAS_PALETTE else 0
