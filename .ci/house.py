"""Count the house: how many rooms there are, how large they are, and how many lead to one other.

    .ci/house.py [--at REVISION] [--check] [--names]

Prints every figure beside the one of the commit that the tree was redrawn from, with their ratio
and the ceiling. With `--names` it also says which modules, names and pairs were counted; with
`--check` it ends with 1 when a ceiling is passed. Needs nothing but Python, and git for `--at`.

What is counted is services/imagefleet. A module is a file with more than 25 lines or another name
than `__init__`. A code line has a token that is neither comment nor docstring; the text of a
statement is code. A module's readers are those that import it or something out of it.
"""

import argparse
import ast
import io
import itertools
import statistics
import subprocess
import sys
import tarfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "services/imagefleet"

SHORT: Final = 25  # lines; an `__init__` of so few only says what its package is
FEWEST_FIELDS: Final = 5  # of a class that may be nearly the same as another
SHARED: Final = 0.8  # of the smaller one's fields

# Who puts a process together reads each of its parts, often alone: nothing could be merged there.
COMPOSES: Final = frozenset({"__main__", "main", "app"})  # last names
COMPOSES_OR_KEEPS: Final = frozenset(
    {
        "imagefleet.embedded.edge.server",
        "imagefleet.embedded.up",
        "imagefleet.imaging.sniff",
        "imagefleet.worker.handlers",
    }
)

_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is counted; each is better when it is less."""

    modules: int
    code_lines: int
    one_reader: int
    """Modules that one other reads."""
    one_reader_inside: int
    """Those of them whose reader neither composes a process nor keeps a registry."""
    worker_modules: int
    """Of worker/, besides handlers/."""
    names_twice: int
    """Names that more than one class has."""
    pairs: int
    """Of classes that say nearly the same fields."""
    module_median: int
    module_p90: int
    function_median: int
    function_p90: int
    function_max: int


class Ceiling(NamedTuple):
    """How much there may be: a share of what there was, or a number."""

    share: float | None = None
    most: int | None = None
    grows: bool = False
    """With what is built anew: see GROWN."""

    def of(self, before: int) -> int | None:
        if self.share is None:
            return self.most
        return int(before * self.share * (growth() if self.grows else 1))


BEFORE: Final = Figures(
    modules=267,
    code_lines=32_046,
    one_reader=109,
    one_reader_inside=47,
    worker_modules=29,
    names_twice=48,
    pairs=63,
    module_median=142,
    module_p90=284,
    function_median=7,
    function_p90=20,
    function_max=73,
)
"""As counted at commit aca072d."""

CEILINGS: Final[Mapping[str, Ceiling]] = {
    "modules": Ceiling(share=0.77, grows=True),
    "code_lines": Ceiling(share=0.92, grows=True),
    "one_reader_inside": Ceiling(share=0.55, grows=True),
    "worker_modules": Ceiling(most=18),
    "names_twice": Ceiling(most=10),
    "pairs": Ceiling(most=10),
    "module_median": Ceiling(most=150),
    "module_p90": Ceiling(most=300),
    "function_median": Ceiling(share=1.0),
    "function_p90": Ceiling(share=1.0),
    "function_max": Ceiling(share=1.0),
}

GROWN: Final[Mapping[str, int]] = {
    "recipes from a file, focal points, memory by the header, lossless graphics": 1_900,
    "the surface: answers, uploads as jobs, pages, a terminal that is read, originals": 2_900,
    "a way to deploy it: what scales it, capacity, poolers, plans, doctors in the pod": 1_100,
    "the console, and what it asks for: rollups, bulk orders, previews, images of all": 5_000,
    "watching it: service levels, longer histograms, a status, a quiet start": 1_000,
}
"""What the product could not do at BEFORE, and the code lines that were set aside for it before it
was built (docs/decisions/0017). What mends or quickens what was there is no entry here."""


def growth() -> float:
    """How much larger the house may be than what stood at BEFORE had to become."""
    return 1 + sum(GROWN.values()) / (BEFORE.code_lines * 0.92)


@dataclass(frozen=True, slots=True)
class Source:
    """One file, read once."""

    path: str
    """Below services/imagefleet."""
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """What it is imported by."""
        parts = ("imagefleet", *Path(self.path).with_suffix("").parts)
        return ".".join(parts).removesuffix(".__init__")

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_module(self) -> bool:
        return Path(self.path).name != "__init__.py" or self.lines > SHORT


class Shape(NamedTuple):
    """A class and the fields that it says itself."""

    module: str
    name: str
    fields: frozenset[str]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class House:
    """A tree of sources, and what there is to say about it."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Texts by path below services/imagefleet."""
        self.sources = [
            Source(path, text, ast.parse(text))  # noqa: TID251 - a script of its own leaves nothing
            for path, text in sorted(texts.items())
        ]
        self._known = frozenset(source.name for source in self.sources)
        self.readers = self._readers()

    def figures(self) -> Figures:
        code = [code_lines(source) for source in self.sources]
        lengths = [source.lines for source in self.sources]
        functions = [*self._lengths_of_functions()]
        alone = self.with_one_reader()
        return Figures(
            modules=sum(source.is_module for source in self.sources),
            code_lines=sum(map(len, code)),
            one_reader=len(alone),
            one_reader_inside=sum(not is_composed(reader) for reader in alone.values()),
            worker_modules=sum(
                source.is_module and _is_of_the_worker(source.name) for source in self.sources
            ),
            names_twice=len(self.names_twice()),
            pairs=len(self.pairs()),
            module_median=_median(lengths),
            module_p90=_p90(lengths),
            function_median=_median(functions),
            function_p90=_p90(functions),
            function_max=max(functions, default=0),
        )

    def with_one_reader(self) -> dict[str, str]:
        """By module, who alone reads it."""
        return {
            module: next(iter(readers))
            for module, readers in sorted(self.readers.items())
            if len(readers) == 1
        }

    def shapes(self) -> list[Shape]:
        return [
            Shape(source.name, node.name, _fields(node))
            for source in self.sources
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ClassDef)
        ]

    def names_twice(self) -> dict[str, list[str]]:
        """Where the classes are that share a name."""
        where: dict[str, list[str]] = defaultdict(list)
        for shape in self.shapes():
            where[shape.name].append(shape.module)
        return {name: modules for name, modules in sorted(where.items()) if len(modules) > 1}

    def pairs(self) -> list[tuple[Shape, Shape]]:
        """Classes of which one has at least four fifths of the other's fields."""
        large = [shape for shape in self.shapes() if len(shape.fields) >= FEWEST_FIELDS]
        return [pair for pair in itertools.combinations(large, 2) if _nearly_the_same(*pair)]

    def _readers(self) -> dict[str, set[str]]:
        readers: dict[str, set[str]] = defaultdict(set)
        for source in self.sources:
            for imported in self._imports(source):
                readers[imported].add(source.name)
        return readers

    def _imports(self, source: Source) -> Iterator[str]:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and node.module in self._known:
                inner = (f"{node.module}.{one.name}" for one in node.names)
                yield from (name if name in self._known else node.module for name in inner)
            elif isinstance(node, ast.Import):
                yield from (one.name for one in node.names if one.name in self._known)

    def _lengths_of_functions(self) -> Iterator[int]:
        for source in self.sources:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield (node.end_lineno or node.lineno) - node.lineno + 1


