"""`imagefleet recipes`: what is made of images here, and files that say it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from imagefleet.cli.output import Columns, Part, Table, complain, print_json, section, show
from imagefleet.cli.reaching import asked_of
from imagefleet.cli.verbs import Json, call, group
from imagefleet.errors import Misconfigured
from imagefleet.imaging.recipes import MAX_SIDE, Recipe, VariantSpec
from imagefleet.imaging.recipes.files import recipes_in_force
from imagefleet.imaging.recipes.tables import RecipesFile
from imagefleet.jobs.shapes.rules import RecipeView
from imagefleet.settings import Recipes, load

app = group("What is made of images: the recipes of RECIPES_FILE, or those that are shipped.")

Known = TypeVar("Known")

Server = Annotated[bool, typer.Option("--server", help="Those in force in the API.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="TOML or JSON; docs/recipes.md.")]


@app.command("list")
def list_recipes(server: Server = False, as_json: Json = False) -> None:
    """List the recipes that are in force here, or with --server in the API.

    For example:

        RECIPES_FILE=recipes.toml imagefleet recipes list
        imagefleet recipes list --server
    """
    if server:
        _list([_line(recipe) for recipe in _of_api()], as_json=as_json)
        return
    _say_whose()
    _tell(_in_force(), as_json=as_json)


@app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The recipe's name.")],
    server: Server = False,
    as_json: Json = False,
) -> None:
    """Show one of them, with every variant; with --json all that it says.

    For example:

        imagefleet recipes show default
        imagefleet recipes show --server default
    """
    if server:
        view = _named(name, {recipe.name: recipe for recipe in _of_api()})
        show(view.model_dump(by_alias=True), lambda _: _seen_of_api(view), as_json=as_json)
        return
    recipe = _named(name, _in_force())
    _say_whose()
    show({**_line(recipe), **recipe.document()}, lambda _: _seen(recipe), as_json=as_json)


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Say what a file makes, or every fault of it, as a process would that starts with it.

    For example:

        imagefleet recipes check recipes.toml
    """
    recipes = recipes_in_force(file)
    with suppress(ModuleNotFoundError):  # without Pillow a worker is the first to look at pixels
        from imagefleet.imaging.composing import check_marks  # noqa: PLC0415 - no other verb waits

        check_marks(mark for recipe in recipes.values() for mark in recipe.marks)
    _tell(recipes, as_json=as_json)


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
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    told = {
        "recipes": [
            {"name": name, "was": was and was.hash, "hash": now and now.hash}
            for name, was, now in pairs
        ],
        "changes": [change for pair in pairs for change in _changes(*pair)],
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


def _say_whose() -> None:
    file = load(Recipes).file
    complain(f"in force here: the recipes {f'of {file}' if file else 'that are shipped'}")


def _of_api() -> list[RecipeView]:
    recipes = call(lambda client: client.recipes()).shape.recipes
    complain(f"in force in the API: {asked_of()}")
    return recipes


def _named(name: str, recipes: Mapping[str, Known]) -> Known:
    if name not in recipes:
        detail = f"there is no recipe {name}; known are: {', '.join(recipes)}"
        raise Misconfigured(detail)
    return recipes[name]


def _seen_of_api(recipe: RecipeView) -> Iterator[Part]:
    yield f"{recipe.name}  {recipe.hash}"
    yield Table(recipe.variants, {
        "variant": "name", "files": lambda variant: " ".join(variant.files), "fit": "fit",
        "box": lambda variant: f"{variant.width}x{variant.height}", "quality": "quality",
    })  # fmt: skip


def _tell(recipes: Mapping[str, Recipe], *, as_json: bool) -> None:
    _list([_line(recipe) for recipe in recipes.values()], as_json=as_json)


def _list(lines: list[dict[str, Any]], *, as_json: bool) -> None:
    formats: Columns = {"formats": lambda line: ", ".join(line["formats"])}
    columns = {**_as_named("name", "hash", "variants"), **formats}
    table = Table(lines, columns, {"drops": ("formats",)})
    show({"recipes": lines}, lambda _: table, as_json=as_json)


def _line(recipe: Recipe | RecipeView) -> dict[str, Any]:
    formats = dict.fromkeys(str(form) for variant in recipe.variants for form in variant.formats)
    count = len(recipe.variants)
    return {"name": recipe.name, "hash": recipe.hash, "variants": count, "formats": [*formats]}


def _as_named(*columns: str) -> Columns:
    return dict(zip(columns, columns, strict=True))


def _seen(recipe: Recipe) -> Iterator[Part]:
    yield f"{recipe.name}  {recipe.hash}"
    yield f"metadata {recipe.metadata}, truncated {recipe.truncated}"
    lines = [{"variant": name, **said} for name, said in _said_by(recipe).items() if name]
    columns = _as_named("variant", "fit", "box", "quality", "besides")
    yield Table(lines, columns, {"wraps": ("besides",)})


def _changes(name: str, before: Recipe | None, after: Recipe | None) -> Iterator[dict[str, object]]:
    """Each key that says another thing; of what only one of them has, all."""
    old, new = _said_by(before), _said_by(after)
    for variant in dict.fromkeys((*old, *new)):
        was, now = old.get(variant, {}), new.get(variant, {})
        for key in dict.fromkeys((*was, *now)):
            if was.get(key) != now.get(key):
                said = {"was": was.get(key), "now": now.get(key)}
                yield {"recipe": name, "variant": variant, "key": key, **said}


def _differences(told: Mapping[str, Any]) -> Iterator[Part]:
    columns = _as_named("name", "was", "hash")
    yield Table(told["recipes"], columns, {"none": "They make the same."})
    columns = _as_named("recipe", "variant", "key", "was", "now")
    yield from section(told["changes"], columns, wraps=("was", "now"))


def _said_by(recipe: Recipe | None) -> dict[str, dict[str, object]]:
    """What it says, by variant; of a watermark's picture the digest. As a whole: under no name."""
    if recipe is None:
        return {}
    about: dict[str, object] = {"metadata": recipe.metadata, "truncated": recipe.truncated}
    said = {"": about}
    for variant in recipe.variants:
        given = asdict(variant)
        if variant.watermark:
            given["watermark"]["image"] = sha256(variant.watermark.image.encode()).hexdigest()[:8]
        others = (f"{key} {given[key]}" for key in _PLAIN if given[key] != _PLAIN[key])
        said[f"{variant.name}.{'auto' if variant.or_smaller else variant.format}"] = {
            "fit": variant.fit,
            "box": f"{variant.width}x{variant.height}".replace(str(MAX_SIDE), "any"),
            "quality": variant.quality,
            "besides": ", ".join(others),
        }
    return said


_PLAIN: Final = {each.name: each.default for each in fields(VariantSpec)[6:]}  # behind `fit`
