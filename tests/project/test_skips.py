"""The register of skipped tests keeps its word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.skips import Row, UnreadableRegisterError, read_register

pytest_plugins = ("pytester",)

ONE_OF_EACH = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="the moon is full")
def test_skipped():
    pass

@pytest.mark.parametrize("size", [1, 2])
def test_skips_itself(size):
    if size == 2:
        pytest.skip("too large")

@pytest.mark.xfail(reason="a known defect")
def test_expected_to_fail():
    assert False
"""
ALL_LISTED = """
| Test | Reason | When it runs |
|---|---|---|
| `test_moon.py::test_skipped` | the moon | new moon |
| `test_moon.py::test_skips_itself[*` | memory | at night |
| `test_moon.py::test_expected_to_fail` | a defect | once repaired |
"""
ONE_MISSING = "\n".join(ALL_LISTED.splitlines()[:-1])


def run(
    pytester: pytest.Pytester, *arguments: str, register: str | None, tests: str = ONE_OF_EACH
) -> pytest.RunResult:
    pytester.makepyfile(test_moon=tests)
    if register is not None:
        pytester.mkdir("tests")
        (pytester.path / "tests" / "SKIPS.md").write_text(register, encoding="utf-8")
    return pytester.runpytest_inprocess(
        "-p", "tests.support.skips", "-p", "no:randomly", "-p", "no:asyncio", *arguments
    )


@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_listed_tests_are_printed_and_pass(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    result = run(pytester, *arguments, register=ALL_LISTED)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "test_moon.py::test_expected_to_fail  (xfail: a known defect)",
            "test_moon.py::test_skipped  (skip: the moon is full)",
            "test_moon.py::test_skips_itself[[]2[]]  (skip: too large)",
        ]
    )
    result.stdout.no_fnmatch_line("FAILED*")


@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_an_unlisted_test_fails_the_run(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    result = run(pytester, *arguments, register=ONE_MISSING)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED: no row in * for test_moon.py::test_expected_to_fail"])


def test_a_run_without_a_register_allows_nothing(pytester: pytest.Pytester) -> None:
    result = run(pytester, register=None)

    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_module_that_skips_itself_is_seen(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    whole = "import pytest\npytest.skip('no moon', allow_module_level=True)"

    result = run(pytester, *arguments, register=None, tests=whole)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_moon.py  (skip: no moon)"])


def test_a_real_failure_keeps_its_exit_status(pytester: pytest.Pytester) -> None:
    result = run(pytester, "-x", register=ALL_LISTED, tests="def test_breaks(): assert 1 == 2")

    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_brackets_of_a_parametrised_test_stand_for_themselves() -> None:
    row = Row("test_a.py::test_b[x]", "why", "when")

    assert row.covers("test_a.py::test_b[x]")
    assert not row.covers("test_a.py::test_bx")


def test_a_row_with_an_empty_cell_is_refused(tmp_path: Path) -> None:
    register = tmp_path / "SKIPS.md"
    register.write_text("| a | b | c |\n|---|---|---|\n| `x.py` | | never |\n", encoding="utf-8")

    with pytest.raises(UnreadableRegisterError):
        read_register(register)


def test_the_projects_own_register_can_be_read(pytestconfig: pytest.Config) -> None:
    read_register(pytestconfig.rootpath / "tests" / "SKIPS.md")
