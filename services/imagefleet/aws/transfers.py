"""Bytes on their way to S3 and back: cut into parts, hashed, written to a file."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

PART_BYTES: Final = 8 * 1024 * 1024  # S3 wants 5 MiB at least; two of these are held at most
CHUNK_BYTES: Final = 256 * 1024
SLOWEST_BYTES_PER_SECOND: Final = 512 * 1024  # a transfer slower than this counts as hung


def seconds_for(size_bytes: int) -> float:
    """How much longer a call may take because of what it carries."""
    return size_bytes / SLOWEST_BYTES_PER_SECOND


async def in_parts(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    """Cut a stream into parts of PART_BYTES; True marks the last, which may be shorter."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) > PART_BYTES:
            part = bytes(buffer[:PART_BYTES])
            del buffer[:PART_BYTES]
            yield part, False
    yield bytes(buffer), True


async def of_body(body: bytes | Path) -> AsyncIterator[bytes]:
    """Stream what is in memory or in a file."""
    if isinstance(body, bytes):
        yield body
        return
    with await asyncio.to_thread(body.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


class Digest:
    """SHA-256 of the whole, fed part by part, and of each part in the spelling that S3 compares."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        return self._whole.hexdigest()

    async def add_part(self, part: bytes) -> str:
        """Return the part's own checksum; in a thread, where a large part holds nobody up."""
        return await asyncio.to_thread(self._add_part, part)

    def add(self, chunk: bytes) -> None:
        self._whole.update(chunk)
        self.bytes += len(chunk)

    def _add_part(self, part: bytes) -> str:
        self.add(part)
        return base64.b64encode(hashlib.sha256(part).digest()).decode()


async def digest_of(chunks: AsyncIterator[bytes]) -> Digest:
    """Hash a stream that is kept nowhere."""
    digest = Digest()
    async for part, _ in in_parts(chunks):
        await digest.add_part(part)
    return digest


class Readable(Protocol):
    async def read(self, amt: int, /) -> bytes: ...


async def save(source: Readable, target: Path | int, *, max_bytes: int) -> Digest | None:
    """Write a stream to a path or an open file descriptor; None when it is longer than allowed."""
    digest = Digest()
    closes = isinstance(target, Path)
    with await asyncio.to_thread(lambda: open(target, "wb", closefd=closes)) as file:
        while chunk := await source.read(CHUNK_BYTES):
            digest.add(chunk)
            if digest.bytes > max_bytes:
                return None
            file.write(chunk)
    return digest
