"""Sources as trees.

CPython 3.11 counts the depth of a tree that it makes in one place for the whole process. When the
collector comes by meanwhile, and what it finds formats a traceback (as the exception of a task that
nobody awaited does), that parses too, for its carets, and the outer parse ends with a SystemError
(depth mismatch). So no test parses while the collector may come.
"""

import ast
import gc
from pathlib import Path


def parsed(source: Path | str) -> ast.Module:
    """The tree of a file, or of a text."""
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)  # noqa: TID251 - this is the place
    finally:
        if collecting:
            gc.enable()
