"""How well outcomes of options are predicted: the graph network beside tables, boosted trees and a flat network."""
