"""Judgement: policies side by side, with intervals and with bounds that no policy can pass."""
