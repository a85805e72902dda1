"""One small change of the product that some test must not let pass."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A text that stands exactly once in a file, what stands there instead, and who notices."""

    name: str
    """What is wrong then, in a few words."""
    file: str
    """Below `services/imagefleet/store/`, or the root for whatever begins with another folder."""
    old: str
    new: str
    noticed_in: str
    """Where the tests are, below `tests/store/`, or below `tests/`."""
    caught_by: tuple[str, ...]
    """Each of these must be red; a name without parameters, with one of them at least."""

    @property
    def path(self) -> Path:
        """The file, below the root."""
        below_store = Path("services/imagefleet/store", self.file)
        return below_store if (ROOT / below_store).is_file() else Path(self.file)

    @property
    def tests(self) -> tuple[str, ...]:
        """The names that pytest knows them by."""
        folder = "tests/store" if (ROOT / "tests/store" / self.noticed_in).is_file() else "tests"
        return tuple(f"{folder}/{self.noticed_in}::{name}" for name in self.caught_by)

    def occurrences(self, root: Path = ROOT) -> int:
        """How often the text stands in the file; once, or this mutation says nothing."""
        file = root / self.path
        return file.read_text().count(self.old) if file.is_file() else 0

    def applied(self, text: str) -> str:
        """The file's text with the change."""
        return text.replace(self.old, self.new)
