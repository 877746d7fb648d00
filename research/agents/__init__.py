"""Agents that the results page holds against rules: how they are trained."""
