"""What others say, as we can keep it."""


def storable(text: str, longest: int) -> str:
    """What the database can hold of what an engine or a bot says, and no more than that."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")[:longest]
