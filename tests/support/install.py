"""The blocks of docs/install.md, by who runs them."""

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "install.md"
BLOCKS: Final = re.compile(r"^```(\S[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def marked() -> list[tuple[str, str]]:
    """Each with what it is marked as."""
    return BLOCKS.findall(PAGE.read_text(encoding="utf-8"))


def blocks(kind: str) -> list[str]:
    return [text for info, text in marked() if info == kind]
