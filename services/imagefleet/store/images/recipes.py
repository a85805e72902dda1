"""Recipes by version: every one that was ever in force, known by the hash of its content.

A process stores its own before it takes any work, so a version that a job was pinned to can be
found, whoever pinned it, and whatever has become of the file since. Nothing deletes one. What is
shown of an image is found here too, by the version and the encoders that made it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from pydantic import TypeAdapter

from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.images import Made
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection, Pool

MOST_KEPT: Final = 32  # versions of others, in a process

REMEMBER_RECIPES: Final = """
INSERT INTO recipes (hash, name, content)
SELECT given.hash, given.name, given.content::jsonb
  FROM unnest($1::text[], $2::text[], $3::text[]) AS given (hash, name, content)
 ORDER BY given.hash, given.name
    ON CONFLICT DO NOTHING
"""


async def remember_recipes(connection: Connection, recipes: Iterable[Recipe]) -> None:
    """Store what is in force; what is stored already stays as it is."""
    known = list(recipes)
    await connection.execute(
        REMEMBER_RECIPES,
        [recipe.hash for recipe in known],
        [recipe.name for recipe in known],
        [json.dumps(recipe.document()) for recipe in known],
    )


FIND_RECIPE: Final = """
SELECT recipes.content FROM recipes WHERE recipes.hash = $1 LIMIT 1
"""


async def find_recipe(connection: Connection, name: str, version: str) -> Recipe | None:
    """The recipe with this hash, under this name; None if nobody stored it.

    Also where a newer release stored it and says more in it than this one can do.
    """
    content = await connection.fetchval(FIND_RECIPE, version)
    return None if content is None else _read(name, content)


def _read(name: str, content: Mapping[str, Any]) -> Recipe | None:
    try:
        recipe = Recipe.of(name, content)
    except (LookupError, TypeError, ValueError):
        return None
    return recipe if content.keys() <= recipe.document().keys() else None


LIST_VERSIONS: Final = """
SELECT recipes.hash
  FROM recipes
 WHERE recipes.name = $1 AND recipes.hash BETWEEN $2::text AND rpad($2::text, 32, 'f')
 LIMIT 2
"""


async def names_one_version(connection: Connection, name: str, prefix: str) -> bool:
    """Whether exactly one version of this name has a hash that begins like this."""
    return len(await connection.fetch(LIST_VERSIONS, name, prefix)) == 1


class StoredRecipes:
    """What others stored; each version is asked for once, as long as there is room for it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[str, Recipe] = {}

    async def find(self, name: str, version: str) -> Recipe | None:
        """The same as `find_recipe`."""
        recipe = self._known.get(version)
        if recipe is None:
            async with self._pool.use("find_recipe", "recipes") as connection:
                recipe = await find_recipe(connection, name, version)
            if recipe is not None:
                if len(self._known) >= MOST_KEPT:
                    del self._known[next(iter(self._known))]
                self._known[version] = recipe
        return recipe


# No tombstone is asked for: over one nothing is published, whatever was copied.
FIND_SHOWN: Final = """
SELECT jsonb_build_object(
           'source', to_jsonb(shown), 'placeholder', to_jsonb(shown), 'variants', made.variants)
  FROM images
  JOIN image_revisions AS shown
    ON shown.image_id = images.id AND shown.revision = images.revision
  CROSS JOIN LATERAL (
      SELECT jsonb_agg(jsonb_build_object('key', variants.key, 'facts', to_jsonb(variants)))
             AS variants
        FROM variants
       WHERE variants.image_id = shown.image_id AND variants.revision = shown.revision
  ) AS made
 WHERE images.id = $1 AND images.tenant_id = $2 AND shown.source_seq = $3 AND shown.encoder = $4
"""

_MADE: Final = TypeAdapter(Made)


async def find_shown(
    connection: Connection, image_id: UUID, tenant_id: TenantId, *, source_seq: int, encoder: str
) -> Made | None:
    """What is shown of an image, if it was made of this original in exactly this way."""
    made = await connection.fetchval(FIND_SHOWN, image_id, tenant_id, source_seq, encoder)
    return None if made is None else _MADE.validate_python(made)
