"""What the table of the lifecycle says of one edge."""

from imagefleet.jobs.lifecycle import TRANSITIONS, Role
from imagefleet.jobs.model import JobState


def is_legal(source: JobState | None, target: JobState, by: Role | None = None) -> bool:
    """Tell whether the lifecycle has this edge, and for this actor if one is named."""
    return any(
        edge.source is source and edge.target is target and (by is None or by in edge.by)
        for edge in TRANSITIONS
    )
