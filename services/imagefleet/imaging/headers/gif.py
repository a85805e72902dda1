"""GIF: the screen, the first frame, and a count of the frames."""

from dataclasses import replace

from imagefleet.imaging.headers.facts import (
    HeadEnded,
    HeaderFacts,
    ImageFormat,
    corrupt,
    uint,
)

_SCREEN_BYTES = 13
_FRAME_BYTES = 9
_EXTENSION, _FRAME = 0x21, 0x2C
_HAS_PALETTE, _PALETTE_BITS, _INTERLACED = 0x80, 0x07, 0x40
# Encoders fill blocks to 255 bytes, so a 50 MB file has some 200,000 of them.
_MAX_BLOCKS = 1_000_000


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
        self._blocks = 0

    def facts(self) -> HeaderFacts:
        try:
            self._run()
        except HeadEnded:
            if self._frames == 0:  # the size is not known before the first frame
                raise
            return replace(self._facts, animated=self._frames > 1)
        return replace(self._facts, frames=max(1, self._frames), animated=self._frames > 1)

    def _run(self) -> None:
        while (kind := uint(self._data, self._at, 1)) in (_FRAME, _EXTENSION):
            if kind == _FRAME:
                self._frame()
            else:
                self._at += 2
            self._skip_blocks()
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
        self._facts = replace(
            self._facts,
            width=max(self._facts.width or 0, x + width),
            height=max(self._facts.height or 0, y + height),
            progressive=interlaced,
        )

    def _skip_blocks(self) -> None:
        while length := uint(self._data, self._at, 1):
            self._at += 1 + length
            self._blocks += 1
            if self._blocks > _MAX_BLOCKS:
                raise corrupt(ImageFormat.GIF, "too many blocks")
        self._at += 1
        self._blocks += 1


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & _PALETTE_BITS) + 1) if flags & _HAS_PALETTE else 0
