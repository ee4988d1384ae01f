"""An Outlines application's point of view."""
