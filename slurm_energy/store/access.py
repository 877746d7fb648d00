"""What callers of the store need of SQLAlchemy, so that they import none of it themselves."""

from sqlalchemy import Engine
from sqlalchemy.exc import DataError, IntegrityError, StatementError
from sqlalchemy.orm import Session

from slurm_energy.errors import StoreError

__all__ = ["Engine", "Session", "database_name", "is_about_the_values"]


def is_about_the_values(error: StoreError) -> bool:
    """Return whether the database refuses what it was given, so that trying again is of no use."""
    cause = error.__cause__
    return isinstance(cause, DataError | IntegrityError) or type(cause) is StatementError


def database_name(engine: Engine) -> str:
    """Return the database's URL without its password."""
    return engine.url.render_as_string(hide_password=True)
