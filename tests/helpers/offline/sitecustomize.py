"""Every child of the tests imports this first: conftest.py puts its folder on PYTHONPATH."""

import offline
import writes

offline.block()
writes.watch()
