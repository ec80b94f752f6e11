"""Every child of the tests imports this first: conftest.py puts its folder on PYTHONPATH."""

import confinement

confinement.confine()
