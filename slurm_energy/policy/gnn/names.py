"""Names of partitions and GPU types in sentences: a site may call them anything."""

_MAX_NAME_LENGTH = 32


def printable(name: str) -> str:
    """Return a name in printable ASCII, at most 32 characters; others become question marks."""
    kept = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in name[:_MAX_NAME_LENGTH])
    return kept.strip() or "unnamed"
