"""The one error of this package."""


class ToolError(Exception):
    """A tool can't be had; the message is one line for a person: what, where its log is, what to do."""
