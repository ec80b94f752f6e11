"""Meshes: which devices a run uses and how its arrays are split over them."""
