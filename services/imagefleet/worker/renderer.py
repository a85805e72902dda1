"""Have pictures rendered, and other work done, in children that have nothing to lose.

What may come out, besides a result: InputRejected, which the child found and which ends the job;
Child…, which say how the child came to its end; Unavailable, when no child could be had. A crash is
held against the job: a library that dies of a picture dies of it again.
"""

import asyncio
import json
import math
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Annotated, Final, Literal, Self, TypeAlias

import structlog
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from imagefleet.errors import FleetError, InputRejected, Misconfigured, Unavailable
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import RECIPES, Recipe
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.child import FRAME_HEADER, FRAME_MARK
from imagefleet.worker.child_nursery import Nursery
from imagefleet.worker.child_output import RenderedFiles, UntrueError, checked, remove
from imagefleet.worker.child_render import SOURCE_FILE, file_name
from imagefleet.worker.children import Child, Ending, Killed, Usage
from imagefleet.worker.sandbox import Confinement, hide_this_process
