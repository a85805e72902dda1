"""What a test turns of a process: variables that the next of its kind begins with.

As a manifest would change them between two pods. Two are no settings of the product: with
`NEVER_BEGINS` a process stands there and is nothing, as a pod that nobody can place; with
`VOLUME_BYTES` its temporary files lie in a volume of that size, which fills up with them.
"""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any


def turn(path: str, process: str) -> None:
    """Take what was turned of this kind of process, if anything was."""
    if not Path(path).exists():
        return
    turned = json.loads(Path(path).read_text()).get(process, {})
    os.environ.update(turned)  # noqa: TID251 - before anything of the product reads it
    apply(turned)


def apply(turned: dict[str, str]) -> None:
    if "NEVER_BEGINS" in turned:
        signal.pause()
    if "VOLUME_BYTES" in turned:
        _bound_disk(int(turned["VOLUME_BYTES"]))


def _bound_disk(size: int) -> None:
    usage: Any = shutil.disk_usage

    def of_the_volume(path: str) -> object:
        folder = Path(tempfile.gettempdir())
        if Path(path) != folder:
            return usage(path)
        used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        return type(usage(path))(size, used, max(0, size - used))

    shutil.disk_usage = of_the_volume  # type: ignore[assignment]
