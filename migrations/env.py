"""Alembic's entry: runs on the connection that `slurm_energy.store.schema.upgrade` hands over."""

from alembic import context

from slurm_energy.errors import StoreError
from slurm_energy.store.tables import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise StoreError("migrations run through `slurm-energy database upgrade`, which gives them a connection")

context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
