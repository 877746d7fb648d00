"""The arena: policies side by side on the same arrivals, with bounds that no policy can pass."""
