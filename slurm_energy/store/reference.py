"""The tables as people read them, from the mapped classes themselves."""

import inspect
from collections.abc import Iterator

from slurm_energy.store.tables import Base

_DIALECT_FREE = {"BIGINT": "integer", "INTEGER": "integer", "SMALLINT": "integer", "BOOLEAN": "boolean"}


def table_descriptions() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Yield name, sentence and (column, type, nullable) rows of every table, in order of dependence."""
    sentences = {
        mapper.class_.__tablename__: " ".join((inspect.getdoc(mapper.class_) or "").split())
        for mapper in Base.registry.mappers
    }
    for table in Base.metadata.sorted_tables:
        rows = []
        for column in table.columns:
            kind = str(column.type.compile()).split("(")[0]
            known = _DIALECT_FREE.get(kind, "number" if kind in {"FLOAT", "DOUBLE"} else "text")
            rows.append((column.name, known, "may be NULL" if column.nullable else ""))
        yield table.name, sentences[table.name], rows
