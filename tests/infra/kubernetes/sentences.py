"""Every sentence that a check may say, read from its source: each has to have been said once."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.infra.kubernetes import agreements, bounds, faults, living, scaling, wholeness
from tests.support.sources import parsed

MODULES: Final[tuple[ModuleType, ...]] = (faults, agreements, bounds, living, scaling, wholeness)


def sentences() -> Iterator[re.Pattern[str]]:
    """What is yielded by the checks, each with anything in the place of what it tells of."""
    for module in MODULES:
        for node in ast.walk(parsed(Path(str(module.__file__)))):
            match node:
                case ast.Yield(value=(ast.JoinedStr() | ast.Constant()) as said):
                    yield _pattern(said)
                case ast.YieldFrom(value=ast.GeneratorExp(elt=ast.JoinedStr() as said)):
                    yield _pattern(said)
                case _:
                    pass


def _pattern(said: ast.JoinedStr | ast.Constant) -> re.Pattern[str]:
    parts = said.values if isinstance(said, ast.JoinedStr) else [said]
    texts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in parts]
    return re.compile("".join(texts), re.DOTALL)
