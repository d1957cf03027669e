"""Text from engines and bots that the database can store."""

_LONGEST = 4000


def storable(text: str, longest: int = _LONGEST) -> str:
    """A text from an engine or a bot, cut and cleaned so that the database can store it."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")[:longest]
