"""Objects and policies as plain data."""

from typing import Any

JsonObject = dict[str, Any]
