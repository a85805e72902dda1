"""Recipes: which there are, and which version of one a job is pinned to.

What is in force here when a job is submitted is what it is made by, whichever worker takes it, and
though the file changes before its turn comes. Producers name recipes; versions are ours to say.
"""

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.api.http.auth import AnyKey
from imagefleet.api.http.openapi import described
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.errors import RequestRejected
from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.kinds import ReprocessImages
from imagefleet.jobs.shapes.images import RecipeList, RecipeVariant, RecipeView
from imagefleet.store.images.recipes import names_one_version

_OURS: Final = "recipe_hashes is not for producers: the versions in force are taken."

router = APIRouter()


@router.get("/v1/recipes", **described("List recipes", RecipeList))
async def list_recipes(_key: AnyKey, tools: ToolsHere) -> Response:
    """What may be named as `recipe`, and which variants it makes, as this API has them now."""
    return answer(RecipeList(recipes=[_shown(recipe) for recipe in tools.recipes.values()]))


def _shown(recipe: Recipe) -> RecipeView:
    variants = [
        RecipeVariant(
            name=variant.name,
            fit=variant.fit,
            width=variant.width,
            height=variant.height,
            formats=list(variant.formats),
            types=[each.mime_type for each in variant.formats],
            quality=variant.quality,
            files=[f"{variant.name}.{each.extension}" for each in variant.formats],
        )
        for variant in recipe.variants
    ]
    return RecipeView(name=recipe.name, hash=recipe.hash, variants=variants)


async def versions_of_a_set(tools: Tools, wanted: ReprocessImages) -> Mapping[str, str]:
    """What the images of a set are made by, each by the version of its recipe; or why not."""
    if wanted.recipe_hashes is not None:
        raise RequestRejected("invalid_payload", _OURS)
    if wanted.recipe is not None:
        tools.recipe_of(wanted.recipe)
    name, _, version = (wanted.recipe_was or "").partition("@")
    if version:
        async with tools.pool.use("list_versions", "recipes") as connection:
            if not await names_one_version(connection, name, version):
                sentence = f"There is no one version {version} of a recipe {name}."
                raise RequestRejected("unknown_recipe", sentence)
    return tools.versions
