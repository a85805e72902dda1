"""`imagefleet sweep`: what was removed from S3, and what is missing there."""

from imagefleet.cli.operating import ask, moment
from imagefleet.cli.output import ExitCode, Json, complain, finish, print_json, print_table, say
from imagefleet.client.api import Document


def sweep(as_json: Json = False) -> None:
    """Show what sweeping removed from S3 lately, and which objects are missing there.

    Maintenance sweeps every minute by itself; nobody has to ask for it.
    Exits with 1 when objects are missing.

    For example:

        imagefleet sweep
        imagefleet sweep --json | jq -r '.missing[].imageId'
    """
    found = ask("GET", "/v1/operator/sweep")
    if as_json:
        print_json(found)
    else:
        _show(found)
    finish(ExitCode.FAILED if found["missingInAll"] else ExitCode.DONE)


def _show(found: Document) -> None:
    least = "at least " if found["supersededIsAtLeast"] else ""
    say(f"{least}{found['superseded']} superseded versions wait for their time")
    walk = found.get("walk")
    say(*_walk(walk) if walk else ["no walk through the buckets yet"])
    rows = [
        (moment(one["periodStart"]), moment(one.get("finishedAt")), one.get("revisions"),
         one.get("uploads"), one.get("listed"), one.get("objects"), one.get("bytes"))
        for one in found["runs"]
    ]  # fmt: skip
    columns = (
        "period (UTC)",
        "finished (UTC)",
        "versions",
        "uploads",
        "listed",
        "objects",
        "bytes",
    )
    print_table(columns, rows)
    if not found["missing"]:
        return
    say("", f"{found['missingInAll']} objects are missing in S3:")
    print_table(
        ("bucket", "key", "tenant", "found (UTC)", "what helps"),
        [
            (one["bucket"], one["key"], one["tenant"], moment(one["foundAt"]), _help(one))
            for one in found["missing"]
        ],
    )
    if any(one["reprocess"] for one in found["missing"]):
        complain(
            "`imagefleet images reprocess IMAGE…` with a key of the tenant makes variants anew"
        )


def _walk(walk: Document) -> list[str]:
    ended = moment(walk.get("finishedAt"))
    where = f"through at {ended}" if ended else f"now in {walk['bucket']} behind {walk['after']!r}"
    counted = f"{walk['litter']} litter, {walk['swept']} swept, {walk['unknown']} unknown"
    begun = moment(walk["startedAt"])
    lines = [f"walk of {begun}: {where}; {walk['listed']} objects, of which {counted}"]
    if walk["heldBack"]:
        lines.append(f"{walk['heldBack']} originals are held back: is this their database?")
    return lines


def _help(missing: Document) -> str:
    if missing["reprocess"]:
        return "reprocess"
    return "restore or replace"
