"""`imagefleet recipes`: what is made of images here, and files that say it."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from imagefleet.cli.output import Columns, Part, Table, print_json, section, show
from imagefleet.cli.verbs import Json, group
from imagefleet.errors import Misconfigured
from imagefleet.imaging.recipe_files import recipes_in_force
from imagefleet.imaging.recipe_tables import RecipesFile
from imagefleet.imaging.recipes import MAX_SIDE, Recipe, VariantSpec, Watermark
from imagefleet.settings import Recipes, load

app = group("What is made of images: the recipes of RECIPES_FILE, or those that are shipped.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="TOML or JSON; docs/recipes.md.")]


@app.command("list")
def list_recipes(as_json: Json = False) -> None:
    """List the recipes that are in force here.

    For example:

        RECIPES_FILE=recipes.toml imagefleet recipes list
    """
    _tell(_in_force(), as_json=as_json)


@app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The recipe's name.")],
    as_json: Json = False,
) -> None:
    """Show one of them, with every variant; with --json all that it says.

    For example:

        imagefleet recipes show default
    """
    recipes = _in_force()
    if name not in recipes:
        detail = f"there is no recipe {name}; known are: {', '.join(recipes)}"
        raise Misconfigured(detail)
    recipe = recipes[name]
    show({**_line(recipe), **recipe.document()}, lambda _: _seen(recipe), as_json=as_json)


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Say what a file makes, or every fault of it, as a process would that starts with it.

    For example:

        imagefleet recipes check recipes.toml
    """
    _tell(recipes_in_force(file), as_json=as_json)


@app.command()
def diff(
    file: File,
    newer: Annotated[
        Path | None, typer.Argument(metavar="NEWER", help="Another file to compare with it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what would change: from what is in force here to a file, or from one to another.

    Images keep what was made of them: `images reprocess --recipe-was` makes it anew.

    For example:

        imagefleet recipes diff recipes.toml
    """
    before = recipes_in_force(file) if newer else _in_force()
    after = recipes_in_force(newer or file)
    hashes = [
        {"name": name, "was": _hash(before.get(name)), "hash": _hash(after.get(name))}
        for name in dict.fromkeys((*before, *after))
    ]
    told = {
        "recipes": [each for each in hashes if each["was"] != each["hash"]],
        "changes": [
            change for name in after for change in _changes(name, before.get(name), after.get(name))
        ],
    }
    show(told, lambda _: _differences(told), as_json=as_json)


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of recipes files, which editors and checkers read.

    For example:

        imagefleet recipes schema > recipes.schema.json
    """
    draft = "https://json-schema.org/draft/2020-12/schema"
    print_json({"$schema": draft, **RecipesFile.model_json_schema()})


def _in_force() -> Mapping[str, Recipe]:
    return recipes_in_force(load(Recipes).file)


def _hash(recipe: Recipe | None) -> str | None:
    return None if recipe is None else recipe.hash


def _tell(recipes: Mapping[str, Recipe], *, as_json: bool) -> None:
    lines = [_line(recipe) for recipe in recipes.values()]
    columns: Columns = {
        "recipe": "name",
        "hash": "hash",
        "variants": "variants",
        "formats": lambda line: ", ".join(line["formats"]),
    }
    show({"recipes": lines}, lambda _: Table(lines, columns, whole=2), as_json=as_json)


def _line(recipe: Recipe) -> dict[str, Any]:
    formats = {form.value: None for variant in recipe.variants for form in variant.formats}
    count = len(recipe.variants)
    return {"name": recipe.name, "hash": recipe.hash, "variants": count, "formats": [*formats]}


def _seen(recipe: Recipe) -> Iterator[Part]:
    yield f"{recipe.name}  {recipe.hash}"
    yield f"metadata {recipe.metadata}, truncated {recipe.truncated}"
    columns: Columns = {
        "variant": _name,
        "fit": "fit",
        "box": _box,
        "quality": "quality",
        "besides": lambda variant: _in_words(dict(_besides(variant))),
    }
    yield Table(recipe.variants, columns, whole=1)


def _name(variant: VariantSpec) -> str:
    return f"{variant.name}.{'auto' if variant.or_smaller else variant.format}"


def _box(variant: VariantSpec) -> str:
    sides = (variant.width, variant.height)
    return "x".join("any" if side == MAX_SIDE else str(side) for side in sides)


def _besides(variant: VariantSpec) -> Iterator[tuple[str, object]]:
    """What is not as it is where nothing is said; of a watermark's picture its digest."""
    for field in fields(variant):
        said = getattr(variant, field.name)
        if field.default in (MISSING, said) or field.name == "fit":
            continue
        match said:
            case Watermark():
                digest = sha256(said.image.encode()).hexdigest()[:8]
                said = {**asdict(said), "image": digest}
            case tuple():
                said = [f"{form} {quality}" for form, quality in said]
            case _:
                pass
        yield field.name, said


def _said(recipe: Recipe) -> dict[str, dict[str, object]]:
    """What it says, by variant; of the recipe as a whole under no name."""
    about: dict[str, object] = {"metadata": recipe.metadata, "truncated": recipe.truncated}
    return {"": about} | {
        _name(variant): {
            "fit": variant.fit,
            "box": _box(variant),
            "quality": variant.quality,
            **dict(_besides(variant)),
        }
        for variant in recipe.variants
    }


def _changes(name: str, before: Recipe | None, after: Recipe | None) -> Iterator[dict[str, object]]:
    """Each key that says another thing; of a variant that only one of them has, all in one."""
    if before is None or after is None or before.hash == after.hash:
        return
    old, new = _said(before), _said(after)
    changes: list[tuple[str, str, object, object]] = []
    for variant in dict.fromkeys((*old, *new)):
        was, now = old.get(variant, {}), new.get(variant, {})
        if was and now:
            keys = [key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]
            changes += ((variant, key, was.get(key), now.get(key)) for key in keys)
        else:
            changes.append((variant, "", _in_words(was), _in_words(now)))
    for variant, key, earlier, later in changes or [("", "order", [*old][1:], [*new][1:])]:
        yield {"recipe": name, "variant": variant, "key": key, "was": earlier, "now": later}


def _in_words(said: Mapping[str, object]) -> str | None:
    return ", ".join(f"{key} {it}" for key, it in said.items()) or None


def _differences(told: Mapping[str, Any]) -> Iterator[Part]:
    if not told["recipes"]:
        yield "They make the same."
        return
    yield Table(told["recipes"], {"recipe": "name", "was": "was", "hash": "hash"}, whole=3)
    columns = ("recipe", "variant", "key", "was", "now")
    yield from section(told["changes"], dict(zip(columns, columns, strict=True)))
