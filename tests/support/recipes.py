"""The recipes that are shipped, for tests of what is made by them."""

from typing import Final

from imagefleet.imaging.recipes.files import recipes_in_force

RECIPES: Final = recipes_in_force(None)
