"""`python -m imagefleet.telemetry.probe`: asks the process beside it whether it lives; 0 is yes.

For a container's own health check, where there is no curl. It reads the same variables as the
process, so it asks at the same port.
"""

import http.client
import sys
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.settings import Telemetry, load

WITHIN: Final = 3.0  # seconds
ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - listened at, never asked


def main() -> int:
    """Ask /healthz, and pass on what it says."""
    try:
        settings = load(Telemetry)
    except Misconfigured as error:
        sys.stderr.write(f"{error.detail}\n")
        return 2
    host = ANYWHERE.get(settings.health_host, settings.health_host)
    connection = http.client.HTTPConnection(host, settings.health_port, timeout=WITHIN)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"no answer at {host}:{settings.health_port}: {error!r}\n")
        return 1
    finally:
        connection.close()
    sys.stdout.write(f"{said}\n")
    return 0 if answer.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
