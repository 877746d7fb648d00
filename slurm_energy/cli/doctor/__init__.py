"""Checks of an installation's assumptions, one module for each part of it."""
