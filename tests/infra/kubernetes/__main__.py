"""`python -m tests.infra.kubernetes [INSTALLATION ...]`: render, and say what does not agree."""

import sys

from tests.infra.kubernetes.faults import faults_of
from tests.infra.kubernetes.rendering import STEPS, rendered
from tests.support.wheels import NoPrograms


def main() -> int:
    """Return 1 where there is a fault; where nothing can be rendered, say so and return 0."""
    found = []
    for installation in sys.argv[1:] or STEPS:
        try:
            manifests = rendered(installation)
        except NoPrograms as why:
            sys.stdout.write(f"SKIPPED: {why}; the manifests of Kubernetes were not rendered\n")
            return 0
        found += [f"infra/k8s, {installation}: {fault}" for fault in faults_of(manifests)]
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
