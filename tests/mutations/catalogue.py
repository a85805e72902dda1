"""Every protection that is broken on purpose."""

from typing import Final

from tests.mutations.keeping import KEEPING
from tests.mutations.ringing import RINGING
from tests.mutations.running import RUNNING

MUTATIONS: Final = (*RUNNING, *RINGING, *KEEPING)
