"""The command line: `loopwright --help`. TensorFlow is imported by what trains, and only there."""

from typing import Annotated

import typer

from loopwright import recipes
from loopwright.errors import ConfigurationError, LoopwrightError

app = typer.Typer(
    help="You write the training step; Loopwright owns everything around it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def about() -> None:
    """You write the training step; Loopwright owns everything around it."""


@app.command()
def verify(
    recipe: Annotated[str, typer.Argument(help="What to train: the name of a recipe.")],
    kills: Annotated[int, typer.Option(help="How often it is killed.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Decides the moments.")] = 0,
) -> None:
    """Trains a recipe, kills it at random moments, starts it again, and compares every bit."""
    from loopwright.verifying import verify as verify_recipe

    recipes.require(recipe)
    verdict = verify_recipe(recipe, kills=kills, seed=seed, say=typer.echo)
    typer.echo(str(verdict))
    if not verdict.is_exact:
        raise typer.Exit(1)


def main() -> None:
    """Runs the command line; what a person did wrong is told in words, without a stack."""
    try:
        app()
    except LoopwrightError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None
