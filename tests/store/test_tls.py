"""Postgres has to prove who it is where the URL says so; Debian's can, the wheel's cannot."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from imagefleet.errors import Misconfigured, Unavailable
from imagefleet.store.database import connect, open_pool
from imagefleet.store.schema.roles import describe_session
from tests.support.database import Server, of_debian, own_server, roomy_memory

PASSWORD: Final = "secret-word"
AWAY: Final = f"postgresql://nobody:{PASSWORD}@127.0.0.1:1/nothing"


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    """Whose signature is to be trusted, or not."""
    openssl(
        folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem",
    )  # fmt: skip
    return folder / f"{name}.pem"


@dataclass(frozen=True)
class Encrypted:
    """A server whose certificate is made out to 127.0.0.1."""

    server: Server
    trusted: Path
    stranger: Path

    def url(self, root: Path | None, *, host: str = "127.0.0.1", mode: str = "verify-full") -> str:
        url = self.server.url("postgres").replace("@127.0.0.1", f"@{host}")
        return f"{url}?sslmode={mode}" + (f"&sslrootcert={root}" if root else "")


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Encrypted]:
    software = of_debian("15")
    with tempfile.TemporaryDirectory(prefix="imagefleet-tls-", dir=roomy_memory()) as made:
        folder = Path(made)
        folder.chmod(0o711)
        trusted, stranger = authority(folder, "trusted"), authority(folder, "stranger")
        (folder / "host").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(
            folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=postgres",
            "-keyout", "server.key", "-out", "server.csr",
        )  # fmt: skip
        openssl(
            folder, "x509", "-req", "-in", "server.csr", "-days", "2", "-CA", "trusted.pem",
            "-CAkey", "trusted.key", "-CAcreateserial", "-extfile", "host", "-out", "server.pem",
        )  # fmt: skip
        key = folder / "server.key"
        key.chmod(0o600)
        if os.geteuid() == 0:  # the server is handed to nobody
            os.chown(key, pwd.getpwnam("nobody").pw_uid, -1)
        settings = {"ssl": "on", "ssl_cert_file": f"{folder}/server.pem", "ssl_key_file": f"{key}"}
        with own_server(software, settings) as server:
            yield Encrypted(server, trusted, stranger)


async def test_a_server_that_proves_who_it_is_is_spoken_to(encrypted: Encrypted) -> None:
    async with (
        open_pool(encrypted.url(encrypted.trusted), process="test") as pool,
        pool.connection() as connection,
    ):
        assert (await describe_session(connection)).tls == "TLSv1.3"


@pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
async def test_a_certificate_that_somebody_else_signed_is_refused(
    encrypted: Encrypted, mode: str
) -> None:
    with pytest.raises(Misconfigured, match=r"is refused: .*issuer.* sslrootcert") as raised:
        async with connect(encrypted.url(encrypted.stranger, mode=mode), process="test"):
            pytest.fail("it was trusted")
    assert "@" not in str(raised.value)


async def test_a_host_that_the_certificate_was_not_made_out_to_is_refused(
    encrypted: Encrypted,
) -> None:
    with pytest.raises(Misconfigured, match=r"is refused: .*'localhost'.* the host"):
        async with connect(encrypted.url(encrypted.trusted, host="localhost"), process="test"):
            pytest.fail("it was trusted")

    checked = encrypted.url(encrypted.trusted, host="localhost", mode="verify-ca")
    async with connect(checked, process="test") as connection:
        assert (await describe_session(connection)).tls


async def test_a_pool_that_opens_with_nobody_there_refuses_them_at_its_first_use(
    encrypted: Encrypted,
) -> None:
    """As the operators' of an API is: then it is an outage that a certificate may end."""
    async with open_pool(encrypted.url(encrypted.stranger), process="test", min_size=0) as pool:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            async with pool.connection():
                pytest.fail("it was trusted")


async def test_without_anybody_to_trust_nobody_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(Misconfigured, match="root certificate file"):
        async with connect(f"{AWAY}?sslmode=verify-full", process="test"):
            pytest.fail("connected")


@pytest.mark.parametrize("contents", [None, "", "no certificate"])
async def test_a_file_without_certificates_is_named(tmp_path: Path, contents: str | None) -> None:
    file = tmp_path / "root.pem"
    if contents is not None:
        file.write_text(contents)

    with pytest.raises(Misconfigured, match=r"sslrootcert .*root\.pem") as raised:
        async with connect(f"{AWAY}?sslmode=verify-full&sslrootcert={file}", process="test"):
            pytest.fail("connected")
    assert PASSWORD not in str(raised.value)


async def test_a_server_that_speaks_no_tls_is_not_spoken_to() -> None:
    with own_server() as server, pytest.raises(Unavailable, match="rejected SSL upgrade"):
        async with connect(f"{server.url('postgres')}?sslmode=require", process="test"):
            pytest.fail("connected")
