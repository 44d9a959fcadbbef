"""The exception of this package."""


class ToolError(Exception):
    """A tool is not available. The message is one line: the tool, its log, and what to do."""
