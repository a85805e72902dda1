"""Files that hold what is seen from outside; `make golden` writes them anew."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "project" / "golden"
OPTION: Final = "--write-golden"


@dataclass(frozen=True, slots=True)
class Golden:
    writes: bool

    def holds(self, name: str, content: bytes) -> None:
        """The file of this name holds exactly this, and the end of its last line."""
        file = FOLDER / name
        if self.writes:
            file.write_bytes(content + b"\n")
        expected = file.read_bytes().decode().splitlines()
        assert expected == content.decode().splitlines(), f"{name}: if it is meant, `make golden`"
