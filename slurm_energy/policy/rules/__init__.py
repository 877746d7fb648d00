"""Placement rules without a network: what a learned policy is measured against. `registry.create_rule` makes them."""
