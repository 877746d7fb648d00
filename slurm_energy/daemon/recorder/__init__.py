"""What must not be lost: a journal on the disk, and the process that brings it into the database."""