def code_lines(source: Source) -> set[int]:
    """The numbers of its lines that hold more than comments and docstrings."""
    said = {
        line
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Expr) and _is_text(node.value)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    held = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return held - said


def is_composed(reader: str) -> bool:
    """Whether this one puts a process together or keeps a registry."""
    return reader.rpartition(".")[2] in COMPOSES or reader in COMPOSES_OR_KEEPS


def _is_of_the_worker(module: str) -> bool:
    worker = "imagefleet.worker."
    return module.startswith(worker) and not module.startswith(f"{worker}handlers")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _fields(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        said.target.id
        for said in node.body
        if isinstance(said, ast.AnnAssign) and isinstance(said.target, ast.Name)
    )


def _nearly_the_same(one: Shape, other: Shape) -> bool:
    smaller = min(len(one.fields), len(other.fields))
    return len(one.fields & other.fields) >= SHARED * smaller


def _median(values: Sequence[int]) -> int:
    return round(statistics.median(values or [0]))


def _p90(values: Sequence[int]) -> int:
    return sorted(values or [0])[int(len(values) * 0.9)]


def on_disk(root: Path = ROOT) -> dict[str, str]:
    """The texts of the tree as it lies there."""
    package = root / PACKAGE
    return {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
    }


def at(revision: str, root: Path = ROOT) -> dict[str, str]:
    """The texts of the tree as that commit has it."""
    git = ["git", "-C", str(root), "archive", revision, PACKAGE]
    packed = subprocess.run(git, capture_output=True, check=True).stdout  # noqa: S603 - git's own
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                texts[member.name.removeprefix(f"{PACKAGE}/")] = file.read().decode()
    return texts


def table(now: Figures, before: Figures = BEFORE) -> list[str]:
    """One line a figure: then, now, the ratio, and the ceiling where there is one."""
    rows = [f"{'':<20}{'then':>8}{'now':>8}{'ratio':>8}{'ceiling':>9}"]
    over = too_many(now, before)
    then = asdict(before)
    for name, count in asdict(now).items():
        ceiling = CEILINGS[name].of(then[name]) if name in CEILINGS else None
        ratio = count / then[name] if then[name] else 1.0
        told = f"{name:<20}{then[name]:>8,}{count:>8,}{ratio:>8.2f}"
        told += "" if ceiling is None else f"{ceiling:>9,}"
        rows.append(told + ("  too many" if name in over else ""))
    return rows


def too_many(now: Figures, before: Figures = BEFORE) -> dict[str, int]:
    """By how much each figure passes its ceiling, of those that do."""
    counts, then = asdict(now), asdict(before)
    allowed = {name: ceiling.of(then[name]) for name, ceiling in CEILINGS.items()}
    return {
        name: counts[name] - most
        for name, most in allowed.items()
        if most is not None and counts[name] > most
    }


def names(house: House) -> Iterator[str]:
    """What stands behind the counts that a reader can do something about."""
    yield "\none reader, which is no place where things are put together:"
    for module, reader in house.with_one_reader().items():
        if not is_composed(reader):
            yield f"  {module} <- {reader}"
    yield "\nnames of several classes:"
    for name, modules in house.names_twice().items():
        yield f"  {name}: {', '.join(modules)}"
    yield "\nclasses with nearly the same fields:"
    for one, other in house.pairs():
        yield f"  {one}, {other}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="house", description="Count the house.")
    parser.add_argument("--at", metavar="REVISION", help="another commit than what lies here")
    parser.add_argument("--check", action="store_true", help="fail when a ceiling is passed")
    parser.add_argument("--names", action="store_true", help="say what was counted")
    given = parser.parse_args(arguments)
    house = House(at(given.at) if given.at else on_disk())
    figures = house.figures()
    lines = [*table(figures), *(names(house) if given.names else ())]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if given.check and too_many(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
