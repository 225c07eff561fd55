"""`verl config`: the resolved configuration, the list of all keys, or the environment variables."""

from __future__ import annotations

from verl.config.command_line import Parser, add_config_arguments, read_arguments, write_output
from verl.errors import ConfigError


def run(argv: list[str]) -> int:
    """Prints what was asked for; returns 0.

    Raises:
        ConfigError: Settings are wrong, or options exclude each other.
    """
    arguments = read_arguments(_parser(), argv)
    lists = arguments.describe or arguments.env
    if lists and (arguments.config or arguments.recipe or arguments.overrides):
        option = "--describe" if arguments.describe else "--env"
        raise ConfigError(
            f"{option} lists what there is and takes no settings; leave out --config, --recipe, key=value"
        )
    # Imported here, so that --help answers at once.
    from verl.config.load import load_config
    from verl.config.show import describe, describe_environment, render

    if arguments.describe:
        text = describe()
    elif arguments.env:
        text = describe_environment()
    else:
        # Before the other overrides, where algorithm.type=... on the same command line still wins.
        recipe = [f"algorithm.type={arguments.recipe}"] if arguments.recipe is not None else []
        text = render(load_config(arguments.config, [*recipe, *arguments.overrides]))
    write_output(text)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="verl config",
        description="Prints the resolved configuration as YAML; what differs from the defaults is marked.",
    )
    add_config_arguments(parser)
    parser.add_argument("--recipe", metavar="NAME", help="use a recipe: the same as algorithm.type=NAME")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--describe", action="store_true", help="list every key: default, what it allows, meaning")
    what.add_argument("--env", action="store_true", help="list the environment variables")
    return parser
