"""Every protection that is broken on purpose."""

from typing import Final

from tests.mutations.keeping import KEEPING
from tests.mutations.ringing import RINGING
from tests.mutations.running import RUNNING
from tests.mutations.stopping import STOPPING
from tests.mutations.working import WORKING

MUTATIONS: Final = (*RUNNING, *WORKING, *RINGING, *STOPPING, *KEEPING)
