"""The error of a command that is its user's to know or to correct."""


class CommandError(Exception):
    """A command failed; the message is for its user, mostly one line. The exit code is 1."""
