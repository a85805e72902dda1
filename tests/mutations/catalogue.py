"""Every protection that is broken on purpose."""

from typing import Final

from tests.mutations.keeping import KEEPING
from tests.mutations.running import RUNNING

MUTATIONS: Final = (*RUNNING, *KEEPING)
