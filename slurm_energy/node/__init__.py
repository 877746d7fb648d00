"""What runs on compute nodes: prolog, epilog, spool. Starts fast; imports no torch and no SQLAlchemy."""
