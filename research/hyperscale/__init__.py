"""Figures of training over unequal devices."""
