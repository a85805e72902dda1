"""The figures of docs/images.md can be had again: of one small photo, in a moment."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.images import grain, saved


def test_what_drafts_and_methods_cost_is_told_for_any_photo(tmp_path: Path) -> None:
    photos, told = tmp_path / "photos", tmp_path / "told.json"
    photos.mkdir()
    (photos / "grain.jpg").write_bytes(saved(grain(400, 300)))

    subprocess.run(
        [sys.executable, "-m", "tests.bench.quality", "--photos", photos, "--json", told],
        check=True,
        capture_output=True,
    )

    tables = json.loads(told.read_text())
    assert {"1/2", "1/4", "1/8"} == {row["scale"] for row in tables["draft"]}
    assert {2, 3, 4, 5, 6} == {row["method"] for row in tables["method"]}
    assert all(0 < row["ssim"] <= 1.0001 for table in tables.values() for row in table)
