"""Configuration: what gin files and flags say, and the run specification made from them."""
