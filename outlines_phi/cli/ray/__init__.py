"""Draws in actors of Ray Data; Ray is imported when a run begins."""
