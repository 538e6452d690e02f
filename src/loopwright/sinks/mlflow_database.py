"""A database as the store of MLflow: what it needs, its creation, and its locks."""

import contextlib
import logging
import os
import sqlite3
import warnings
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from loopwright import disk, extras, untrusted
from loopwright.errors import ConfigurationError, message

SCHEMES: Final = ("sqlite", "postgresql", "mysql", "mssql")
_SQLITE: Final = "sqlite:///"
_STAGED = ".loopwright-mlflow.tmp-"
_SECONDS_FOR_LOCK = 5.0


def require_usable(uri: str) -> None:
    """Raise if packages or the directory of its file are missing, or the file is unsafe."""
    if not extras.is_installed("sqlalchemy"):
        raise ConfigurationError(
            message(
                "A database as tracking_uri needs the complete MLflow.",
                expected="pip install mlflow",
                received=f"{without_password(uri)}, and mlflow-skinny, which has no SQLAlchemy",
                do="install it, or start `mlflow server` elsewhere and pass its http address",
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its models, which are made by this import
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
        from sqlalchemy.engine import make_url

        url = make_url(uri)
    # MLflow logs a traceback for each lock; the warning of the tracker says it in a line.
    logging.getLogger("mlflow.store.db.utils").addFilter(_is_of_another_thread)
    if url.get_backend_name() == "sqlite" and url.database:
        untrusted.require_sqlite(Path(url.database))
        home = Path(url.database).parent
        if not os.access(home, os.W_OK):
            raise ConfigurationError(
                message(
                    "The database of MLflow cannot be written.",
                    expected="a directory that exists and can be written to",
                    received=str(home),
                    do="make the directory, or correct tracking_uri",
                )
            )


def create(uri: str) -> None:
    """Create the tables of a new sqlite file under another name, then rename the file.

    A process that is killed while MLflow creates tables would leave a file that no process can
    use any more.
    """
    path = _file(uri)
    if path is None or disk.status(path.parent, path.name):
        return
    from mlflow import MlflowClient

    with disk.directory(path.parent) as home:
        disk.lock(home, wait=True)  # another run may create the same file
        disk.delete_abandoned(path.parent, _STAGED)
        if disk.status(path.parent, path.name) is None:
            with disk.staged(path.parent, _STAGED) as directory:
                MlflowClient(f"{_SQLITE}{directory / path.name}").search_experiments(max_results=1)
                disk.flush(directory, path.name)
                disk.move(directory, path.name, path.parent, path.name)


def require_unlocked(uri: str) -> None:
    """Raise if another program has locked an sqlite file: MLflow waits 20 seconds in each call."""
    path = _file(uri)
    if path is None or disk.status(path.parent, path.name) is None:
        return
    with contextlib.closing(
        sqlite3.connect(path, timeout=_SECONDS_FOR_LOCK, isolation_level=None)
    ) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def without_password(uri: str) -> str:
    """Return an address without user and password, to be shown and written to files.

    >>> without_password("https://ada:secret@tracking.example/api")
    'https://tracking.example/api'
    """
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    _, _, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))


def _file(uri: str) -> Path | None:
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return not (record.threadName or "").startswith("loopwright-")
