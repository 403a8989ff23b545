"""Parts that the commands of `flowstone pipeline` share: the directory argument, exit statuses, Spark's output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowstone.cli.common.connection_options import client_file
from flowstone.cli.common.errors import CommandError

if TYPE_CHECKING:
    from flowstone.pipeline.model import PipelineModel

# As in sysexits.h: supervisors of processes tell by them whether to start a pipeline again.
EXIT_DECLARATION = 78  # EX_CONFIG: it cannot run as it is declared; starting it again does not help
EXIT_LATER = 75  # EX_TEMPFAIL: it may run later as it is

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The pipeline's directory.")]
Master = Annotated[str, typer.Option(metavar="URL", help="Spark's master, such as local[4] or spark://host:7077.")]
PipelineBootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="FLOWSTONE_BOOTSTRAP",
        metavar="HOST:PORT",
        help="The broker's address; default: the one that the pipeline declares.",
    ),
]


def load_model(directory: Path, bootstrap: str | None = None) -> PipelineModel:
    """Return the pipeline of a directory. Raises CommandError if what it needs is missing or too old.

    With `bootstrap`, which may be empty, it can be used to connect to a broker.
    """
    try:
        import pyspark  # noqa: F401
        import yaml  # noqa: F401

        import pyspark_flowstone.versions  # noqa: F401
    except ImportError as error:
        if error.name is None:  # PySpark is too old
            raise CommandError(str(error)) from None
        raise CommandError(
            f"pipelines need the package {error.name}; install it with `pip install 'flowstone[pipeline]'`"
        ) from None
    from flowstone.pipeline.authoring.loading import load
    from flowstone.pipeline.connecting import connected

    model = load(directory)
    return model if bootstrap is None else connected(model, bootstrap, client_file())


@contextmanager
def exit_statuses() -> Iterator[None]:
    """Give the errors of pipelines their exit statuses."""
    from flowstone.pipeline.errors import PipelineError, TryLater

    try:
        yield
    except PipelineError as error:
        failure = CommandError(str(error))
        failure.exit_status = EXIT_LATER if isinstance(error, TryLater) else EXIT_DECLARATION
        raise failure from error
